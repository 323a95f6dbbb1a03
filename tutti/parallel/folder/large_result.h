// A result that is too large for the journal lies in a file whose name tells what must be in it:
// INDEX-SIZE-CRC32C.json, with the lease in front while it is the worker's. Internal to the room.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace tutti::parallel {

struct LargeResult {
  static std::string name(std::uint64_t index, std::string_view text);
  // Without the lease.
  static std::string own_name(std::string_view worker_name);
  // Could this be the name of such a file, with or without lease, whole or half copied?
  static bool is_name(std::string_view name);
  // Is the file there and what its name says? Empty: yes; else what is wrong with it.
  static std::string problem(const std::filesystem::path& file);
};

}  // namespace tutti::parallel
