#include "tutti/parallel/client.h"

#include <unistd.h>

#include <algorithm>
#include <unordered_set>

#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/core/log.h"
#include "tutti/parallel/run/engine.h"
#include "tutti/parallel/run/recent_rate.h"
#include "tutti/parallel/run/run_plan.h"
#include "tutti/parallel/wire/ranges.h"
#include "tutti/parallel/wire/signals.h"
#include "tutti/parallel/worker/worker.h"

namespace tutti::parallel {

Indices::Indices(std::uint64_t first, std::uint64_t count)
    : first_(first), count_(count), bound_(first + count) {}

Indices::Indices(std::vector<std::uint64_t> list) : list_(std::move(list)) {
  std::unordered_set<std::uint64_t> seen;
  for (const std::uint64_t index : list_) {
    if (!seen.insert(index).second)
      throw ConfigError("index " + std::to_string(index) + " is in the list twice");
    bound_ = std::max(bound_, index + 1);
  }
}

std::vector<wire::IndexRange> Indices::ranges() const {
  if (is_range())
    return count_ == 0 ? std::vector<wire::IndexRange>{}
                       : std::vector<wire::IndexRange>{{first_, count_}};
  std::vector<wire::IndexRange> ranges;
  for (const std::uint64_t index : list_) wire::append_range(ranges, {index, 1});
  return ranges;
}

namespace {

// A worker that is a thread of ours.
void be_a_worker(const WorkerLaunch& launch, int id, double death_timeout_s) {
  run_worker({.run_folder = launch.run_folder,
              .id = id,
              .death_timeout_s = death_timeout_s,
              .own_process = false});
}

}  // namespace

Client::Client(ParallelSettings settings, ClientOptions options)
    : engine_(std::make_unique<Engine>(std::move(settings), std::move(options), be_a_worker)),
      owner_(::getpid()) {}
Client::~Client() {
  // A forked child has no engine thread, and the workers are not its own.
  if (::getpid() != owner_) static_cast<void>(engine_.release());
}

void Client::start_workers() { engine_->start_workers(); }
const ParallelSettings& Client::settings() const noexcept { return engine_->settings(); }
const std::filesystem::path& Client::run_folder() const noexcept { return engine_->run_folder(); }
std::string Client::endpoint() const { return engine_->endpoint(); }
std::filesystem::path Client::large_result(std::string_view name) const {
  return engine_->run_folder() / ".tutti" / "large" / std::filesystem::path(name).filename();
}

RunReport Client::run(const JobSpec& job, const RunRequest& request,
                      const std::function<void(const Outcome&)>& on_outcome) {
  const RunOptions& options = request.options;
  const ParallelSettings& settings = engine_->settings();
  RunPlan plan = make_plan(settings, job, options,
                           request.work.empty() ? request.indices.ranges() : request.work);
  ScheduleOptions schedule_options;
  schedule_options.max_retries = plan.max_retries;
  schedule_options.batch_size = plan.spec.batch_size;
  schedule_options.speculate = options.speculate;
  schedule_options.first_guess_seconds = engine_->item_seconds(job_key(plan.spec));
  TimeLeft left(plan.work, options.cost);
  auto run = std::make_shared<RunState>(
      plan.spec, Schedule(std::move(plan.work), request.indices.bound(), schedule_options),
      options.max_buffered_bytes);
  run->spec_json = plan.spec.to_json().dump();
  run->on_error = plan.on_error;
  run->total = run->schedule.num_unfinished();

  std::optional<SignalWatch> signals;
  if (options.handle_signals) signals.emplace();
  // If the callback throws, the engine must let go of the run before we do.
  struct Abandon {
    Engine& engine;
    bool over = false;
    ~Abandon() {
      if (!over) engine.abandon();
    }
  } guard{*engine_};

  engine_->begin(run);
  OutcomeBatch batch;
  auto last_tick = std::chrono::steady_clock::now();
  for (bool over = false; !over;) {
    if (run->pop(batch, std::chrono::milliseconds(50), over))
      for (const Outcome& outcome : batch.outcomes) {
        left.done(outcome.index);
        on_outcome(outcome);
        if (options.on_outcome) options.on_outcome(outcome);
      }
    if (const int count = signals ? signals->count() : 0; count > 0) {
      const bool is_first = run->stop.load() == StopRequest::kNone;
      if (is_first) run->stop_by_user = signals->by_user();
      if (count > 1) {  // perhaps both came since the last look
        run->stop = StopRequest::kNow;
      } else if (is_first) {
        run->stop = StopRequest::kDrain;
        log::info("stopping: running items are finished; {} again to stop now",
                  signals->by_user() ? "press Ctrl-C" : "send the signal");
      }
    }
    const auto now = std::chrono::steady_clock::now();
    if (request.on_tick && !over && now - last_tick > std::chrono::milliseconds(100)) {
      last_tick = now;
      RunReport report = run->latest_report();
      left.tell(report);
      request.on_tick(report, false);
    }
  }
  guard.over = true;
  RunReport report = run->latest_report();
  left.tell(report);
  if (request.on_tick) request.on_tick(report, true);
  try {
    if (run->error()) std::rethrow_exception(run->error());
  } catch (const FailedItem& item) {
    throw TaskError(
        item_failure(options.item_of ? to_json_line(options.item_of(item.index))
                                     : std::to_string(item.index),
                     item.error),
        "mend it and run the same command again: with an output folder finished items are kept; "
        "or go on without it: parallel.on_error=skip");
  }
  return report;
}

}  // namespace tutti::parallel
