// Reads, prepares and collates batches ahead of the training loop, in threads.
//
//   Loader loader({.num_workers = 4}, dataset, prepare, plan.epoch(3), rank, {.epoch = 3});
//   while (std::optional<Batch> batch = loader.next()) step(*batch);
//
// Batches come in the plan's order whatever the number of threads, and `prepare` draws its random
// numbers by (seed, epoch, utterance), so content does not depend on it either. At most `prefetch`
// batches are held ahead. next() is for one thread; the destructor stops the workers and waits for
// the utterance each is at. Threads and not processes (unlike torch): reading and FFTs hold no
// interpreter lock here, and a batch crosses no pipe.
//
// A failing utterance: with on_bad stop, next() throws its DataError (which names the utterance) in
// place of the batch; with skip, the batch goes on without it and bad() tells.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tutti/core/clock.h"
#include "tutti/data/collate.h"

namespace tutti::data {

enum class OnBad { kStop, kSkip };

struct BadUtterance {
  std::string uid;
  std::string reason;
};

struct LoaderSettings {
  int num_workers = 1;  // threads; 0: the caller's own, inside next()
  int prefetch = 0;     // batches held ahead; 0: two per worker
  OnBad on_bad = OnBad::kStop;
  CollateSettings collate;
  Allocator allocate = allocate_plain;
  // Above this part of the time spent waiting for data, the epoch ends with a warning.
  double warn_wait_fraction = 0.05;
};

// Turns a read sample into what is collated (augmentation, tokenising, features). Called from many
// threads at once. A throw makes the utterance a bad one.
using Prepare = std::function<void(Sample& sample, std::uint64_t epoch)>;

class Loader {
 public:
  // Begins at `position.group` of the plan for position.epoch; `prepare` may be empty.
  Loader(LoaderSettings settings, std::shared_ptr<const Dataset> dataset, Prepare prepare,
         EpochPlan plan, int rank, PlanPosition position);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Empty after the last group. After a throw the loader is spent.
  std::optional<Batch> next();

  std::uint64_t num_groups() const noexcept { return plan_.num_groups(); }
  // The position of the batch that next() will give: what a checkpoint keeps.
  PlanPosition position() const noexcept { return {epoch_, next_group_}; }
  // Seconds that next() has waited for data, and that part of the time since the first call.
  double wait_seconds() const noexcept { return wait_s_; }
  double wait_fraction() const noexcept;
  // Utterances skipped so far, in no particular order.
  std::vector<BadUtterance> bad() const;

 private:
  struct Slot {
    bool ready = false;
    Batch batch;
    std::exception_ptr error;
  };
  void work();
  Batch make(std::uint64_t group);
  void warn_if_slow() const;

  // Constant after construction.
  const LoaderSettings settings_;
  const std::shared_ptr<const Dataset> dataset_;
  const Prepare prepare_;
  const EpochPlan plan_;
  const int rank_;
  const std::uint64_t epoch_;
  std::uint64_t window_ = 0;  // slots: how far workers may run ahead

  // Touched only by the thread that calls next().
  std::uint64_t next_group_ = 0;
  double wait_s_ = 0;
  std::optional<Clock::TimePoint> first_call_;

  mutable std::mutex mutex_;
  std::condition_variable room_;   // a slot was freed, or we stop
  std::condition_variable ready_;  // a slot was filled
  std::vector<Slot> slots_;        // guarded by mutex_; group g lives in slot g % window_
  std::uint64_t claimed_ = 0;      // guarded by mutex_; the next group nobody works on
  std::uint64_t taken_ = 0;        // guarded by mutex_; groups before this were handed out
  bool stopping_ = false;          // guarded by mutex_
  std::vector<BadUtterance> bad_;  // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace tutti::data
