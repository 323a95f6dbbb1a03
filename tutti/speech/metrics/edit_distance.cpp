#include "tutti/speech/metrics/edit_distance.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "tutti/core/error.h"

namespace tutti::speech {

double EditCounts::error_rate() const noexcept {
  if (errors() == 0) return 0;
  if (reference_size() == 0) return std::numeric_limits<double>::infinity();
  return static_cast<double>(errors()) / static_cast<double>(reference_size());
}

EditCounts& EditCounts::operator+=(const EditCounts& other) noexcept {
  hits += other.hits;
  substitutions += other.substitutions;
  deletions += other.deletions;
  insertions += other.insertions;
  return *this;
}

Json EditCounts::to_json() const {
  return {{"hits", hits},
          {"substitutions", substitutions},
          {"deletions", deletions},
          {"insertions", insertions}};
}

EditCounts EditCounts::from_json(const Json& json, const std::string& where) {
  const auto read = [&](const char* key) {
    if (!json.is_object() || !json.contains(key) || !json[key].is_number_integer())
      throw DataError(fmt::format("{}: {}: expected a whole number", where, key));
    return json[key].get<std::int64_t>();
  };
  return {read("hits"), read("substitutions"), read("deletions"), read("insertions")};
}

Alignment align(const std::vector<std::string>& reference,
                const std::vector<std::string>& hypothesis) {
  // Comparing numbers is much faster than comparing words n * m times.
  std::unordered_map<std::string, int> numbers;
  const auto number = [&](const std::vector<std::string>& words) {
    std::vector<int> out;
    out.reserve(words.size());
    for (const std::string& word : words)
      out.push_back(numbers.emplace(word, static_cast<int>(numbers.size())).first->second);
    return out;
  };
  const std::vector<int> ref = number(reference);
  const std::vector<int> hyp = number(hypothesis);
  const std::size_t rows = ref.size() + 1;
  const std::size_t columns = hyp.size() + 1;

  // Edits in the upper half, substitutions in the lower: among equal edits the fewest substitutions
  // (so the most hits) win.
  constexpr std::uint64_t kEdit = std::uint64_t{1} << 32;
  constexpr std::uint64_t kSubstitute = kEdit + 1;
  std::vector<std::uint64_t> above(columns), current(columns);
  std::vector<EditOp> how(rows * columns, EditOp::kInsertion);
  for (std::size_t j = 0; j < columns; ++j) above[j] = j * kEdit;
  for (std::size_t i = 1; i < rows; ++i) {
    current[0] = i * kEdit;
    how[i * columns] = EditOp::kDeletion;
    for (std::size_t j = 1; j < columns; ++j) {
      const bool same = ref[i - 1] == hyp[j - 1];
      std::uint64_t best = above[j - 1] + (same ? 0 : kSubstitute);
      EditOp op = same ? EditOp::kHit : EditOp::kSubstitution;
      if (above[j] + kEdit < best) best = above[j] + kEdit, op = EditOp::kDeletion;
      if (current[j - 1] + kEdit < best) best = current[j - 1] + kEdit, op = EditOp::kInsertion;
      current[j] = best;
      how[i * columns + j] = op;
    }
    std::swap(above, current);
  }

  Alignment out;
  out.pairs.reserve(std::max(rows, columns));
  for (std::size_t i = ref.size(), j = hyp.size(); i > 0 || j > 0;) {
    const EditOp op = how[i * columns + j];
    AlignedPair pair{op, -1, -1};
    if (op != EditOp::kInsertion) pair.reference = static_cast<int>(--i);
    if (op != EditOp::kDeletion) pair.hypothesis = static_cast<int>(--j);
    switch (op) {
      case EditOp::kHit:
        ++out.counts.hits;
        break;
      case EditOp::kSubstitution:
        ++out.counts.substitutions;
        break;
      case EditOp::kDeletion:
        ++out.counts.deletions;
        break;
      case EditOp::kInsertion:
        ++out.counts.insertions;
        break;
    }
    out.pairs.push_back(pair);
  }
  std::reverse(out.pairs.begin(), out.pairs.end());
  return out;
}

}  // namespace tutti::speech
