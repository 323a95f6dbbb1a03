// The randomness of our own dropout, on CPUs (dropout.cpp) and GPUs (fused.cpp): one number from
// torch's CPU generator keys a hash of every element's index.
#pragma once

#include <cstdint>

namespace tutti::speech {

std::uint64_t draw_dropout_key();
// Hashes of 31 bits below this are dropped.
inline std::int32_t dropout_threshold(double rate) {
  return static_cast<std::int32_t>(rate * 2147483648.0);
}

// While layers are recorded to be launched again and again, keys are not known yet. In this scope
// draw_dropout_key() of this thread counts from 0: the place in `keys`, an array in device memory,
// where kernels find the key when they run. One scope at a time in a process.
class RecordedKeys {
 public:
  RecordedKeys(const std::uint64_t* keys, std::int64_t capacity);
  ~RecordedKeys();
  RecordedKeys(const RecordedKeys&) = delete;
  RecordedKeys& operator=(const RecordedKeys&) = delete;

  std::uint64_t next_place();  // throws InternalError past the capacity
  std::int64_t num_places() const { return num_places_; }
  void restart() { num_places_ = 0; }
  // Of the scope there is now, for all threads: a backward pass has its own. Null: there is none.
  static const std::uint64_t* current_keys();

 private:
  std::int64_t capacity_;
  std::int64_t num_places_ = 0;
};

}  // namespace tutti::speech
