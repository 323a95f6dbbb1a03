#include "tutti/data/loader.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/core/error.h"
#include "tutti/core/log.h"

namespace tutti::data {

Loader::Loader(LoaderSettings settings, std::shared_ptr<const Dataset> dataset, Prepare prepare,
               EpochPlan plan, int rank, PlanPosition position)
    : settings_(std::move(settings)),
      dataset_(std::move(dataset)),
      prepare_(std::move(prepare)),
      plan_(std::move(plan)),
      rank_(rank),
      epoch_(position.epoch),
      next_group_(position.group) {
  if (rank < 0 || rank >= plan_.world())
    throw InternalError(fmt::format("loader: rank {} of a plan for {} ranks", rank, plan_.world()));
  if (position.group > plan_.num_groups())
    throw DataError(
        fmt::format("resume at group {} of epoch {}, which has {} groups", position.group,
                    position.epoch, plan_.num_groups()),
        "the data or the batch settings changed since the checkpoint; start the epoch anew");
  claimed_ = taken_ = next_group_;
  const int workers = std::max(0, settings_.num_workers);
  window_ = static_cast<std::uint64_t>(
      std::max({settings_.prefetch > 0 ? settings_.prefetch : 2 * workers, workers, 1}));
  slots_.resize(window_);
  try {
    for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { work(); });
  } catch (...) {  // no more threads to be had: those that run must be joined before we go
    {
      const std::scoped_lock lock(mutex_);
      stopping_ = true;
    }
    room_.notify_all();
    for (auto& thread : threads_) thread.join();
    throw;
  }
}

Loader::~Loader() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  room_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void Loader::work() {
  for (;;) {
    std::uint64_t group = 0;
    {
      std::unique_lock lock(mutex_);
      room_.wait(lock, [&] {
        return stopping_ || claimed_ >= plan_.num_groups() || claimed_ < taken_ + window_;
      });
      if (stopping_ || claimed_ >= plan_.num_groups()) return;
      group = claimed_++;
    }
    Slot filled;
    filled.ready = true;
    try {
      filled.batch = make(group);
    } catch (...) {  // carried to the consumer, whatever it is
      filled.error = std::current_exception();
    }
    {
      const std::scoped_lock lock(mutex_);
      slots_[group % window_] = std::move(filled);
    }
    ready_.notify_one();
  }
}

namespace {

// Of what is wrong with an utterance, unless it says already what to do. Call inside a catch block only.
[[noreturn]] void throw_with_way_on(const Error& error) {
  const std::string what = error.what();
  if (dynamic_cast<const DataError*>(&error) == nullptr ||
      what.find("\n  fix: ") != std::string::npos)
    throw;
  throw DataError(what, "mend it, or leave it out: on_bad: skip under dataloader.train (or valid)");
}

}  // namespace

Batch Loader::make(std::uint64_t group) {
  const auto items = plan_.batch(group, rank_);
  std::vector<Sample> samples;
  samples.reserve(items.size());
  for (const std::uint32_t item : items) {
    {
      const std::scoped_lock lock(mutex_);
      if (stopping_) return {};  // nobody will look at it
    }
    try {
      Sample sample = dataset_->read(item);
      if (prepare_) {
        try {
          prepare_(sample, epoch_);
        } catch (const std::exception& error) {
          // Reading names the utterance itself; what runs after it may not.
          const std::string what = error.what();
          throw DataError(what.find(sample.uid) != std::string::npos ? what
                                                                     : sample.uid + ": " + what);
        }
      }
      samples.push_back(std::move(sample));
    } catch (const Error& error) {
      if (settings_.on_bad == OnBad::kStop) throw_with_way_on(error);
      const std::string uid = dataset_->uid(item);
      log::warning("skipping {}: {}", uid, error.what());
      const std::scoped_lock lock(mutex_);
      bad_.push_back({uid, error.what()});
    }
  }
  Batch batch = collate(std::move(samples), settings_.collate, settings_.allocate);
  batch.position = {epoch_, group};
  return batch;
}

std::optional<Batch> Loader::next() {
  const Clock& clock = Clock::system();
  const auto begin = clock.steady();
  if (!first_call_) first_call_ = begin;
  if (next_group_ >= plan_.num_groups()) {
    warn_if_slow();
    return std::nullopt;
  }
  Slot slot;
  if (threads_.empty()) {
    slot.batch = make(next_group_);
  } else {
    std::unique_lock lock(mutex_);
    Slot& ours = slots_[next_group_ % window_];
    ready_.wait(lock, [&] { return ours.ready; });
    slot = std::move(ours);
    ours = Slot{};
    ++taken_;
  }
  room_.notify_one();
  wait_s_ += Seconds(clock.steady() - begin).count();
  ++next_group_;
  if (slot.error) std::rethrow_exception(slot.error);
  return std::move(slot.batch);
}

double Loader::wait_fraction() const noexcept {
  if (!first_call_) return 0;
  const double elapsed = Seconds(Clock::system().steady() - *first_call_).count();
  return elapsed > 0 ? wait_s_ / elapsed : 0;
}

void Loader::warn_if_slow() const {
  const double fraction = wait_fraction();
  if (wait_s_ < 1.0 || fraction <= settings_.warn_wait_fraction) return;
  log::warning(
      "epoch {}: {:.0f} % of the time went into waiting for data ({:.1f} s); raise num_workers "
      "(now {}) or pack the data",
      epoch_, 100 * fraction, wait_s_, settings_.num_workers);
}

std::vector<BadUtterance> Loader::bad() const {
  const std::scoped_lock lock(mutex_);
  return bad_;
}

}  // namespace tutti::data
