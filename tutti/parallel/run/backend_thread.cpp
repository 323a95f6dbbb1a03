#include "tutti/parallel/run/backend_thread.h"

#include <atomic>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/wake_fd.h"

namespace tutti::parallel {

using namespace std::chrono_literals;

namespace {

// A look at the jobs that close() has ended: nothing to report, and no failure of the scheduler's.
// Not an Error, so that no backend takes it for one.
struct LookEnded {};

}  // namespace

// Runs the backend's commands so that close() can end the one under way and has the last words
// done quickly.
class BackendThread::Runner final : public CommandRunner {
 public:
  explicit Runner(CommandRunner& runner) : runner_(runner) {}
  CommandResult run(const Command& command) override {
    Command own = command;
    if (looking && closing_) throw LookEnded{};
    if (closing_)
      own.timeout = own.timeout == 0ms ? kLastWords : std::min(own.timeout, kLastWords);
    else
      own.stop_fd = stop_.fd();
    CommandResult result = runner_.run(own);
    if (looking && closing_ && !result.ok()) throw LookEnded{};
    return result;
  }
  bool looking = false;  // side thread: inside Backend::poll
  void stop() noexcept {
    closing_ = true;
    stop_.set();
  }

 private:
  static constexpr std::chrono::milliseconds kLastWords = 10s;
  CommandRunner& runner_;
  WakeFd stop_;
  std::atomic<bool> closing_{false};
};

BackendThread::BackendThread(const Make& make, CommandRunner& runner, Mailbox& mailbox,
                             Options options)
    : options_(std::move(options)),
      mailbox_(mailbox),
      runner_(std::make_unique<Runner>(runner)),
      backend_(make(*runner_)),
      thread_(std::make_unique<SideThread>()) {
  if (options_.keep_record) thread_->post([this] { take_over(); });
}

namespace {

void warn_of_left_over(const std::exception& error) {
  log::warning("cannot end what an earlier driver has left: {}", error.what());
}

}  // namespace

// What cannot be ended now stays on record, beside our own jobs.
void BackendThread::take_over() noexcept try {
  earlier_ = JobRecord::read(options_.run_folder);
  if (earlier_->life.empty()) return;
  const LeftOver jobs = end_earlier_jobs();
  noted_ = jobs.left;
  std::error_code ignored;  // it would only be read once more
  if (jobs.all_gone()) std::filesystem::remove(JobRecord::path(options_.run_folder), ignored);
} catch (const std::exception& error) {
  warn_of_left_over(error);
}

LeftOver BackendThread::end_earlier_jobs() {
  LeftOver jobs = earlier_->end_jobs(options_.run_folder, *runner_);
  earlier_->job_ids = jobs.left;
  if (jobs.all_gone()) earlier_ = JobRecord{};
  return jobs;
}

// The record is ours by now: forget_own() writes what is left into it.
void BackendThread::end_earlier_jobs_again() noexcept try {
  if (!earlier_->life.empty()) end_earlier_jobs();
} catch (const std::exception& error) {
  warn_of_left_over(error);
}

BackendThread::~BackendThread() { close(); }

void BackendThread::note(std::vector<std::string> job_ids) {
  if (!options_.keep_record || (job_ids == noted_ && !noted_.empty())) return;
  noted_ = std::move(job_ids);
  try {
    JobRecord{options_.settings, options_.life, noted_}.write(options_.run_folder);
  } catch (const Error& error) {
    log::warning("cannot note the jobs of this run: {}", error.what());
  }
}

void BackendThread::submit(int n, std::vector<std::string> avoid,
                           std::function<void(const Submitted&)> then) {
  thread_->post([this, n, avoid = std::move(avoid), then = std::move(then)] {
    note(noted_);  // our life is on record before the scheduler hears of us
    Submitted answer;
    try {
      backend_->avoid(avoid);
      answer.jobs = backend_->submit(n);
    } catch (const SchedulerUnreachable&) {
      answer.error = std::current_exception();
      answer.unreachable = true;
    } catch (const std::exception&) {
      answer.error = std::current_exception();
    }
    std::vector<std::string> ids = noted_;
    for (const JobStatus& job : answer.jobs) ids.push_back(job.job_id);
    note(std::move(ids));
    mailbox_.post([then, answer = std::move(answer)] { then(answer); });
  });
}

void BackendThread::look(std::function<void(const std::vector<JobStatus>&)> then) {
  if (std::exchange(looking_, true)) return;
  thread_->post([this, then = std::move(then)] {
    std::vector<JobStatus> jobs;
    runner_->looking = true;
    try {
      jobs = backend_->poll();
    } catch (const LookEnded&) {
    } catch (const std::exception& error) {  // whoever cannot be asked says nothing of our jobs
      log::warning("cannot ask for the state of our jobs: {}", error.what());
    }
    runner_->looking = false;
    mailbox_.post([this, then, jobs = std::move(jobs)] {
      looking_ = false;
      then(jobs);
    });
  });
}

void BackendThread::cancel(std::vector<std::string> job_ids) {
  thread_->post([this, job_ids = std::move(job_ids)] { backend_->cancel(job_ids); });
}

void BackendThread::adopt(std::vector<JobStatus> jobs) {
  thread_->post([this, jobs = std::move(jobs)] { backend_->adopt(jobs); });
}

void BackendThread::forget_own() noexcept try {
  std::error_code ignored;  // it would only be read once more
  if (earlier_ && !earlier_->life.empty())
    earlier_->write(options_.run_folder);
  else
    std::filesystem::remove(JobRecord::path(options_.run_folder), ignored);
} catch (const std::exception& error) {
  log::warning("cannot note the jobs of an earlier run: {}", error.what());
}

void BackendThread::close() noexcept {
  if (!thread_) return;
  runner_->stop();
  thread_->drop_queued();
  thread_->post([this] {
    if (options_.keep_record && !earlier_)
      take_over();  // dropped with the rest of the queue
    else if (options_.keep_record)
      end_earlier_jobs_again();
    const bool all_gone = backend_->cancel();
    backend_.reset();
    if (options_.keep_record && all_gone) forget_own();
  });
  thread_.reset();
}

}  // namespace tutti::parallel
