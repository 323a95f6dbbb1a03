#include "tutti/data/text_column.h"

#include "tutti/core/error.h"
#include "tutti/core/random.h"

namespace tutti::data {

TextIndex::TextIndex(const TextColumn& column, std::size_t* duplicate) {
  if (column.size() >= 0xffffffffU)
    throw DataError("more than 4 billion utterances in one manifest");
  if (duplicate != nullptr) *duplicate = kMissing;
  std::uint64_t slots = 16;
  while (slots < 2 * column.size()) slots *= 2;
  slots_.assign(slots, 0);
  mask_ = slots - 1;
  for (std::size_t i = 0; i < column.size(); ++i) {
    std::uint64_t slot = hash64(column[i]) & mask_;
    while (slots_[slot] != 0 && column[slots_[slot] - 1] != column[i]) slot = (slot + 1) & mask_;
    if (slots_[slot] == 0)
      slots_[slot] = static_cast<std::uint32_t>(i + 1);
    else if (duplicate != nullptr && *duplicate == kMissing)
      *duplicate = i;
  }
}

std::size_t TextIndex::find(const TextColumn& column, std::string_view text) const noexcept {
  if (slots_.empty()) return kMissing;
  std::uint64_t slot = hash64(text) & mask_;
  while (slots_[slot] != 0) {
    if (column[slots_[slot] - 1] == text) return slots_[slot] - 1;
    slot = (slot + 1) & mask_;
  }
  return kMissing;
}

}  // namespace tutti::data
