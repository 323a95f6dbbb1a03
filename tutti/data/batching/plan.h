// The batches of every epoch and rank: a pure function of (seed, epoch, utterances, settings,
// world).
//
//   BatchPlan plan(settings, dataset);                 // reads shape files when first needed
//   EpochPlan epoch = plan.epoch(3);
//   for (std::uint64_t g = start; g < epoch.num_groups(); ++g) use(epoch.batch(g, rank));
//
// A *group* is one training step: `world` batches, one per rank, of similar length. All ranks have
// the same number of groups by construction, and no batch is dropped to get there: when the list of
// batches is not a multiple of the world size, the largest ones are cut in two until it is (budgets
// hold, since batches only shrink). Only when there are fewer utterances than ranks does a rank get
// an empty batch (weight 0). So each utterance is in exactly one batch of an epoch, at any world
// size; a position is (epoch, group), and resuming needs nothing else.
//
// With `total_shards`, an epoch is the shards that shard_of() gives the ranks, each batched alone.
// With `num_iters_per_epoch`, epochs are windows of that many groups over the stream of full
// passes.
//
// Thread-safe. Throws ConfigError, DataError. Why a plan and not an iterator with state: resume,
// agreement between ranks and tests all become comparisons of values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "tutti/data/batching/sampler.h"
#include "tutti/data/batching/shard.h"

namespace tutti::data {

struct PlanPosition {
  std::uint64_t epoch = 0;
  std::uint64_t group = 0;
  bool operator==(const PlanPosition&) const = default;
};

struct PlanSettings {
  BatchSettings batches;
  bool shuffle = false;  // groups, every epoch anew
  bool shuffle_within_batch =
      false;  // utterances too: lengths no longer match, budgets no longer hold
  bool global_batches =
      false;  // batch_distribution: global; each batch is dealt out over the ranks
  std::optional<std::int64_t> num_iters_per_epoch;  // groups
  std::optional<Sharding> sharding;
  std::uint64_t seed = 0;
  int world = 1;
  std::filesystem::path cache_folder;  // empty: plans are not kept on disk

  std::uint64_t hash() const;  // of everything that decides batches
};

// One epoch's batches for all ranks; items are indices into the dataset.
class EpochPlan {
 public:
  EpochPlan() = default;
  EpochPlan(BatchList batches, int world) : batches_(std::move(batches)), world_(world) {}
  std::uint64_t num_groups() const noexcept {
    return batches_.size() / static_cast<std::size_t>(world_);
  }
  int world() const noexcept { return world_; }
  // REQUIRES: group < num_groups(), 0 <= rank < world().
  std::span<const std::uint32_t> batch(std::uint64_t group, int rank) const noexcept {
    return batches_[group * static_cast<std::size_t>(world_) + static_cast<std::size_t>(rank)];
  }
  std::size_t num_items() const noexcept { return batches_.num_items(); }
  const BatchList& batches() const noexcept { return batches_; }
  // Equal on all ranks or the run must not start: they would train on different plans.
  std::uint64_t hash() const noexcept;

 private:
  BatchList batches_;  // group-major: batch of (g, r) is number g * world + r
  int world_ = 1;
};

class BatchPlan {
 public:
  // Checks sharding against the world at once; reads files when the first epoch is asked for.
  BatchPlan(PlanSettings settings, std::shared_ptr<const Dataset> dataset);
  // For lengths that are at hand already.
  BatchPlan(PlanSettings settings, LengthTable lengths, Categories categories = {});

  EpochPlan epoch(std::uint64_t epoch) const;
  const PlanSettings& settings() const noexcept { return settings_; }
  // Of everything the plan depends on, including the content of shape files.
  std::uint64_t fingerprint() const;
  // Utterances left out by min_length and max_length.
  std::size_t num_filtered() const;

 private:
  struct Input {
    LengthTable lengths;
    Categories categories;
    std::size_t num_filtered = 0;
  };
  const Input& input() const;
  EpochPlan compute(std::uint64_t epoch) const;
  BatchList full_pass(std::uint64_t epoch) const;  // rows, group-major, in shuffled order
  BatchList batches_of(const LengthTable& table, const Categories& categories,
                       std::uint64_t epoch) const;
  BatchList sharded_pass(std::uint64_t epoch) const;
  BatchList window(std::uint64_t epoch) const;
  std::uint64_t pass_size(std::uint64_t pass) const;  // groups

  const PlanSettings settings_;
  const std::shared_ptr<const Dataset> dataset_;
  mutable std::once_flag input_once_;
  mutable Input input_;  // written once under input_once_
  mutable std::mutex mutex_;
  mutable std::vector<std::uint64_t> pass_sizes_;  // guarded by mutex_; one period of passes
  mutable std::uint64_t fingerprint_ = 0;          // guarded by mutex_; 0: not computed
};

// What is left of an epoch after `taken` groups, for another number of ranks: whole batches in order,
// the last group filled with empty ones. `global_batches`: a group is one batch, dealt out anew.
EpochPlan deal_again(const EpochPlan& plan, std::uint64_t taken, int world, bool global_batches);

// Cuts the costliest batches until there are `target`; the rest is filled with empty ones.
BatchList stretch(const BatchList& list, std::size_t target, const LengthTable& table);

}  // namespace tutti::data
