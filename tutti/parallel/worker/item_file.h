// The items of a `tutti map` run as they lie in its folder: any bytes, each at once, and never all in
// memory. Workers of one machine share the pages.
//
// File: 8 bytes "TUTTIL1\n", u64 number of items, u64 end of each item counted from the first byte
// after this table, then the bytes of all items; all little endian.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::parallel {

class ItemFile {
 public:
  // Throws IoError (also when others may write it: items become arguments of commands), DataError.
  explicit ItemFile(const std::filesystem::path& path);
  ~ItemFile();
  ItemFile(const ItemFile&) = delete;
  ItemFile& operator=(const ItemFile&) = delete;
  std::uint64_t size() const noexcept { return size_; }
  std::string_view operator[](std::uint64_t index) const;  // throws DataError past the end

  static void write(const std::filesystem::path& path, const std::vector<std::string_view>& items);

 private:
  std::uint64_t end_of(std::uint64_t index) const noexcept;

  const std::filesystem::path path_;
  const char* data_ = nullptr;
  std::size_t num_bytes_ = 0;
  std::uint64_t size_ = 0;
};

// Where a run of `tutti map` keeps its items.
std::filesystem::path item_file_path(const std::filesystem::path& run_folder);

}  // namespace tutti::parallel
