// A worker of an asynchronous run: one thread that talks to the shared folder.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <future>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/units.h"
#include "tutti/parallel/async/claims.h"
#include "tutti/parallel/async/run.h"
#include "tutti/parallel/async/worker.h"
#include "tutti/parallel/folder/last_words.h"
#include "tutti/parallel/folder/place.h"
#include "tutti/parallel/run/run_state.h"
#include "tutti/parallel/worker/item_processes.h"

namespace tutti::parallel {
namespace fs = std::filesystem;
namespace {

using SteadyClock = std::chrono::steady_clock;

// Between two looks for work of a worker that has none.
std::chrono::milliseconds idle_pause(int n_workers) {
  return std::chrono::milliseconds(100) * std::max(1, n_workers / 16);
}

class AsyncLink {
 public:
  AsyncLink(WorkerState& state, const WorkerOptions& options)
      : state_(state),
        options_(options),
        folder_(async_folder(options.run_folder)),
        job_(AsyncJob::read(folder_)),
        item_timeout_s_(job_.spec.item_timeout_s),
        last_words_(worker_note_path(folder_, options.async_name)) {
    if (job_.generation != options.async_generation)
      throw IoError("this job was submitted for an earlier run in the folder");
    note_.name = options.async_name;
    note_.id = options.id;
    note_.process = ProcessIdentity::self();
    note_.supervisor = ProcessIdentity::parent();
    note_.started = Clock::system().unix_seconds();
    note_.phase = "building";
    if (const char* id = std::getenv("TUTTI_JOB_ID")) note_.job_id = id;
    beat();
    journal_ = std::make_unique<JournalWriter>(
        options.run_folder / "journal" / async_journal_name(note_.name), job_.fingerprint_hash,
        JournalOptions{});
    claims_ = std::make_unique<Claims>(options.run_folder, job_, note_.name, *journal_);
    for (const fs::path& place :
         {options.run_folder, options.run_folder / "journal" / async_journal_name(note_.name)})
      places_.emplace_back(place);
  }

  int run() {
    if (read_manifest(options_.run_folder).value("state", "") == "stopped" &&
        !stop_requested(folder_))  // all others had left before we came
      update_manifest(options_.run_folder, "running", count_items(options_.run_folder));
    look_around();
    state_.push_job(1, job_.spec.to_json().dump());
    while (!state_.finished()) {
      pollfd fds[] = {{state_.event_fd(), POLLIN, 0}, {options_.term_fd, POLLIN, 0}};
      ::poll(fds, 2, static_cast<int>(pause().count()));
      take_output();
      if (fds[1].revents != 0) leave_on_signal();
      if (term_at_ && since(*term_at_) > options_.term_grace_s) {
        log::warning("the item takes longer than {} after SIGTERM; it goes to another worker",
                     format_duration(options_.term_grace_s));
        leave_now(go());
      }
      if (options_.drain_at > 0 && Clock::system().unix_seconds() >= options_.drain_at)
        leave("the job's time is nearly up", true);
      watch_running_item();
      if (since(last_beat_) >= job_.beat_s) look_around();
      // Idle workers look less often the more of them there are, to spare the file server.
      if (ready_ && leaving_.empty() &&
          (!claims_->held().empty() || SteadyClock::now() >= next_look_))
        get_work();
    }
    take_output();
    return go();
  }

  // The folder is gone, renamed or full: what we hold is free for others, and why we left is known to
  // who finds nobody there. In our own note, as no new file may come to be.
  void give_up(const std::exception& error) noexcept try {
    const auto* known = dynamic_cast<const Error*>(&error);
    note_.error = first_line(error.what());
    note_.exit_code = static_cast<int>(known != nullptr ? known->exit_code() : ExitCode::kIo);
    note_.left = true;
    ++note_.beat;
    last_words_.say(note_.to_text());
  } catch (const std::exception&) {  // then nothing is said
  }

 private:
  static double since(SteadyClock::time_point then) {
    return std::chrono::duration<double>(SteadyClock::now() - then).count();
  }

  std::chrono::milliseconds pause() const {
    std::chrono::milliseconds pause(static_cast<int>(job_.beat_s * 1000));
    if (item_timeout_s_ > 0 || options_.memory_limit > 0)
      pause = std::min(pause, std::chrono::milliseconds(25));
    return ready_ && claims_->held().empty() ? std::min(pause, idle_pause(job_.settings.n_workers))
                                             : pause;
  }

  void beat() {
    last_beat_ = SteadyClock::now();
    ++note_.beat;
    note_.unix_seconds = Clock::system().unix_seconds();
    note_.rss_bytes = tree_memory_bytes(::getpid());
    write_file_quickly(worker_note_path(folder_, note_.name), note_.to_text());
  }

  // Twice a second: say that we live, and see what has become of our claims and the run.
  void look_around() {
    check_places();
    beat();
    journal_->flush();
    for (const std::uint64_t lease : claims_->drop_lost())
      state_.take_back(lease, ~std::uint64_t{0});
    const auto stop = stop_requested(folder_);
    if (!stop) return;
    if (stop->now) leave_now(0);
    leave(stop->reason, false);
  }

  // What was recorded and taken away since is lost: the others stop too, and say why.
  void check_places() const {
    try {
      for (const Place& place : places_) place.check();
    } catch (const IoError& error) {
      std::error_code none;  // with the whole folder gone there is nobody to tell
      if (fs::exists(folder_ / "job.json", none))
        request_stop(folder_,
                     {.exit_code = static_cast<int>(ExitCode::kIo), .reason = error.what()});
      throw;
    }
  }

  void take_output() {
    for (const std::string& bytes : state_.take_output()) {
      const auto message = wire::decode(bytes);
      if (!message) throw InternalError("a worker does not understand itself");
      if (std::holds_alternative<wire::EnvReady>(*message)) {
        ready_ = true;
        note_.phase = "ready";
        beat();
      } else if (const auto* failed = std::get_if<wire::EnvFailed>(&*message)) {
        note_.error = failed->error;
        exit_code_ = static_cast<int>(failed->exit_code);
        leave("the env could not be built", false);
      } else if (const auto* results = std::get_if<wire::Results>(&*message)) {
        for (const wire::ResultRecord& record : results->records) {
          if (!claims_->record(results->lease, record)) continue;
          ++note_.items;
          note_.busy_s += static_cast<double>(record.run_ns) * 1e-9;
          if (record.status == wire::ItemStatus::kFailed) on_failure(record.index, record.payload);
        }
      }
    }
    journal_->flush();
  }

  void on_failure(std::uint64_t index, std::string_view error) {
    if (job_.settings.on_error != "stop") return;
    request_stop(folder_, {.exit_code = static_cast<int>(ExitCode::kItemsFailed),
                           .reason = item_failure(item_name(index), error)});
    leave("an item failed", false);
  }

  // As results.jsonl has it.
  std::string item_name(std::uint64_t index) const {
    return to_json_line(make_item_of(job_.item_names, job_.indices)(index));
  }

  // While one piece runs the next is claimed, unless items are so long that others should have it, or
  // one that has cost a worker is held: its result is on disk before anything else can kill us, or it
  // would be blamed for its successor.
  void get_work() {
    const double item_s = note_.items == 0 ? 1 : note_.busy_s / static_cast<double>(note_.items);
    while (leaving_.empty() &&
           (claims_->held().empty() ||
            (claims_->held().size() < 2 && claims_->held().front().strikes == 0 && item_s < 1 &&
             state_.num_queued() <= 1))) {
      const auto found = claims_->next();
      if (!found) break;
      for (const auto& [index, error] : found->failed) on_failure(index, error);
      for (const wire::Lease& lease : found->leases) state_.push_lease(lease);
    }
    if (!claims_->held().empty() || !leaving_.empty()) {
      note_.phase = "ready";
      return;
    }
    note_.phase = "idle";
    next_look_ = SteadyClock::now() + idle_pause(job_.settings.n_workers);
    switch (claims_->try_merge()) {
      case Claims::Merge::kNotYet:
        return;
      case Claims::Merge::kOurs:
        if (claims_->merge_was_begun()) remove_leftovers(options_.run_folder);
        merge();
        claims_->merged();
        is_last_ = true;
        [[fallthrough]];
      case Claims::Merge::kDone:
        over_ = true;
        leave("the run is over", false);
    }
  }

  // Others take the merge over when our heart stops, so it beats on; a finisher may take long.
  void merge() {
    note_.phase = "merging";
    beat();
    auto merging =
        std::async(std::launch::async, [this] { write_async_results(options_.run_folder, job_); });
    while (merging.wait_for(std::chrono::duration<double>(job_.beat_s)) !=
           std::future_status::ready)
      beat();
    try {
      merging.get();
    } catch (const IoError&) {  // we stood still, and our files were taken for leftovers
      if (!claims_->lost_merge()) throw;
    }
  }

  void watch_running_item() {
    if (item_timeout_s_ <= 0 && options_.memory_limit == 0) return;
    const auto running = state_.running();
    if (!running) return;
    if (item_timeout_s_ > 0 && since(running->since) > item_timeout_s_) {
      take_output();
      const std::string text =
          "took longer than item_timeout = " + format_duration(item_timeout_s_);
      if (claims_->fail_running(running->lease, running->index, text))
        on_failure(running->index, text);
      leave_now(kRestartMe);
    }
    if (options_.memory_limit == 0) return;
    const std::uint64_t used = tree_memory_bytes(::getpid(), options_.memory_limit);
    if (used <= options_.memory_limit) return;
    take_output();
    const std::string text = "the worker used " + format_bytes(used) +
                             ", more than memory_limit = " + format_bytes(options_.memory_limit);
    log::warning("item {}: {}; the worker starts anew", running->index, text);
    if (claims_->strike(running->lease, running->index, text)) on_failure(running->index, text);
    leave_now(kRestartMe);
  }

  void leave_on_signal() {
    clear_wake_fd(options_.term_fd);
    if (!term_at_) term_at_ = SteadyClock::now();
    leave("SIGTERM", false);
  }

  // In order: the running item is finished, what was not begun is given back.
  void leave(const std::string& why, bool send_successor) {
    if (!leaving_.empty()) return;
    leaving_ = why;
    successor_ = send_successor;
    log::info("leaving: {}", why);
    state_.stop();
  }

  // The compute thread may be inside an item for hours.
  [[noreturn]] void leave_now(int code) {
    claims_->release_all();
    note_.left = true;
    beat();
    std::fflush(nullptr);
    ::_exit(code);
  }

  bool nobody_else_works() const {
    const auto state = async_state(options_.run_folder, false);
    return state && !state->coming_back &&
           std::all_of(state->workers.begin(), state->workers.end(),
                       [](const WorkerNote& note) { return note.leaving; });
  }

  int go() {
    claims_->release_all();
    if (successor_ && note_.items > 0 && options_.id % workers_per_job(job_.settings) == 0 &&
        !claims_->all_done()) {
      try {
        submit_successor(options_.run_folder, job_);
      } catch (const Error& error) {  // the others go on; when none is left, the folder says so
        log::error("cannot submit a successor: {}", error.what());
      }
    }
    // Gone only when the last word is said: between the two a run would look dead.
    note_.leaving = true;
    beat();
    if (!over_ && !successor_) {
      is_last_ = nobody_else_works();
      if (is_last_) mark_async_stopped(options_.run_folder, job_);
    }
    note_.left = true;
    beat();
    if (is_last_ && (over_ || stop_requested(folder_)))
      take_out_of_queue(options_.run_folder, job_);
    return over_ ? 0 : exit_code_;
  }

  WorkerState& state_;
  const WorkerOptions& options_;
  const fs::path folder_;
  const AsyncJob job_;
  const double item_timeout_s_;
  std::unique_ptr<JournalWriter> journal_;
  std::vector<Place> places_;  // what must still be there when something is written
  std::unique_ptr<Claims> claims_;
  WorkerNote note_;
  const LastWords last_words_;  // over the note
  SteadyClock::time_point last_beat_;
  SteadyClock::time_point next_look_{};  // for work, while there is none
  bool ready_ = false;
  std::string leaving_;  // why; empty: we stay
  std::optional<SteadyClock::time_point> term_at_;
  bool successor_ = false;
  bool over_ = false;
  bool is_last_ = false;  // what is left to be said and done for the run is ours
  int exit_code_ = 0;
};

}  // namespace

int run_async_link(WorkerState& state, const WorkerOptions& options) {
  std::optional<AsyncLink> link;
  try {
    return link.emplace(state, options).run();
  } catch (const std::exception& error) {
    if (link) link->give_up(error);
    log::error("worker {}: {}", options.id, error.what());
    std::fflush(nullptr);
    ::_exit(static_cast<int>(ExitCode::kIo));
  }
}

}  // namespace tutti::parallel
