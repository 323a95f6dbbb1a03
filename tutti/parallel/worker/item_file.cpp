#include "tutti/parallel/worker/item_file.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "tutti/core/error.h"
#include "tutti/core/file_trust.h"

namespace tutti::parallel {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kMagic = "TUTTIL1\n";
constexpr std::size_t kHeaderBytes = 16;

void put(std::string& out, std::uint64_t value) {
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

std::uint64_t get(const char* bytes) {
  std::uint64_t value = 0;
  for (int i = 0; i < 8; ++i)
    value |= static_cast<std::uint64_t>(static_cast<std::uint8_t>(bytes[i])) << (8 * i);
  return value;
}

}  // namespace

fs::path item_file_path(const fs::path& run_folder) { return run_folder / ".tutti" / "items"; }

ItemFile::ItemFile(const fs::path& path) : path_(path) {
  const UniqueFd fd = open_trusted_file(path);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw_errno("cannot stat " + path.string(), errno);
  num_bytes_ = static_cast<std::size_t>(info.st_size);
  const auto broken = [&] { return DataError(path.string() + ": not a list of items"); };
  if (num_bytes_ < kHeaderBytes) throw broken();
  void* mapped = ::mmap(nullptr, num_bytes_, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (mapped == MAP_FAILED) throw_errno("cannot map " + path.string(), errno);
  data_ = static_cast<const char*>(mapped);
  size_ = get(data_ + 8);
  const std::size_t room = num_bytes_ - kHeaderBytes;
  const bool good = std::string_view(data_, 8) == kMagic && size_ <= room / 8 &&
                    (size_ == 0 || end_of(size_ - 1) == room - 8 * size_);
  if (good) return;
  ::munmap(mapped, num_bytes_);
  throw broken();
}

ItemFile::~ItemFile() { ::munmap(const_cast<char*>(data_), num_bytes_); }

std::uint64_t ItemFile::end_of(std::uint64_t index) const noexcept {
  return get(data_ + kHeaderBytes + 8 * index);
}

std::string_view ItemFile::operator[](std::uint64_t index) const {
  const std::uint64_t room = num_bytes_ - kHeaderBytes - 8 * size_;
  const std::uint64_t begin = index == 0 || index >= size_ ? 0 : end_of(index - 1);
  const std::uint64_t end = index < size_ ? end_of(index) : room + 1;
  if (begin > end || end > room)
    throw DataError(fmt::format("{}: no item {}", path_.string(), index));
  return {data_ + kHeaderBytes + 8 * size_ + begin, end - begin};
}

void ItemFile::write(const fs::path& path, const std::vector<std::string_view>& items) {
  write_file_atomic(
      path,
      [&](int fd) {
        std::string buffer(kMagic);
        put(buffer, items.size());
        std::uint64_t end = 0;
        const auto flush_if = [&](std::size_t limit) {
          if (buffer.size() <= limit) return;
          write_all(fd, buffer, path);
          buffer.clear();
        };
        for (const std::string_view item : items) {
          put(buffer, end += item.size());
          flush_if(1 << 20);
        }
        for (const std::string_view item : items) {
          buffer += item;
          flush_if(1 << 20);
        }
        flush_if(0);
      },
      0600);
}

}  // namespace tutti::parallel
