// Lists of index ranges that are as short as they can be. Internal to the room.
#pragma once

#include <vector>

#include "tutti/parallel/wire/wire.h"

namespace tutti::parallel::wire {

// Appends `range`, joined to the last one where it goes on from there.
inline void append_range(std::vector<IndexRange>& ranges, IndexRange range) {
  if (!ranges.empty() && ranges.back().first + ranges.back().count == range.first)
    ranges.back().count += range.count;
  else
    ranges.push_back(range);
}

}  // namespace tutti::parallel::wire
