#include "tutti/parallel/parallel.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/parallel/folder/large_result.h"

namespace tutti::parallel {
namespace {

thread_local const ParallelScope* innermost_settings = nullptr;
thread_local ClientScope* innermost_client = nullptr;

// The client of the scope, or one for the occasion.
class Borrowed {
 public:
  Borrowed() : scope_(innermost_client) {
    if (scope_ == nullptr) own_ = build_client(current_parallel());
  }
  Client& client() { return own_ ? *own_ : scope_->client(); }
  std::vector<std::string> plugins() const {
    return own_ ? std::vector<std::string>{} : scope_->plugin_names();
  }

 private:
  ClientScope* const scope_;  // of the thread that made us: as_completed runs on another one
  std::unique_ptr<Client> own_;
};

JobSpec function_job(ItemFunction function, std::vector<std::string> plugins) {
  JobSpec job;
  job.function = Registry::global().name_of(function);
  job.plugins = std::move(plugins);
  return job;
}

}  // namespace

ParallelScope::ParallelScope(ParallelSettings settings)
    : settings_(std::move(settings)), outer_(innermost_settings) {
  innermost_settings = this;
}
ParallelScope::~ParallelScope() { innermost_settings = outer_; }

ParallelScope set_parallel(const config::Node& block) {
  config::Problems problems;
  ParallelSettings settings = parse_parallel(block, problems);
  problems.throw_if_any();
  for (const config::Problem& warning : problems.warnings()) log::warning("{}", warning.describe());
  return ParallelScope(std::move(settings));
}

ParallelSettings current_parallel() {
  return innermost_settings == nullptr ? ParallelSettings{} : innermost_settings->settings();
}

std::unique_ptr<Client> build_client(const ParallelSettings& settings, ClientOptions options) {
  return std::make_unique<Client>(settings, std::move(options));
}

ClientScope::ClientScope(std::vector<std::string> plugin_names, ClientOptions options)
    : plugins_(std::move(plugin_names)),
      client_(build_client(current_parallel(), std::move(options))),
      outer_(innermost_client) {
  innermost_client = this;
}
ClientScope::~ClientScope() { innermost_client = outer_; }
ClientScope* current_client() { return innermost_client; }

Json take_result(const Client& client, const Outcome& outcome) {
  if (outcome.status != wire::ItemStatus::kOkInFile) return Json::parse(outcome.payload);
  const auto path = client.large_result(outcome.payload);
  if (const std::string problem = LargeResult::problem(path); !problem.empty())
    throw IoError("item " + std::to_string(outcome.index) + ": " + problem,
                  "driver and workers must share the run folder");
  Json result = parse_json(read_file(path), path.string());
  std::filesystem::remove(path);
  return result;
}

std::vector<Json> parallel_map(ItemFunction function, const Indices& indices,
                               const RunOptions& options) {
  Borrowed borrowed;
  std::vector<Json> results(indices.size());
  std::unordered_map<std::uint64_t, std::uint64_t> positions;
  const std::uint64_t first = indices.size() > 0 ? indices[0] : 0;
  if (!indices.is_range())
    for (std::uint64_t i = 0; i < indices.size(); ++i) positions[indices[i]] = i;
  borrowed.client().run(function_job(function, borrowed.plugins()),
                        {.indices = indices, .options = options}, [&](const Outcome& outcome) {
                          if (!outcome.ok()) return;
                          const std::uint64_t position = indices.is_range()
                                                             ? outcome.index - first
                                                             : positions.at(outcome.index);
                          results[position] = take_result(borrowed.client(), outcome);
                        });
  return results;
}

void parallel_for(ItemFunction function, const Indices& indices,
                  const std::function<void(std::uint64_t, Json)>& each, const RunOptions& options) {
  Borrowed borrowed;
  borrowed.client().run(function_job(function, borrowed.plugins()),
                        {.indices = indices, .options = options}, [&](const Outcome& outcome) {
                          if (outcome.ok())
                            each(outcome.index, take_result(borrowed.client(), outcome));
                        });
}

// A thread runs the run; the two meet at a small queue, so that a slow reader slows the run.
struct Completed::Pump {
  static constexpr std::size_t kMaxWaiting = 1024;
  struct LeftEarly {};

  Pump(ItemFunction function, const Indices& indices, const RunOptions& options) {
    const JobSpec job = function_job(function, borrowed.plugins());
    thread = std::thread([this, job, indices, options] {
      std::exception_ptr failure;
      try {
        borrowed.client().run(job, {.indices = indices, .options = options},
                              [this](const Outcome& outcome) { push(outcome); });
      } catch (const LeftEarly&) {  // the reader has gone; nothing to report to
      } catch (...) {               // handed to the reader's thread
        failure = std::current_exception();
      }
      const std::lock_guard lock(mutex);
      error = failure;
      over = true;
      changed.notify_all();
    });
  }
  ~Pump() {
    {
      const std::lock_guard lock(mutex);
      left = true;
      changed.notify_all();
    }
    thread.join();
  }
  void push(const Outcome& outcome) {
    Item item{outcome.index, outcome.ok(),
              outcome.ok() ? take_result(borrowed.client(), outcome) : Json(outcome.payload)};
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return left || waiting.size() < kMaxWaiting; });
    if (left) throw LeftEarly{};
    waiting.push_back(std::move(item));
    changed.notify_all();
  }

  Borrowed borrowed;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Item> waiting;
  std::exception_ptr error;
  bool over = false;
  bool left = false;
  std::thread thread;
};

Completed::Completed(ItemFunction function, const Indices& indices, const RunOptions& options)
    : pump_(std::make_unique<Pump>(function, indices, options)) {}
Completed::~Completed() = default;
Completed::Completed(Completed&&) noexcept = default;

std::optional<Completed::Item> Completed::next() {
  std::unique_lock lock(pump_->mutex);
  pump_->changed.wait(lock, [&] { return pump_->over || !pump_->waiting.empty(); });
  if (pump_->waiting.empty()) {
    if (pump_->error) std::rethrow_exception(std::exchange(pump_->error, nullptr));
    return std::nullopt;
  }
  Item item = std::move(pump_->waiting.front());
  pump_->waiting.pop_front();
  pump_->changed.notify_all();
  return item;
}

}  // namespace tutti::parallel
