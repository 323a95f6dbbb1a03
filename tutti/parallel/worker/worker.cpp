#include "tutti/parallel/worker/worker.h"

#include <fmt/format.h>

#include <thread>

#include "tutti/core/file_trust.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/core/units.h"
#include "tutti/core/users_code.h"
#include "tutti/parallel/folder/large_result.h"
#include "tutti/parallel/runner.h"
#include "tutti/parallel/wire/job_spec.h"
#include "tutti/parallel/wire/progress_page.h"
#include "tutti/parallel/wire/secrets.h"
#include "tutti/parallel/worker/command_runner.h"
#include "tutti/parallel/worker/worker_state.h"

namespace tutti::parallel {
namespace {

using SteadyClock = std::chrono::steady_clock;

thread_local Env* current_env = nullptr;

struct ErrorText {
  std::string text;
  ExitCode code = ExitCode::kInternal;
};

// The exception being handled, as text for the driver. User code may throw anything; what has no words
// of its own comes with the name of `who` threw it.
ErrorText describe_current_exception(const std::string& who) {
  try {
    throw;
  } catch (const Error& error) {
    return {fmt::format("{}: {}", error.kind(), error.what()), error.exit_code()};
  } catch (const std::exception& error) {
    return {error.what(), ExitCode::kItemsFailed};
  } catch (...) {  // an item must not be able to end the worker by throwing an int
    return {who + ": " + words_of_exception(), ExitCode::kData};
  }
}

// The compute side: owns what user code built. Lives on one thread.
class Compute {
 public:
  Compute(WorkerState& state, const WorkerOptions& options)
      : state_(state),
        options_(options),
        shared_folder_(options.life.empty() || sees_run_folder(options.run_folder, options.life)),
        progress_(options.run_folder, options.id) {}
  ~Compute() { tear_down(); }

  void run() {
    WorkerState::JobOrder job;
    WorkerState::BatchOrder batch;
    for (;;) {
      switch (state_.wait(batch_size_, job, batch)) {
        case WorkerState::Next::kStop:
          return;
        case WorkerState::Next::kJob:
          start_job(job);
          break;
        case WorkerState::Next::kBatch:
          run_batch(batch);
          break;
      }
    }
  }

 private:
  void start_job(const WorkerState::JobOrder& order) {
    const auto begin = SteadyClock::now();
    try {
      const JobSpec spec = JobSpec::from_json(Json::parse(order.spec_json));
      who_ = spec.provider;
      const std::string fingerprint = spec.env_fingerprint();
      const bool kept = env_ && fingerprint == env_fingerprint_;
      if (!kept) build_env(spec, fingerprint);
      batch_size_ = std::max<std::uint64_t>(1, spec.batch_size);
      state_.set_item_timeout(spec.item_timeout_s);
      function_ = nullptr;
      runner_.reset();
      if (!spec.runner.empty()) {
        if (!provider_) throw ConfigError("runner '" + spec.runner + "' has no provider");
        runner_ = Registry::global().runner(spec.runner)(*provider_);
      } else {
        function_ = Registry::global().function(spec.function);
      }
      who_ = spec.runner.empty() ? spec.function : spec.runner;
      const auto spent =
          std::chrono::duration_cast<std::chrono::microseconds>(SteadyClock::now() - begin);
      state_.send(wire::encode(
          wire::EnvReady{order.job, kept ? 0 : static_cast<std::uint64_t>(spent.count())}));
    } catch (...) {  // whatever a provider throws must reach the driver
      const ErrorText error = describe_current_exception(who_);
      log::error("building the env failed: {}", error.text);
      tear_down();
      state_.send(wire::encode(
          wire::EnvFailed{order.job, static_cast<std::uint32_t>(error.code), error.text}));
    }
  }

  void build_env(const JobSpec& spec, const std::string& fingerprint) {
    tear_down();
    for (const std::string& library : spec.libraries) Registry::load_plugin_library(library);
    env_ = std::make_unique<Env>(spec.params);
    current_env = env_.get();
    std::vector<std::string> names = spec.plugins;
    if (!spec.libraries.empty())
      for (const auto& name : Registry::global().library_plugins())
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    for (const std::string& name : names) {
      plugins_.push_back(Registry::global().plugin(name)());
      plugins_.back()->setup(*env_);
    }
    if (!spec.provider.empty()) {
      provider_ =
          Registry::global().provider(spec.provider)(config::from_json(spec.config), spec.params);
      provider_->build_env(*env_);
    }
    env_fingerprint_ = fingerprint;
  }

  void tear_down() noexcept {
    for (auto plugin = plugins_.rbegin(); plugin != plugins_.rend(); ++plugin) {
      try {
        (*plugin)->teardown(*env_);
      } catch (...) {  // leaving must succeed; the log keeps the story
        log::warning("a plugin's teardown failed: {}", describe_current_exception("it").text);
      }
    }
    plugins_.clear();
    runner_.reset();
    provider_.reset();
    env_.reset();
    env_fingerprint_.clear();
    current_env = nullptr;
  }

  void run_batch(const WorkerState::BatchOrder& batch) {
    const auto begin = SteadyClock::now();
    const auto start_us =
        static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                       std::chrono::system_clock::now().time_since_epoch())
                                       .count());
    const bool reads_ahead = runner_ && runner_->reads_ahead();
    std::vector<std::uint64_t> coming = batch.indices;
    if (reads_ahead) state_.peek(batch_size_, coming);
    // Several suspects: the driver will try them one by one.
    progress_.enter(batch.lease, coming.size() == 1 ? coming[0] : kOneOfSeveral);
    results_.clear();
    errors_.assign(batch.indices.size(), "");
    std::string error;
    try {
      if (reads_ahead) runner_->expect(coming, *env_);
      if (batch.indices.size() > 1) {
        run_together(batch.indices);
      } else if (batch_size_ > 1) {
        results_.push_back(to_text(runner_->forward_batch(batch.indices, *env_).at(0)));
      } else {
        results_.push_back(to_text(runner_ ? runner_->forward(batch.indices[0], *env_)
                                           : function_(batch.indices[0])));
      }
    } catch (const CommandTerminated& terminated) {
      if (state_.wait_for_stop(std::chrono::milliseconds(500))) {
        log::info("item {} was ended with the job; it goes to another worker", batch.indices[0]);
        progress_.leave();
        state_.abandon_running();
        return;
      }
      error = fmt::format("{}: {}", terminated.kind(), terminated.what());
    } catch (...) {  // an item's failure is a result like any other
      error = describe_current_exception(who_).text;
      if (error.empty()) error = "unknown error";
    }
    progress_.leave();
    const auto spent =
        std::chrono::duration_cast<std::chrono::nanoseconds>(SteadyClock::now() - begin).count();
    const auto each = static_cast<std::uint64_t>(spent) / batch.indices.size();
    for (std::size_t i = 0; i < batch.indices.size(); ++i) {
      wire::ResultRecord record{.index = batch.indices[i], .run_ns = each};
      record.start_us = start_us + i * each / 1000;
      std::string file;
      std::string own_error = error.empty() ? errors_[i] : error;
      if (own_error.empty() && results_[i].size() > wire::kMaxInlineResult) {
        try {
          file = write_large(batch.lease, batch.indices[i], results_[i]);
        } catch (const Error& failure) {
          own_error = failure.what();
        }
      }
      if (!own_error.empty()) {
        record.status = wire::ItemStatus::kFailed;
        record.payload = std::string_view(own_error).substr(0, wire::kMaxInlineResult);
      } else {
        record.status = file.empty() ? wire::ItemStatus::kOk : wire::ItemStatus::kOkInFile;
        record.payload = file.empty() ? std::string_view(results_[i]) : std::string_view(file);
      }
      state_.add_result(batch, record, i + 1 == batch.indices.size());
    }
    if (results_.size() == 1 && results_[0].capacity() > wire::kMaxInlineResult) results_.clear();
  }

  // A batch in which something fails is done again item by item: one bad item is its own failure
  // and nobody else's.
  void run_together(const std::vector<std::uint64_t>& indices) {
    try {
      for (Json& result : runner_->forward_batch(indices, *env_))
        results_.push_back(to_text(result));
      if (results_.size() == indices.size()) return;
    } catch (...) {  // user code may throw anything
      log::debug("a batch of {} failed ({}); its items are tried one by one", indices.size(),
                 describe_current_exception(who_).text);
      results_.clear();
      for (std::size_t i = 0; i < indices.size(); ++i) {
        results_.emplace_back();
        try {
          results_.back() = to_text(runner_->forward_batch(std::span(&indices[i], 1), *env_).at(0));
        } catch (...) {  // an item's failure is a result like any other
          errors_[i] = describe_current_exception(who_).text;
        }
      }
      return;
    }
    throw TaskError(fmt::format("forward_batch gave {} results for {} indices", results_.size(),
                                indices.size()));
  }

  // A short cut for numbers; and what an item returns must not change on its way, nor make it fail:
  // bytes that JSON cannot hold are marked and go as base64.
  static std::string to_text(const Json& result) {
    if (result.is_number_unsigned()) return fmt::to_string(result.get<std::uint64_t>());
    if (result.is_number_integer()) return fmt::to_string(result.get<std::int64_t>());
    try {
      return result.dump();
    } catch (const Json::type_error&) {  // not UTF-8
      return with_marked_bytes(result).dump();
    }
  }

  static Json with_marked_bytes(const Json& value) {
    if (value.is_string()) return bytes_to_json(value.get_ref<const std::string&>());
    if (!value.is_structured()) return value;
    Json out = value.is_array() ? Json::array() : Json::object();
    for (const auto& [key, part] : value.items()) {
      if (value.is_array())
        out.push_back(with_marked_bytes(part));
      else if (is_utf8(key))
        out[key] = with_marked_bytes(part);
      else
        throw TaskError("a key of the result is not UTF-8");
    }
    return out;
  }

  // Empty: the driver does not see our files, so it travels over the wire after all.
  std::string write_large(std::uint64_t lease, std::uint64_t index, const std::string& text) const {
    if (!shared_folder_) {
      if (text.size() <= wire::kMaxUnsharedResult) return "";
      throw DataError(
          fmt::format("the result has {}; without a folder that this host shares with "
                      "the driver {} is the most",
                      format_bytes(text.size()), format_bytes(wire::kMaxUnsharedResult)));
    }
    std::string name = fmt::format("{}-{}", lease, LargeResult::name(index, text));
    const auto folder = options_.run_folder / ".tutti" / "large";
    make_private_folder(folder);
    write_file_atomic(folder / name, text, 0600);
    return name;
  }

  WorkerState& state_;
  const WorkerOptions& options_;
  const bool shared_folder_;
  ProgressPage progress_;
  std::unique_ptr<Env> env_;
  std::string env_fingerprint_;
  std::unique_ptr<EnvironmentProvider> provider_;
  std::unique_ptr<BaseRunner> runner_;
  std::vector<std::unique_ptr<WorkerPlugin>> plugins_;
  ItemFunction function_ = nullptr;
  std::string who_;  // provider, then runner or function: whose code runs
  std::uint64_t batch_size_ = 1;
  std::vector<std::string> results_;
  std::vector<std::string> errors_;  // of items of the batch that failed alone
};

}  // namespace

Env& get_worker() {
  if (current_env == nullptr) throw InternalError("get_worker: this thread is no worker's");
  return *current_env;
}

int run_worker(const WorkerOptions& options) { return run_worker(options, run_link); }

int run_worker(const WorkerOptions& options, LinkFunction& talk) {
  WorkerState state;
  int code = 0;
  std::thread link([&] { code = talk(state, options); });
  {
    Compute compute(state, options);
    compute.run();
  }
  state.set_finished();
  link.join();
  return code;
}

}  // namespace tutti::parallel
