// What one micro-batch is, and where micro-batches come from.
//
// A Batch is named tensors plus the ids of its utterances, so that an error can say *which*
// utterances ran out of memory or gave a NaN. A DataSource is a function of (epoch, position): it
// keeps no iterator state, so resuming in the middle of an epoch is just opening it at a position.
//
//   auto stream = source.open({.epoch = 3, .batch = 120});
//   while (auto batch = stream->next()) model.training_step(*batch);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tutti::trainer {

struct Batch {
  std::map<std::string, at::Tensor> tensors;
  std::vector<std::string> utt_ids;
  double audio_seconds = 0;  // for throughput; 0: count items instead

  // Throws DataError naming the keys there are.
  const at::Tensor& operator[](const std::string& name) const;
  std::string describe_ids() const;  // "utt_7, utt_9 and 6 more"
};

// A part of an epoch: every one of `world_size` ranks took `batches` batches.
struct Taken {
  int world_size = 1;
  std::int64_t batches = 0;
};

// How far an epoch is consumed: what ranks of other numbers took of it (before the run was
// continued with today's), and after that `batch` batches by each of today's ranks.
struct Position {
  std::int64_t epoch = 0;
  std::int64_t batch = 0;
  std::vector<Taken> before = {};
};

// The batches of one rank in one epoch. Used by one thread; may prefetch with threads of its own.
class BatchStream {
 public:
  virtual ~BatchStream() = default;
  virtual std::optional<Batch> next() = 0;  // empty: the epoch is over for this rank
};

// Opens the batches of *this* rank.
class DataSource {
 public:
  virtual ~DataSource() = default;
  virtual std::unique_ptr<BatchStream> open(const Position& position) = 0;
  // Batches of this rank in an epoch; empty for a stream of unknown length.
  virtual std::optional<std::int64_t> num_batches(std::int64_t epoch) const = 0;
  // Of this rank, from a position to the epoch's end.
  virtual std::optional<std::int64_t> batches_left(const Position& position) const;
  // Equal on all ranks, or the ranks are not reading the same plan.
  virtual std::uint64_t plan_hash(std::int64_t epoch) const = 0;
  // Of the plan with which the epoch began: another one than before means other data or batches, and
  // the position in it means nothing.
  virtual std::uint64_t first_plan_hash(const Position& position) const {
    return plan_hash(position.epoch);
  }
};

// Batches held in memory, in a fixed global order; rank r takes r, r+W, r+2W, ...
class MemorySource final : public DataSource {
 public:
  MemorySource(std::vector<Batch> global_batches, int rank, int world_size);
  std::unique_ptr<BatchStream> open(const Position& position) override;
  std::optional<std::int64_t> num_batches(std::int64_t epoch) const override;
  std::optional<std::int64_t> batches_left(const Position& position) const override;
  std::uint64_t plan_hash(std::int64_t epoch) const override;

 private:
  std::vector<Batch> batches_;
  int rank_ = 0;
  int world_size_ = 1;
};

}  // namespace tutti::trainer
