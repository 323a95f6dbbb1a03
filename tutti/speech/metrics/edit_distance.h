// The least number of edits that turns a hypothesis into its reference, and which they are.
//
//   Alignment a = align({"a", "b", "c"}, {"a", "x", "c", "d"});
//   a.counts.substitutions;   // 1
//   a.counts.insertions;      // 1
//   a.counts.error_rate();    // 2.0 / 3
//
// Counts are integers, so that totals over workers, shards and speakers are exact and do not depend
// on the order of addition. Among alignments with the same number of edits, the one with the most
// matched tokens is taken (fewest substitutions plus pairs left over), then substitution before
// deletion before insertion from the end: the result is a function of the two sequences alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tutti/core/json.h"

namespace tutti::speech {

struct EditCounts {
  std::int64_t hits = 0;
  std::int64_t substitutions = 0;
  std::int64_t deletions = 0;
  std::int64_t insertions = 0;

  std::int64_t errors() const noexcept { return substitutions + deletions + insertions; }
  std::int64_t reference_size() const noexcept { return hits + substitutions + deletions; }
  std::int64_t hypothesis_size() const noexcept { return hits + substitutions + insertions; }
  // 0 when both sides are empty; infinity when only the reference is.
  double error_rate() const noexcept;
  EditCounts& operator+=(const EditCounts& other) noexcept;
  bool operator==(const EditCounts&) const = default;

  Json to_json() const;
  // Throws DataError when a count is missing or not a whole number.
  static EditCounts from_json(const Json& json, const std::string& where);
};

enum class EditOp : std::uint8_t { kHit, kSubstitution, kDeletion, kInsertion };

// Positions in the two sequences; -1 where the side has nothing.
struct AlignedPair {
  EditOp op = EditOp::kHit;
  int reference = -1;
  int hypothesis = -1;
};

struct Alignment {
  EditCounts counts;
  std::vector<AlignedPair> pairs;
};

// Memory is one byte per pair of tokens up to `max_cells` pairs, and linear in the lengths beyond
// (in twice the time). The counts do not depend on it; which of several equal alignments is shown
// may.
Alignment align(const std::vector<std::string>& reference,
                const std::vector<std::string>& hypothesis,
                std::size_t max_cells = std::size_t{1} << 26);

}  // namespace tutti::speech
