#include "tutti/data/batching/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "tutti/core/error.h"
#include "tutti/data/batching/sampler_kinds.h"

namespace tutti::data {
namespace {

using Rows = std::vector<std::uint32_t>;

// N batches as equal as possible, each of at least `size` (when there are that many).
void split_evenly(const Rows& rows, std::size_t size, bool drop_last, BatchList& out) {
  const std::size_t n = rows.size();
  const std::size_t count = std::max<std::size_t>(n / size, 1);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t begin = drop_last ? i * size : i * n / count;
    const std::size_t end = drop_last ? std::min(n, (i + 1) * size) : (i + 1) * n / count;
    out.add(std::span(rows).subspan(begin, end - begin));
  }
}

BatchList reversed(const BatchList& list) {
  BatchList out;
  out.reserve(list.size(), list.num_items());
  for (std::size_t i = list.size(); i > 0; --i) out.add(list[i - 1]);
  return out;
}

// Cuts sorted rows into batches of the given sizes, each in the order asked for.
BatchList cut(const Rows& rows, const std::vector<std::size_t>& sizes, bool descending) {
  BatchList out;
  out.reserve(sizes.size(), rows.size());
  std::size_t begin = 0;
  Rows batch;
  for (const std::size_t size : sizes) {
    batch.assign(rows.begin() + static_cast<std::ptrdiff_t>(begin),
                 rows.begin() + static_cast<std::ptrdiff_t>(begin + size));
    if (descending) std::reverse(batch.begin(), batch.end());
    out.add(batch);
    begin += size;
  }
  return out;
}

BatchList unsorted(const BatchSettings& s, const LengthTable& table, const Categories& categories) {
  BatchList out;
  Rows all(table.size());
  std::iota(all.begin(), all.end(), 0U);
  if (!s.batch_size) return in_order_by_bins(s, table);
  if (categories.rows.empty())
    split_evenly(all, static_cast<std::size_t>(*s.batch_size), s.drop_last, out);
  for (const Rows& rows : categories.rows)
    split_evenly(rows, static_cast<std::size_t>(*s.batch_size), s.drop_last, out);
  return out;
}

BatchList sorted(const BatchSettings& s, const LengthTable& table) {
  const auto& length = table.columns[0].length;
  Rows rows = rows_by_length(table);
  // A stable sort by descending length keeps the file's order among equals, so it is not the
  // reverse.
  if (s.sort_in_batch == "descending")
    std::iota(rows.begin(), rows.end(), 0U),
        std::stable_sort(rows.begin(), rows.end(),
                         [&](auto a, auto b) { return length[a] > length[b]; });
  BatchList out;
  split_evenly(rows, static_cast<std::size_t>(*s.batch_size), s.drop_last, out);
  return s.sort_in_batch != s.sort_batch ? reversed(out) : out;
}

void folded_category(const BatchSettings& s, const LengthTable& table, const Rows& rows,
                     bool first_category, BatchList& out) {
  if (rows.empty()) return;
  std::vector<std::size_t> sizes;
  const auto min_size = static_cast<std::size_t>(s.min_batch_size);
  std::size_t start = 0;
  while (start < rows.size()) {
    std::int64_t factor = 0;
    for (std::size_t c = 0; c < table.columns.size(); ++c)
      factor = std::max(factor, static_cast<std::int64_t>(table.columns[c].length[rows[start]]) /
                                    s.fold_lengths[c]);
    std::size_t size = std::max(min_size, static_cast<std::size_t>(*s.batch_size / (1 + factor)));
    size = std::max<std::size_t>(size, 1);
    if (s.drop_last && start + size > rows.size() && !first_category) break;
    size = std::min(size, rows.size() - start);
    sizes.push_back(size);
    start += size;
  }
  if (sizes.size() > 1 && sizes.back() < min_size) {
    const std::size_t spare = sizes.back();
    sizes.pop_back();
    const std::size_t n = sizes.size();
    for (std::size_t i = 0; i < spare; ++i) {
      const std::size_t from_end = i % n + 2;  // the last but one first
      sizes[from_end <= n ? n - from_end : n - 1] += 1;
    }
  }
  const BatchList part = cut(rows, sizes, s.sort_in_batch == "descending");
  for (std::size_t i = 0; i < part.size(); ++i)
    out.add(part[s.sort_batch == "descending" ? part.size() - 1 - i : i]);
}

BatchList folded(const BatchSettings& s, const LengthTable& table, const Categories& categories) {
  const Rows rows = rows_by_length(table);
  BatchList out;
  if (categories.rows.empty()) {
    folded_category(s, table, rows, true, out);
    return out;
  }
  // Categories in the order in which sorted utterances first show them.
  std::vector<std::uint32_t> category_of(table.size());
  for (std::uint32_t c = 0; c < categories.rows.size(); ++c)
    for (const auto row : categories.rows[c]) category_of[row] = c;
  std::vector<Rows> parts;
  std::vector<std::int64_t> place(categories.rows.size(), -1);
  for (const auto row : rows) {
    auto& at = place[category_of[row]];
    if (at < 0) {
      at = static_cast<std::int64_t>(parts.size());
      parts.emplace_back();
    }
    parts[static_cast<std::size_t>(at)].push_back(row);
  }
  for (const Rows& part : parts) folded_category(s, table, part, out.size() == 0, out);
  return out;
}

// `length` and `numel` differ in what they count only.
BatchList by_bins(const BatchSettings& s, const LengthTable& table, bool count_width) {
  const Rows rows = rows_by_length(table);
  if (count_width && s.padding)
    for (const auto& column : table.columns)
      for (const auto row : rows)
        if (column.width[row] != column.width[rows[0]])
          throw DataError(
              fmt::format(
                  "{}: feature dimensions differ ({} and {}), numel with padding needs equal ones",
                  column.file, column.width[rows[0]], column.width[row]),
              "use type: length, or padding: false");
  const auto budget = static_cast<std::uint64_t>(*s.batch_bins);
  const auto min_size = static_cast<std::uint64_t>(s.min_batch_size);
  std::vector<std::size_t> sizes;
  std::uint64_t n = 0;
  std::uint64_t unpadded = 0;
  for (const auto row : rows) {
    ++n;
    std::uint64_t bins = 0;
    for (const auto& column : table.columns)
      bins +=
          static_cast<std::uint64_t>(column.length[row]) * (count_width ? column.width[row] : 1);
    unpadded += bins;
    if ((s.padding ? bins * n : unpadded) > budget && n >= min_size) {
      sizes.push_back(n);
      n = 0;
      unpadded = 0;
    }
  }
  if (n > 0 && (!s.drop_last || sizes.empty())) sizes.push_back(n);
  if (sizes.size() > 1 && sizes.back() < min_size) {
    const std::size_t spare = sizes.back();
    sizes.pop_back();
    for (std::size_t i = 0; i < spare; ++i) sizes[sizes.size() - 1 - i % sizes.size()] += 1;
  }
  const BatchList out = cut(rows, sizes, s.sort_in_batch == "descending");
  return s.sort_batch == "descending" ? reversed(out) : out;
}

}  // namespace

BatchList BatchList::from_arrays(std::vector<std::uint32_t> items,
                                 std::vector<std::uint32_t> ends) {
  BatchList list;
  list.items_ = std::move(items);
  list.ends_ = std::move(ends);
  return list;
}

std::vector<std::uint32_t> rows_by_length(const LengthTable& table) {
  Rows rows(table.size());
  std::iota(rows.begin(), rows.end(), 0U);
  const auto& length = table.columns[0].length;
  std::stable_sort(rows.begin(), rows.end(), [&](auto a, auto b) { return length[a] < length[b]; });
  return rows;
}

BatchList in_order_by_bins(const BatchSettings& s, const LengthTable& table) {
  const auto budget = static_cast<std::uint64_t>(*s.batch_bins);
  BatchList out;
  Rows batch;
  std::vector<std::uint64_t> longest(table.columns.size(), 0);
  const auto bins_with = [&](std::uint32_t row, std::uint64_t n) {
    std::uint64_t bins = 0;
    for (std::size_t c = 0; c < longest.size(); ++c)
      bins += n * std::max<std::uint64_t>(longest[c],
                                          static_cast<std::uint64_t>(table.columns[c].length[row]) *
                                              table.columns[c].width[row]);
    return bins;
  };
  for (std::uint32_t row = 0; row < table.size(); ++row) {
    if (!batch.empty() && bins_with(row, batch.size() + 1) > budget &&
        batch.size() >= static_cast<std::size_t>(s.min_batch_size)) {
      out.add(batch);
      batch.clear();
      std::fill(longest.begin(), longest.end(), 0);
    }
    batch.push_back(row);
    for (std::size_t c = 0; c < longest.size(); ++c)
      longest[c] = std::max<std::uint64_t>(
          longest[c],
          static_cast<std::uint64_t>(table.columns[c].length[row]) * table.columns[c].width[row]);
  }
  if (!batch.empty()) out.add(batch);
  return out;
}

std::uint64_t padded_bins(const LengthTable& table, std::span<const std::uint32_t> batch) {
  std::uint64_t bins = 0;
  for (const auto& column : table.columns) {
    std::uint64_t longest = 0;
    for (const auto row : batch)
      longest =
          std::max(longest, static_cast<std::uint64_t>(column.length[row]) * column.width[row]);
    bins += longest * batch.size();
  }
  return bins;
}

bool draws_utterances(const BatchSettings& settings) {
  return settings.type == "catbel" || settings.type == "catpow";
}

SamplerRegistry& sampler_registry() {
  static SamplerRegistry samplers;
  return samplers;
}

BatchList make_batches(const BatchSettings& s, const LengthTable& table,
                       const Categories& categories, const DrawKey& key) {
  if (table.size() == 0)
    throw DataError("no utterances to batch",
                    "is the manifest empty, or do the length limits exclude everything?");
  for (const Sampler& sampler : sampler_registry())
    if (sampler.name == s.type) return sampler.make(s, table, key);
  const bool needs_lengths = s.type != "sequential" && s.type != "catbel" &&
                             !(s.type == "unsorted" && s.batch_size) &&
                             !(s.type == "bucketed" && !s.batch_bins);
  if (needs_lengths && table.columns.empty())
    throw ConfigError(
        fmt::format("batches.type {} needs lengths, and the manifest does not know them", s.type),
        "give shape_files (made by collect_stats), or num_samples in the manifest");
  if (draws_utterances(s) && categories.rows.empty())
    throw DataError("type " + s.type + ": no category has an utterance");
  if (s.type == "unsorted") return unsorted(s, table, categories);
  if (s.type == "sorted") return sorted(s, table);
  if (s.type == "folded") return folded(s, table, categories);
  if (s.type == "length") return by_bins(s, table, false);
  if (s.type == "numel") return by_bins(s, table, true);
  if (s.type == "catbel") return category_balanced(s, categories, key);
  if (s.type == "catpow") return category_power(s, table, categories, key);
  if (s.type == "sequential") return sequential(s, table);
  return bucketed(s, table, key);
}

}  // namespace tutti::data

void tutti::config::PluginKind<tutti::data::Sampler>::add(Registry& samplers,
                                                          data::Sampler sampler) {
  for (const auto& taken : data::sampler_types())
    if (taken == sampler.name)
      throw ConfigError("there is a sampler '" + sampler.name + "' already", "choose another name");
  samplers.push_back(std::move(sampler));
}
