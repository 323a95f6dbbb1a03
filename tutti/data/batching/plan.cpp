#include "tutti/data/batching/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <queue>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/random.h"
#include "tutti/data/batching/plan_cache.h"

namespace tutti::data {
namespace {

std::uint64_t hash_bytes(const void* data, std::size_t num_bytes) {
  return hash64({static_cast<const char*>(data), num_bytes});
}

std::uint64_t hash_of(const std::vector<std::uint32_t>& values) {
  return hash_bytes(values.data(), values.size() * 4);
}

std::uint64_t bits(std::optional<std::int64_t> value) {
  return value ? static_cast<std::uint64_t>(*value) + 1 : 0;
}

// Deals one batch out over the ranks: rank r gets items r, r + world, ...
BatchList deal_out(const BatchList& list, std::size_t world) {
  BatchList out;
  out.reserve(list.size() * world, list.num_items());
  std::vector<std::uint32_t> part;
  for (std::size_t b = 0; b < list.size(); ++b)
    for (std::size_t r = 0; r < world; ++r) {
      part.clear();
      for (std::size_t i = r; i < list[b].size(); i += world) part.push_back(list[b][i]);
      out.add(part);
    }
  return out;
}

BatchList shuffle_groups(const BatchList& list, std::size_t world, Random random) {
  std::vector<std::uint32_t> order(list.size() / world);
  std::iota(order.begin(), order.end(), 0U);
  random.shuffle(order);
  BatchList out;
  out.reserve(list.size(), list.num_items());
  for (const auto group : order)
    for (std::size_t r = 0; r < world; ++r) out.add(list[group * world + r]);
  return out;
}

// ESPnet's shuffle_within_batch: all utterances shuffled, cut again at the first batch's size.
BatchList mix_utterances(const BatchList& list, Random random) {
  std::vector<std::uint32_t> items = list.items();
  random.shuffle(items);
  const std::size_t size = std::max<std::size_t>(list[0].size(), 1);
  BatchList out;
  for (std::size_t begin = 0; begin < items.size(); begin += size)
    out.add(std::span(items).subspan(begin, std::min(size, items.size() - begin)));
  return out;
}

std::size_t round_up(std::size_t n, std::size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

}  // namespace

EpochPlan deal_again(const EpochPlan& plan, std::uint64_t taken, int world, bool global_batches) {
  const auto old_world = static_cast<std::size_t>(plan.world());
  const auto new_world = static_cast<std::size_t>(world);
  BatchList left;
  if (global_batches) {
    std::vector<std::uint32_t> whole;
    for (std::uint64_t group = taken; group < plan.num_groups(); ++group) {
      whole.clear();
      for (int rank = 0; rank < plan.world(); ++rank)
        for (const std::uint32_t item : plan.batch(group, rank)) whole.push_back(item);
      left.add(whole);
    }
    return {deal_out(left, new_world), world};
  }
  for (std::size_t b = taken * old_world; b < plan.batches().size(); ++b)
    if (!plan.batches()[b].empty()) left.add(plan.batches()[b]);
  while (left.size() % new_world != 0) left.add({});
  return {std::move(left), world};
}

std::uint64_t PlanSettings::hash() const {
  const BatchSettings& b = batches;
  std::uint64_t folds = 0;
  for (const auto fold : b.fold_lengths)
    folds = hash_combine({folds, static_cast<std::uint64_t>(fold)});
  return hash_combine({hash64(b.type),
                       bits(b.batch_size),
                       bits(b.batch_bins),
                       static_cast<std::uint64_t>(b.min_batch_size),
                       bits(b.max_batch_size),
                       hash64(b.sort_in_batch),
                       hash64(b.sort_batch),
                       b.drop_last,
                       b.padding,
                       folds,
                       hash64(fmt::format("{} {} {}", b.upsampling_factor, b.dataset_scaling_factor,
                                          b.bucket_spread)),
                       static_cast<std::uint64_t>(b.min_length),
                       static_cast<std::uint64_t>(b.max_length),
                       shuffle,
                       shuffle_within_batch,
                       global_batches,
                       bits(num_iters_per_epoch),
                       static_cast<std::uint64_t>(sharding ? sharding->total_shards : 0),
                       seed,
                       static_cast<std::uint64_t>(world)});
}

std::uint64_t EpochPlan::hash() const noexcept {
  return hash_combine(
      {hash_of(batches_.items()), hash_of(batches_.ends()), static_cast<std::uint64_t>(world_)});
}

BatchList stretch(const BatchList& list, std::size_t target, const LengthTable& table) {
  if (list.size() >= target) return list;
  struct Candidate {
    double cost;  // of one piece
    std::size_t batch;
    bool operator<(
        const Candidate& other) const {  // ties: the later batch first, so the result is unique
      return cost != other.cost ? cost < other.cost : batch < other.batch;
    }
  };
  std::vector<std::size_t> pieces(list.size(), 1);
  std::vector<double> cost(list.size());
  std::priority_queue<Candidate> queue;
  for (std::size_t b = 0; b < list.size(); ++b) {
    cost[b] = table.columns.empty() ? static_cast<double>(list[b].size())
                                    : static_cast<double>(padded_bins(table, list[b]));
    if (list[b].size() > 1) queue.push({cost[b], b});
  }
  for (std::size_t count = list.size(); count < target && !queue.empty(); ++count) {
    const std::size_t b = queue.top().batch;
    queue.pop();
    if (++pieces[b] < list[b].size()) queue.push({cost[b] / static_cast<double>(pieces[b]), b});
  }
  BatchList out;
  out.reserve(target, list.num_items());
  for (std::size_t b = 0; b < list.size(); ++b)
    for (std::size_t i = 0; i < pieces[b]; ++i) {
      const std::size_t from = i * list[b].size() / pieces[b];
      const std::size_t to = (i + 1) * list[b].size() / pieces[b];
      out.add(list[b].subspan(from, to - from));
    }
  while (out.size() < target) out.add({});
  return out;
}

BatchPlan::BatchPlan(PlanSettings settings, std::shared_ptr<const Dataset> dataset)
    : settings_(std::move(settings)), dataset_(std::move(dataset)) {
  if (settings_.world < 1)
    throw ConfigError(fmt::format("world size: got {}, expected 1 or more", settings_.world));
  if (!settings_.sharding) return;
  const auto mistake =
      find_sharding_mistake(*settings_.sharding, settings_.world,
                            fmt::format("the world size of this run = {}", settings_.world));
  if (mistake)
    throw ConfigError("dataloader: " + mistake->key + ": " + mistake->what, mistake->fix);
  if (settings_.global_batches)
    throw ConfigError(
        "dataloader: batch_distribution: global cuts each batch over all ranks, total_shards gives "
        "ranks different data",
        "use batch_distribution: per_gpu with shards");
}

BatchPlan::BatchPlan(PlanSettings settings, LengthTable lengths, Categories categories)
    : BatchPlan(std::move(settings), std::shared_ptr<const Dataset>()) {
  std::call_once(input_once_, [&] {
    input_.num_filtered =
        filter_lengths(lengths, static_cast<std::uint64_t>(settings_.batches.min_length),
                       static_cast<std::uint64_t>(settings_.batches.max_length));
    input_.lengths = std::move(lengths);
    input_.categories = std::move(categories);
  });
}

const BatchPlan::Input& BatchPlan::input() const {
  std::call_once(input_once_, [this] {
    const BatchSettings& b = settings_.batches;
    input_.lengths =
        b.shape_files.empty()
            ? lengths_of(*dataset_)
            : read_shape_files({b.shape_files.begin(), b.shape_files.end()}, *dataset_);
    input_.num_filtered = filter_lengths(input_.lengths, static_cast<std::uint64_t>(b.min_length),
                                         static_cast<std::uint64_t>(b.max_length));
    if (input_.num_filtered > 0)
      log::info("{} utterances are outside min_length..max_length and left out, {} stay",
                input_.num_filtered, input_.lengths.size());
    if (!b.utt2category_file.empty())
      input_.categories = read_utt2category(b.utt2category_file, input_.lengths, *dataset_);
    else if (!b.category2utt_file.empty())
      input_.categories = read_category2utt(b.category2utt_file, input_.lengths, *dataset_);
  });
  return input_;
}

std::size_t BatchPlan::num_filtered() const { return input().num_filtered; }

std::uint64_t BatchPlan::fingerprint() const {
  const std::scoped_lock lock(mutex_);
  if (fingerprint_ != 0) return fingerprint_;
  std::uint64_t hash = settings_.hash();
  if (dataset_ != nullptr) {
    // Raw bytes, not parsed tables: a cached plan must not cost what it saves.
    hash = hash_combine({hash, dataset_->hash()});
    std::vector<std::string> files = settings_.batches.shape_files;
    files.push_back(settings_.batches.utt2category_file);
    files.push_back(settings_.batches.category2utt_file);
    for (const auto& file : files) {
      if (file.empty()) continue;
      const std::string content = read_file(file);
      hash = hash_combine({hash, hash_bytes(content.data(), content.size())});
    }
    if (settings_.batches.shape_files.empty())
      for (std::size_t i = 0; i < dataset_->size(); ++i)
        hash = hash_combine({hash, dataset_->num_samples(i)});
  } else {
    hash = hash_combine({hash, hash_of(input_.lengths.item)});
    for (const auto& column : input_.lengths.columns)
      hash = hash_combine({hash, hash_of(column.length), hash_of(column.width)});
    for (const auto& rows : input_.categories.rows) hash = hash_combine({hash, hash_of(rows)});
  }
  return fingerprint_ = hash == 0 ? 1 : hash;
}

EpochPlan BatchPlan::epoch(std::uint64_t epoch) const {
  if (settings_.cache_folder.empty()) return compute(epoch);
  const PlanCache cache(settings_.cache_folder);
  if (auto kept = cache.load(fingerprint(), epoch, settings_.world)) return std::move(*kept);
  EpochPlan plan = compute(epoch);
  cache.save(fingerprint(), epoch, plan);
  return plan;
}

EpochPlan BatchPlan::compute(std::uint64_t epoch) const {
  const BatchList rows = settings_.num_iters_per_epoch ? window(epoch) : full_pass(epoch);
  std::vector<std::uint32_t> items = rows.items();
  for (auto& item : items) item = input().lengths.item[item];
  return {BatchList::from_arrays(std::move(items), rows.ends()), settings_.world};
}

BatchList BatchPlan::batches_of(const LengthTable& table, const Categories& categories,
                                std::uint64_t epoch) const {
  // In a shard each rank is alone, so groups are single batches there.
  const int world = settings_.sharding || settings_.global_batches ? 1 : settings_.world;
  BatchList list =
      make_batches(settings_.batches, table, categories, {settings_.seed, epoch, world});
  if (settings_.shuffle_within_batch)
    list = mix_utterances(list, Random({settings_.seed, epoch, hash64("mix")}));
  return list;
}

BatchList BatchPlan::full_pass(std::uint64_t epoch) const {
  const auto world = static_cast<std::size_t>(settings_.world);
  const LengthTable& table = input().lengths;
  BatchList list;
  if (settings_.sharding) {
    list = sharded_pass(epoch);
  } else {
    list = batches_of(table, input().categories, epoch);
    list = settings_.global_batches ? deal_out(list, world)
                                    : stretch(list, round_up(list.size(), world), table);
  }
  if (settings_.shuffle)
    list = shuffle_groups(list, world, Random({settings_.seed, epoch, hash64("order")}));
  return list;
}

BatchList BatchPlan::sharded_pass(std::uint64_t epoch) const {
  const auto world = static_cast<std::size_t>(settings_.world);
  const int total = settings_.sharding->total_shards;
  const LengthTable& table = input().lengths;
  std::vector<std::vector<std::uint32_t>> rows(world);  // of the table, per rank
  std::vector<int> rank_of(static_cast<std::size_t>(total), -1);
  for (int r = 0; r < settings_.world; ++r)
    rank_of[static_cast<std::size_t>(shard_of(epoch, settings_.world, r, total))] = r;
  std::vector<std::uint32_t> place(table.size(), 0);  // row -> row within its shard
  for (std::uint32_t row = 0; row < table.size(); ++row) {
    const int rank = rank_of[table.item[row] % static_cast<std::uint32_t>(total)];
    if (rank < 0) continue;
    place[row] = static_cast<std::uint32_t>(rows[static_cast<std::size_t>(rank)].size());
    rows[static_cast<std::size_t>(rank)].push_back(row);
  }
  std::vector<BatchList> lists(world);
  std::vector<LengthTable> tables(world);
  std::size_t longest = 0;
  for (std::size_t r = 0; r < world; ++r) {
    if (rows[r].empty()) continue;  // fewer utterances than shards: this rank has empty batches
    tables[r] = table.rows(rows[r]);
    Categories part;
    for (const auto& all : input().categories.rows) {
      auto& kept = part.rows.emplace_back();
      for (const auto row : all)
        if (rank_of[table.item[row] % static_cast<std::uint32_t>(total)] == static_cast<int>(r))
          kept.push_back(place[row]);
      if (kept.empty()) part.rows.pop_back();
    }
    lists[r] = batches_of(tables[r], part, epoch);
    longest = std::max(longest, lists[r].size());
  }
  for (std::size_t r = 0; r < world; ++r) lists[r] = stretch(lists[r], longest, tables[r]);
  BatchList out;
  std::vector<std::uint32_t> batch;
  for (std::size_t g = 0; g < longest; ++g)
    for (std::size_t r = 0; r < world; ++r) {
      batch.clear();
      for (const auto local : lists[r][g]) batch.push_back(rows[r][local]);
      out.add(batch);
    }
  return out;
}

std::uint64_t BatchPlan::pass_size(std::uint64_t pass) const {
  // Passes repeat their sizes with the shard rotation; without shards all are equal.
  const std::uint64_t period =
      settings_.sharding
          ? static_cast<std::uint64_t>(settings_.sharding->total_shards / settings_.world)
          : 1;
  {
    const std::scoped_lock lock(mutex_);
    if (!pass_sizes_.empty()) return pass_sizes_[pass % period];
  }
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t p = 0; p < period; ++p)
    sizes.push_back(full_pass(p).size() / static_cast<std::size_t>(settings_.world));
  const std::scoped_lock lock(mutex_);
  pass_sizes_ = sizes;
  return pass_sizes_[pass % period];
}

BatchList BatchPlan::window(std::uint64_t epoch) const {
  const auto wanted = static_cast<std::uint64_t>(*settings_.num_iters_per_epoch);
  const auto world = static_cast<std::size_t>(settings_.world);
  const bool drawn = draws_utterances(settings_.batches);
  std::uint64_t pass = 0;
  std::uint64_t skip = 0;
  if (drawn) {
    // Every pass is a fresh draw, so windows need not join up: each epoch has draws of its own.
    pass = epoch << 20;
  } else {
    std::uint64_t period_groups = pass_size(0);
    std::uint64_t period = 1;
    if (settings_.sharding) {
      period = static_cast<std::uint64_t>(settings_.sharding->total_shards / settings_.world);
      for (std::uint64_t p = 1; p < period; ++p) period_groups += pass_size(p);
    }
    const std::uint64_t start = epoch * wanted;
    pass = start / period_groups * period;
    for (skip = start % period_groups; skip >= pass_size(pass); ++pass) skip -= pass_size(pass);
  }
  BatchList out;
  for (std::uint64_t have = 0; have < wanted; ++pass, skip = 0) {
    const BatchList list = full_pass(pass);
    const std::uint64_t groups = list.size() / world;
    for (std::uint64_t g = skip; g < groups && have < wanted; ++g, ++have)
      for (std::size_t r = 0; r < world; ++r) out.add(list[g * world + r]);
  }
  return out;
}

}  // namespace tutti::data
