// What the stand-in asks of a device: queues that copy, write a word and wait for a word, in order.
// Two kinds: cuda_device.cpp for GPUs; host_device.cpp, where a queue works at once and in the
// caller's thread, so that the stand-in's rules are tested on any machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace nccl_standin {

using Stream = void*;
using Word = std::uint32_t;  // in memory that all ranks share; counts up, and may wrap

// Whether a count has come as far as `wanted`, across the wrap.
inline bool reached(Word value, Word wanted) {
  return static_cast<std::int32_t>(value - wanted) >= 0;
}

int current_device();
// Makes host memory known to the device; it stays so until the process ends.
void attach(void* memory, std::size_t num_bytes);
void copy(void* to, const void* from, std::size_t num_bytes, Stream stream);
void write(Word* word, Word value, Stream stream);
void wait(Word* word, Word wanted, Stream stream);  // until reached(*word, wanted)
// What is wrong with them for a call on `device`; empty: nothing.
std::string fault_of_buffer(const void* buffer, int device);
std::string fault_of_stream(Stream stream);

}  // namespace nccl_standin
