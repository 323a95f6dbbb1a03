// Samplers that balance categories (languages, speakers), and the files that name them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/random.h"
#include "tutti/core/text.h"
#include "tutti/data/batching/sampler_kinds.h"
#include "tutti/data/io/table_text.h"

namespace tutti::data {
namespace {

// Dataset index -> row of the table.
std::vector<std::int64_t> rows_of_items(const LengthTable& table, const Dataset& dataset) {
  std::vector<std::int64_t> row_of(dataset.size(), -1);
  for (std::size_t row = 0; row < table.size(); ++row)
    row_of[table.item[row]] = static_cast<std::int64_t>(row);
  return row_of;
}

// -1: in the dataset, but not among the rows (filtered out by length).
std::int64_t row_of_uid(std::string_view uid, const Dataset& dataset,
                        const std::vector<std::int64_t>& row_of, const std::string& where) {
  const std::size_t index = dataset.find(uid);
  if (index == Dataset::kMissing)
    throw DataError(fmt::format("{}: utterance '{}' is not in the dataset", where, uid));
  return row_of[index];
}

}  // namespace

Categories read_utt2category(const std::filesystem::path& file, const LengthTable& table,
                             const Dataset& dataset) {
  const auto row_of = rows_of_items(table, dataset);
  std::map<std::string, std::size_t, std::less<>> place;
  Categories categories;
  std::size_t covered = 0;
  std::vector<bool> seen(table.size(), false);
  const std::string text = read_file(file);
  for_each_row(text, file.string(), [&](const Row& line) {
    const std::string where = fmt::format("{}:{}", file.string(), line.line);
    const std::int64_t row = row_of_uid(line.key, dataset, row_of, where);
    if (row < 0) return;
    if (seen[static_cast<std::size_t>(row)])
      throw DataError(fmt::format("{}: utterance '{}' appears twice", where, line.key));
    seen[static_cast<std::size_t>(row)] = true;
    const auto [found, is_new] = place.try_emplace(std::string(line.value), categories.rows.size());
    if (is_new) categories.rows.emplace_back();
    categories.rows[found->second].push_back(static_cast<std::uint32_t>(row));
    ++covered;
  });
  if (covered != table.size())
    throw DataError(
        fmt::format("{}: has {} of the {} utterances", file.string(), covered, table.size()),
        "every utterance needs a category");
  return categories;
}

Categories read_category2utt(const std::filesystem::path& file, const LengthTable& table,
                             const Dataset& dataset) {
  const auto row_of = rows_of_items(table, dataset);
  Categories categories;
  const std::string text = read_file(file);
  for_each_row(text, file.string(), [&](const Row& line) {
    const std::string where = fmt::format("{}:{}: {}", file.string(), line.line, line.key);
    auto& rows = categories.rows.emplace_back();
    for (const auto& uid : split_words(line.value))
      if (const std::int64_t row = row_of_uid(uid, dataset, row_of, where); row >= 0)
        rows.push_back(static_cast<std::uint32_t>(row));
    if (rows.empty()) categories.rows.pop_back();
  });
  if (categories.rows.empty()) throw DataError(file.string() + ": no category has an utterance");
  return categories;
}

BatchList category_balanced(const BatchSettings& settings, const Categories& categories,
                            const DrawKey& key) {
  Random random({key.seed, key.epoch, hash64("catbel")});
  auto stacks = categories.rows;
  random.shuffle(stacks);
  const auto size = static_cast<std::size_t>(*settings.batch_size);
  const std::size_t cap = stacks.size() >= size ? 1 : size / stacks.size() + 1;
  std::vector<std::uint32_t> draws;  // one entry per utterance: its category
  for (std::uint32_t c = 0; c < stacks.size(); ++c) {
    draws.insert(draws.end(), stacks[c].size(), c);
    random.shuffle(stacks[c]);
  }
  random.shuffle(draws);
  BatchList out;
  std::vector<std::uint32_t> batch;
  std::vector<std::uint32_t> in_batch(stacks.size(), 0);
  for (const auto c : draws) {
    if (in_batch[c] >= cap) continue;  // the draw is lost, as in ESPnet
    batch.push_back(stacks[c].back());
    stacks[c].pop_back();
    ++in_batch[c];
    if (batch.size() < size) continue;
    out.add(batch);
    batch.clear();
    std::fill(in_batch.begin(), in_batch.end(), 0);
  }
  if (out.size() == 0)
    throw DataError(
        fmt::format("catbel makes no full batch of {} out of {} utterances in {} categories", size,
                    draws.size(), stacks.size()),
        "lower batch_size");
  return out;
}

BatchList category_power(const BatchSettings& settings, const LengthTable& table,
                         const Categories& categories, const DrawKey& key) {
  const auto& length = table.columns[0].length;
  Random random({key.seed, key.epoch, hash64("catpow")});
  auto lists = categories.rows;
  std::vector<double> bins(lists.size(), 0);
  double total = 0;
  for (std::size_t c = 0; c < lists.size(); ++c) {
    for (const auto row : lists[c]) bins[c] += length[row];
    total += bins[c];
    random.shuffle(lists[c]);
  }
  if (!(total > 0)) throw DataError("catpow: all utterances have length 0");
  std::vector<double> cumulative(lists.size());
  double mass = 0;
  for (std::size_t c = 0; c < lists.size(); ++c)
    cumulative[c] = mass += std::pow(bins[c] / total, settings.upsampling_factor);
  double sum = 0;
  for (const auto one : length) sum += one;
  const double mean_length = sum / static_cast<double>(length.size());
  const auto num_draws =
      static_cast<std::uint64_t>(std::floor(total * settings.dataset_scaling_factor) / mean_length);

  BatchList out;
  std::vector<std::uint32_t> batch;
  std::uint64_t batch_bins = 0;
  std::vector<std::size_t> next(lists.size(), 0);
  const auto budget = static_cast<std::uint64_t>(*settings.batch_bins);
  const auto min_size = static_cast<std::size_t>(settings.min_batch_size);
  for (std::uint64_t i = 0; i < num_draws; ++i) {
    const auto c = static_cast<std::size_t>(std::min<std::ptrdiff_t>(
        std::upper_bound(cumulative.begin(), cumulative.end(), random.uniform() * mass) -
            cumulative.begin(),
        static_cast<std::ptrdiff_t>(lists.size()) - 1));
    const std::uint32_t row = lists[c][next[c]++ % lists[c].size()];
    batch.push_back(row);
    batch_bins += length[row];
    const bool full = (batch_bins > budget && batch.size() >= min_size) ||
                      (settings.max_batch_size &&
                       batch.size() >= static_cast<std::size_t>(*settings.max_batch_size));
    if (!full) continue;
    out.add(batch);
    batch.clear();
    batch_bins = 0;
  }
  if (!settings.drop_last && !batch.empty() && batch.size() >= min_size) out.add(batch);
  if (out.size() == 0)
    throw DataError("catpow makes no batch", "lower batch_bins or min_batch_size");
  return out;
}

}  // namespace tutti::data
