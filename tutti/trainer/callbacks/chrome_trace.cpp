// Every torch operation of some steps, as chrome://tracing and ui.perfetto.dev read it. On a GPU these
// are the times at which the host queued the work.
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <mutex>

#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/log.h"
#include "tutti/core/status.h"
#include "tutti/trainer/callbacks/callback.h"

namespace tutti::trainer {
namespace {

double now_us() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Event {
  std::string name;
  double start_us = 0;
  double end_us = 0;
  std::uint64_t thread = 0;
};

// torch takes plain functions, so what they fill is global; one trace at a time.
struct Recording {
  std::mutex mutex;
  std::vector<Event> events;  // guarded by mutex
};
Recording& recording() {
  static Recording instance;
  return instance;
}

struct Started final : at::ObserverContext {
  double start_us = now_us();
};

std::unique_ptr<at::ObserverContext> operation_begins(const at::RecordFunction&) {
  return std::make_unique<Started>();
}

void operation_ends(const at::RecordFunction& function, at::ObserverContext* context) {
  const double end_us = now_us();
  const auto* started = static_cast<Started*>(context);
  if (started == nullptr) return;
  const std::lock_guard lock(recording().mutex);
  recording().events.push_back({function.name(), started->start_us, end_us, function.threadId()});
}

class ChromeTrace final : public Callback {
 public:
  explicit ChromeTrace(TraceOptions options) : options_(std::move(options)) {}
  ~ChromeTrace() override { finish(); }

  void on_step(const Moment& moment) override {
    if (started_ && ++steps_ >= options_.num_steps) return finish();
    if (started_ || done_ || moment.step < options_.first_step) return;
    started_ = true;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(operation_begins, operation_ends)
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                     at::RecordScope::TORCHSCRIPT_FUNCTION, at::RecordScope::USER_SCOPE}));
  }

 private:
  void finish() noexcept try {
    if (!started_) return;
    started_ = false;
    done_ = true;
    at::removeCallback(handle_);
    std::vector<Event> events;
    {
      const std::lock_guard lock(recording().mutex);
      events.swap(recording().events);
    }
    Json list = Json::array();
    for (const Event& event : events)
      list.push_back({{"name", event.name},
                      {"ph", "X"},
                      {"ts", event.start_us},
                      {"dur", event.end_us - event.start_us},
                      {"pid", ::getpid()},
                      {"tid", event.thread}});
    make_folders(options_.file.parent_path());
    write_file_atomic(options_.file, Json{{"traceEvents", std::move(list)}}.dump() + "\n");
    log::info("a trace of {} operations is in {}", events.size(), shown_path(options_.file));
  } catch (const std::exception& error) {  // training matters more than its trace
    log::warning("the trace could not be written: {}", error.what());
  }

  TraceOptions options_;
  at::CallbackHandle handle_ = 0;
  bool started_ = false, done_ = false;
  std::int64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<Callback> make_chrome_trace(TraceOptions options) {
  return std::make_unique<ChromeTrace>(std::move(options));
}

}  // namespace tutti::trainer
