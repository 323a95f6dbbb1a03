#include "tutti/parallel/folder/large_result.h"

#include <fmt/format.h>

#include "tutti/core/crc32c.h"
#include "tutti/core/error.h"
#include "tutti/core/text.h"
#include "tutti/parallel/folder/journal.h"

namespace tutti::parallel {

std::string LargeResult::name(std::uint64_t index, std::string_view text) {
  return fmt::format("{}-{}-{:08x}.json", index, text.size(), crc32c(text));
}

std::string LargeResult::own_name(std::string_view worker_name) {
  return std::string(worker_name.substr(worker_name.find('-') + 1));
}

bool LargeResult::is_name(std::string_view name) {
  if (name.ends_with(".tmp")) name.remove_suffix(4);
  if (!name.ends_with(".json")) return false;
  name.remove_suffix(5);
  const auto parts = split(std::string(name), '-');
  if (parts.size() < 3 || parts.size() > 4 || parts.back().size() != 8) return false;
  for (const std::string& part : parts)
    if (part.empty() || part.find_first_not_of("0123456789abcdef") != part.npos) return false;
  return true;
}

std::string LargeResult::problem(const std::filesystem::path& file) {
  std::error_code failure;
  const auto size = std::filesystem::file_size(file, failure);
  if (failure) return fmt::format("{} is lost: {}", file.string(), failure.message());
  const auto parts = split(file.stem().string(), '-');
  if (parts.size() < 3) return file.string() + " has no checksum in its name";
  const std::string& want_size = parts[parts.size() - 2];
  if (std::to_string(size) != want_size)
    return fmt::format("{} has {} bytes, {} were written", file.string(), size, want_size);
  try {
    const MappedFile bytes(file);
    if (fmt::format("{:08x}", crc32c(bytes.bytes())) != parts.back())
      return fmt::format("{} is damaged: its checksum is wrong", file.string());
  } catch (const IoError& error) {
    return error.what();
  }
  return "";
}

}  // namespace tutti::parallel
