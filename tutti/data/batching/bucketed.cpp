// `bucketed`, our default. Utterances are sorted by length and cut into buckets of M x W batches
// (W ranks), where the longest utterance of a bucket decides how many fit into one batch:
//
//   capacity = min(batch_bins / (longest x dims), batch_size)     bucket = largest run with
//   run length <= M x W x capacity
//
// so that every batch keeps the budget whatever the order inside the bucket. Each epoch shuffles
// within buckets (new company for every utterance, same number of batches) and deals the bucket
// out evenly. M is the largest power of two that keeps the spread of lengths in the bucket below
// bucket_spread: dense corpora mix freely, sparse ones waste no padding. The W batches of a group
// come from one bucket, so ranks finish together.
#include <algorithm>
#include <limits>

#include "tutti/core/random.h"
#include "tutti/data/batching/sampler_kinds.h"

namespace tutti::data {
namespace {

using Rows = std::vector<std::uint32_t>;

struct Bucket {
  std::size_t begin = 0;
  std::size_t count = 0;
  std::size_t num_batches = 0;
};

class Capacity {
 public:
  Capacity(const BatchSettings& settings, const LengthTable& table)
      : settings_(settings), table_(table), longest_(table.columns.size(), 0) {}
  void take(std::uint32_t row) {
    for (std::size_t c = 0; c < longest_.size(); ++c)
      longest_[c] =
          std::max(longest_[c], static_cast<std::uint64_t>(table_.columns[c].length[row]) *
                                    table_.columns[c].width[row]);
  }
  // Utterances per batch when every batch may hold the longest taken so far; at least one.
  std::size_t value() const {
    std::uint64_t limit = std::numeric_limits<std::uint32_t>::max();
    if (settings_.batch_bins) {
      std::uint64_t each = 0;
      for (const auto longest : longest_) each += longest;
      limit = static_cast<std::uint64_t>(*settings_.batch_bins) / std::max<std::uint64_t>(each, 1);
    }
    if (settings_.batch_size)
      limit = std::min(limit, static_cast<std::uint64_t>(*settings_.batch_size));
    if (settings_.max_batch_size)
      limit = std::min(limit, static_cast<std::uint64_t>(*settings_.max_batch_size));
    return std::max(
        {limit, static_cast<std::uint64_t>(settings_.min_batch_size), std::uint64_t{1}});
  }

 private:
  const BatchSettings& settings_;
  const LengthTable& table_;
  std::vector<std::uint64_t> longest_;  // bins of the longest utterance, per column
};

// The longest run from `begin` that fits into `num_batches` batches.
std::size_t run_length(const BatchSettings& settings, const LengthTable& table, const Rows& rows,
                       std::size_t begin, std::size_t num_batches) {
  Capacity capacity(settings, table);
  std::size_t count = 0;
  while (begin + count < rows.size()) {
    capacity.take(rows[begin + count]);
    if (count + 1 > num_batches * capacity.value()) break;
    ++count;
  }
  return count;
}

std::vector<Bucket> make_buckets(const BatchSettings& settings, const LengthTable& table,
                                 const Rows& rows, std::size_t world) {
  std::vector<Bucket> buckets;
  const auto spread_ok = [&](std::size_t begin, std::size_t count) {
    if (table.columns.empty()) return true;
    const auto& length = table.columns[0].length;
    return length[rows[begin + count - 1]] <= (1 + settings.bucket_spread) * length[rows[begin]];
  };
  for (std::size_t begin = 0; begin < rows.size();) {
    std::size_t num_batches = world;
    std::size_t count = run_length(settings, table, rows, begin, num_batches);
    while (begin + count < rows.size()) {
      const std::size_t more = run_length(settings, table, rows, begin, num_batches * 2);
      if (!spread_ok(begin, more)) break;
      num_batches *= 2;
      count = more;
    }
    buckets.push_back({begin, count, num_batches});
    begin += count;
  }
  // The last bucket has what was left: as many groups as that needs.
  Bucket& last = buckets.back();
  Capacity capacity(settings, table);
  for (std::size_t i = last.begin; i < last.begin + last.count; ++i) capacity.take(rows[i]);
  const std::size_t per_group = world * capacity.value();
  last.num_batches = (last.count + per_group - 1) / per_group * world;
  // Fewer utterances than batches would leave ranks without work: borrow from the neighbour. A
  // neighbour's are shorter, so the budget holds.
  if (buckets.size() > 1 && last.count < last.num_batches) {
    Bucket& before = buckets[buckets.size() - 2];
    const std::size_t spare = before.count - std::min(before.count, before.num_batches);
    const std::size_t moved = std::min(spare, last.num_batches - last.count);
    before.count -= moved;
    last.begin -= moved;
    last.count += moved;
  }
  return buckets;
}

}  // namespace

BatchList sequential(const BatchSettings& settings, const LengthTable& table) {
  const auto size = static_cast<std::size_t>(settings.batch_size.value_or(1));
  BatchList out;
  Rows batch;
  for (std::uint32_t row = 0; row < table.size(); ++row) {
    batch.push_back(row);
    if (batch.size() < size) continue;
    out.add(batch);
    batch.clear();
  }
  if (!batch.empty() && (!settings.drop_last || out.size() == 0)) out.add(batch);
  return out;
}

BatchList bucketed(const BatchSettings& settings, const LengthTable& table, const DrawKey& key) {
  Rows rows(table.size());
  if (table.columns.empty())
    for (std::uint32_t row = 0; row < rows.size(); ++row) rows[row] = row;
  else
    rows = rows_by_length(table);
  const auto buckets = make_buckets(settings, table, rows, static_cast<std::size_t>(key.world));
  BatchList out;
  Rows batch;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const Bucket& bucket = buckets[b];
    const auto part = std::span(rows).subspan(bucket.begin, bucket.count);
    Random random({key.seed, key.epoch, hash64("bucket"), b});
    random.shuffle(part);
    for (std::size_t i = 0; i < bucket.num_batches; ++i) {
      const std::size_t from = i * part.size() / bucket.num_batches;
      const std::size_t to = (i + 1) * part.size() / bucket.num_batches;
      batch.assign(part.begin() + static_cast<std::ptrdiff_t>(from),
                   part.begin() + static_cast<std::ptrdiff_t>(to));
      if (!table.columns.empty()) {
        const auto& length = table.columns[0].length;
        const bool descending = settings.sort_in_batch == "descending";
        std::sort(batch.begin(), batch.end(), [&](auto x, auto y) {
          if (length[x] != length[y])
            return descending ? length[x] > length[y] : length[x] < length[y];
          return x < y;
        });
      }
      out.add(batch);
    }
  }
  return out;
}

}  // namespace tutti::data
