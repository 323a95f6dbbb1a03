// Many strings in one allocation: a million ids or paths without a million heap blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::data {

class TextColumn {
 public:
  void add(std::string_view text) {
    blob_.append(text);
    ends_.push_back(blob_.size());
  }
  std::string_view operator[](std::size_t i) const noexcept {
    const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(blob_).substr(begin, ends_[i] - begin);
  }
  std::size_t size() const noexcept { return ends_.size(); }

 private:
  std::string blob_;
  std::vector<std::uint64_t> ends_;
};

// Finds a string's position; 12 bytes per entry. Built once, then read from any thread.
class TextIndex {
 public:
  static constexpr std::size_t kMissing = ~std::size_t{0};

  TextIndex() = default;
  // `duplicate`, when given, gets the position of the first entry that repeats an earlier one.
  explicit TextIndex(const TextColumn& column, std::size_t* duplicate = nullptr);
  // REQUIRES: `column` is the one the index was built from, unchanged.
  std::size_t find(const TextColumn& column, std::string_view text) const noexcept;

 private:
  std::vector<std::uint32_t> slots_;  // open addressing; position + 1, 0 is free
  std::uint64_t mask_ = 0;
};

}  // namespace tutti::data
