#include "tutti/speech/metrics/edit_distance.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
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

namespace {

// Edits in the upper half, substitutions in the lower: among equal edits the fewest substitutions
// (so the most hits) win.
using Cost = std::uint64_t;
constexpr Cost kEdit = Cost{1} << 32;
constexpr Cost kSubstitute = kEdit + 1;

using Tokens = std::vector<int>;
using Iterator = Tokens::const_iterator;

// Fills `current` from `above`: one more reference token. `op`, when not null, gets the choices.
template <class It>
void next_row(int token, std::size_t row, It hyp, std::size_t size, const std::vector<Cost>& above,
              std::vector<Cost>& current, EditOp* op) {
  current[0] = row * kEdit;
  if (op != nullptr) op[0] = EditOp::kDeletion;
  for (std::size_t j = 1; j <= size; ++j, ++hyp) {
    const bool same = token == *hyp;
    Cost best = above[j - 1] + (same ? 0 : kSubstitute);
    EditOp choice = same ? EditOp::kHit : EditOp::kSubstitution;
    if (above[j] + kEdit < best) best = above[j] + kEdit, choice = EditOp::kDeletion;
    if (current[j - 1] + kEdit < best) best = current[j - 1] + kEdit, choice = EditOp::kInsertion;
    current[j] = best;
    if (op != nullptr) op[j] = choice;
  }
}

// The costs of aligning all of [ref, ref_end) with every prefix of the hypothesis.
template <class It>
std::vector<Cost> last_row(It ref, It ref_end, It hyp, std::size_t hyp_size) {
  std::vector<Cost> above(hyp_size + 1), current(hyp_size + 1);
  for (std::size_t j = 0; j <= hyp_size; ++j) above[j] = j * kEdit;
  for (std::size_t row = 1; ref != ref_end; ++ref, ++row) {
    next_row(*ref, row, hyp, hyp_size, above, current, nullptr);
    std::swap(above, current);
  }
  return above;
}

// Appends the operations that align the two ranges.
void align_ranges(Iterator ref, Iterator ref_end, Iterator hyp, Iterator hyp_end,
                  std::size_t max_cells, std::vector<EditOp>& out) {
  const auto rows = static_cast<std::size_t>(ref_end - ref) + 1;
  const auto columns = static_cast<std::size_t>(hyp_end - hyp) + 1;
  if (rows <= 2 || rows * columns <= max_cells) {
    std::vector<Cost> above(columns), current(columns);
    std::vector<EditOp> how(rows * columns, EditOp::kInsertion);
    for (std::size_t j = 0; j < columns; ++j) above[j] = j * kEdit;
    for (std::size_t i = 1; i < rows; ++i) {
      next_row(ref[static_cast<std::ptrdiff_t>(i) - 1], i, hyp, columns - 1, above, current,
               &how[i * columns]);
      std::swap(above, current);
    }
    const auto begin = static_cast<std::ptrdiff_t>(out.size());
    for (std::size_t i = rows - 1, j = columns - 1; i > 0 || j > 0;) {
      const EditOp op = how[i * columns + j];
      if (op != EditOp::kInsertion) --i;
      if (op != EditOp::kDeletion) --j;
      out.push_back(op);
    }
    std::reverse(out.begin() + begin, out.end());
    return;
  }
  // Hirschberg: the best split of the hypothesis for the two halves of the reference; memory is
  // then linear, so that an hour of characters fits.
  const Iterator middle = ref + (ref_end - ref) / 2;
  const std::vector<Cost> left = last_row(ref, middle, hyp, columns - 1);
  using Back = std::reverse_iterator<Iterator>;
  const std::vector<Cost> right = last_row(Back(ref_end), Back(middle), Back(hyp_end), columns - 1);
  std::size_t split = 0;
  for (std::size_t j = 1; j < columns; ++j)
    if (left[j] + right[columns - 1 - j] < left[split] + right[columns - 1 - split]) split = j;
  const Iterator cut = hyp + static_cast<std::ptrdiff_t>(split);
  align_ranges(ref, middle, hyp, cut, max_cells, out);
  align_ranges(middle, ref_end, cut, hyp_end, max_cells, out);
}

}  // namespace

Alignment align(const std::vector<std::string>& reference,
                const std::vector<std::string>& hypothesis, std::size_t max_cells) {
  // Comparing numbers is much faster than comparing words n * m times.
  std::unordered_map<std::string, int> numbers;
  const auto number = [&](const std::vector<std::string>& words) {
    Tokens out;
    out.reserve(words.size());
    for (const std::string& word : words)
      out.push_back(numbers.emplace(word, static_cast<int>(numbers.size())).first->second);
    return out;
  };
  const Tokens ref = number(reference);
  const Tokens hyp = number(hypothesis);
  std::vector<EditOp> ops;
  align_ranges(ref.begin(), ref.end(), hyp.begin(), hyp.end(), max_cells, ops);

  Alignment out;
  out.pairs.reserve(ops.size());
  int next_ref = 0;
  int next_hyp = 0;
  for (EditOp op : ops) {
    AlignedPair pair{op, -1, -1};
    if (op != EditOp::kInsertion) pair.reference = next_ref++;
    if (op != EditOp::kDeletion) pair.hypothesis = next_hyp++;
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
  return out;
}

}  // namespace tutti::speech
