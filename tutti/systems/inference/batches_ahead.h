// Batches of samples by number, read before they are asked for; and where the model can, the next one is
// begun while this one is searched: on a GPU the encoder works beside the search.
//
//   BatchesAhead batches(read, model);
//   batches.expect(this_batch_and_the_next);
//   auto batch = batches.take(this_batch);
//   model->run(batch.samples, std::move(batch.begun));
//
// expect() and take() are for one thread. `read` is called from several, model->begin() from one.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "tutti/systems/inference/read_ahead.h"
#include "tutti/systems/item_model.h"

namespace tutti::systems {

class BatchesAhead {
 public:
  struct Batch {
    std::vector<std::uint64_t> indices;
    std::vector<data::Sample> samples;
    std::shared_ptr<void> begun;  // null: nothing is
  };

  BatchesAhead(ReadAhead::Read read, std::shared_ptr<ItemModel> model);
  ~BatchesAhead();
  BatchesAhead(const BatchesAhead&) = delete;
  BatchesAhead& operator=(const BatchesAhead&) = delete;

  // The items of this batch, then those of the next.
  void expect(std::span<const std::uint64_t> indices);
  // Throws what reading threw.
  Batch take(std::span<const std::uint64_t> indices);

 private:
  struct Wanted {
    std::vector<std::uint64_t> indices;
    ReadAhead::Claim samples;
  };
  void work();
  std::optional<Batch> take_begun(std::span<const std::uint64_t> indices);
  std::optional<Batch> await_next();
  void begin_next(std::span<const std::uint64_t> taken);

  const std::shared_ptr<ItemModel> model_;
  ReadAhead samples_;
  std::vector<std::uint64_t> expected_;  // until the one after this batch is begun
  std::vector<std::uint64_t> next_;      // what the thread was given
  int num_in_vain_ = 0;                  // batches that were begun and not asked for

  std::mutex mutex_;
  std::condition_variable changed_;
  // guarded by mutex_
  std::optional<Wanted> wanted_;
  bool is_busy_ = false;
  std::optional<Batch> ready_;  // of next_; none: it could not be read
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tutti::systems
