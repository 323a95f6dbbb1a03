#include "tutti/parallel/runner.h"

#include <chrono>
#include <thread>
#include <unordered_map>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/fingerprint.h"
#include "tutti/core/log.h"
#include "tutti/parallel/async/run.h"
#include "tutti/parallel/parallel.h"
#include "tutti/parallel/run/folder_run.h"

namespace tutti::parallel {
namespace {

// Where an item's place in the results is.
class Places {
 public:
  explicit Places(const Indices& indices) : first_(indices.size() > 0 ? indices[0] : 0) {
    if (!indices.is_range())
      for (std::uint64_t i = 0; i < indices.size(); ++i) places_[indices[i]] = i;
  }
  std::uint64_t operator()(std::uint64_t index) const {
    return places_.empty() ? index - first_ : places_.at(index);
  }

 private:
  const std::uint64_t first_;
  std::unordered_map<std::uint64_t, std::uint64_t> places_;
};

// The names of the items lie in the folder, so that others can write the results too.
ItemNames write_item_names(const RunFolder& folder, const Indices& indices,
                           const std::function<Json(std::uint64_t)>& item_of) {
  if (!item_of) return {};
  std::string lines;
  for (std::uint64_t i = 0; i < indices.size(); ++i)
    lines += to_json_line(item_of(indices[i])) + "\n";
  ItemNames names{ItemNames::Kind::kJsonLine, item_names_path(folder.path())};
  write_file_atomic(names.file, lines);
  return names;
}

// Until nobody works in the folder. Throws what ended the run when that was not its end.
void wait_for_async(const std::filesystem::path& folder) {
  auto pause = std::chrono::milliseconds(50);
  for (;;) {
    const auto state = async_state(folder, true);
    if (!state || state->state == "done") return;
    if (state->state != "queued" && state->state != "running") {
      if (state->exit_code != 0) throw TaskError(state->reason);
      return;  // what is left is done by the caller
    }
    std::this_thread::sleep_for(pause);
    pause = state->state == "queued" ? std::min(pause * 2, std::chrono::milliseconds(5000))
                                     : std::chrono::milliseconds(100);
  }
}

}  // namespace

std::vector<Json> BaseRunner::forward_batch(std::span<const std::uint64_t> indices,
                                            const Env& env) const {
  std::vector<Json> results;
  for (const std::uint64_t index : indices) results.push_back(forward(index, env));
  return results;
}

JobSpec BaseRunner::job_of(const Indices& indices, RunOptions& options) const {
  JobSpec job;
  job.provider = Registry::global().name_of(typeid(provider_));
  job.runner = Registry::global().name_of(typeid(*this));
  job.config = config::to_json(provider_.config());
  job.params = provider_.params();
  job.finisher = options.finisher;
  job.finisher_params = options.finisher_params;
  if (ClientScope* scope = current_client()) job.plugins = scope->plugin_names();
  // Sorting costs memory; do it only when somebody overrides cost().
  if (!options.cost) {
    const double first = indices.size() > 0 ? cost(indices[0]) : 0;
    for (std::uint64_t i = 1; i < indices.size() && !options.cost; ++i)
      if (cost(indices[i]) != first)
        options.cost = [this](std::uint64_t index) { return cost(index); };
  }
  return job;
}

Json BaseRunner::fingerprint_of(const JobSpec& job, const Indices& indices,
                                const RunOptions& options) const {
  if (!options.fingerprint.empty()) return options.fingerprint.json();
  Fingerprint fingerprint;
  fingerprint.add("provider", job.provider).add("runner", job.runner);
  Json config = job.config;
  if (config.is_object()) config.erase("parallel");  // who computes does not change the result
  fingerprint.add("config", config).add("params", job.params).add("items", indices.size());
  for (const std::string& file : provider_.model_files()) fingerprint.add_file(file, file);
  return fingerprint.json();
}

RunFolderOptions BaseRunner::opening(const RunOptions& options) {
  return {.resume = current_parallel().resume && !options.start_over,
          .redo_if_changed = options.redo_if_changed,
          .keep_old = options.keep_old};
}

std::vector<Json> BaseRunner::run_here(RunFolder& folder, const JobSpec& job,
                                       const Indices& indices, const RunOptions& options) {
  std::unique_ptr<Client> own;
  const auto client = [&]() -> Client& {
    if (ClientScope* scope = current_client()) return scope->client();
    own = build_client(current_parallel(), {.run_folder = folder.path()});
    return *own;
  };
  const Places place(indices);
  std::vector<Json> results(indices.size());
  open_writers(folder.path());
  run_in_folder(folder, client, job, indices, options,
                [&](std::uint64_t index, const Json& result) {
                  write_record(index, result);
                  results[place(index)] = result;
                });
  close_writers();
  merge(folder.path());
  if (const Finisher finisher = Registry::global().finisher(options.finisher))
    finisher(folder.path(), options.finisher_params);
  return results;
}

std::vector<JobStatus> BaseRunner::submit(const Indices& indices, RunOptions options) {
  if (options.output_dir.empty())
    throw ConfigError("an asynchronous run needs an output folder", "set RunOptions::output_dir");
  const JobSpec job = job_of(indices, options);
  RunFolder folder(options.output_dir, fingerprint_of(job, indices, options), indices,
                   opening(options));
  AsyncOptions async;
  async.item_names = write_item_names(folder, indices, options.item_of);
  if (!folder.remaining().empty())
    return submit_async(folder, current_parallel(), job, indices, options, async);
  run_here(folder, job, indices, options);
  return {};
}

std::vector<Json> BaseRunner::operator()(const Indices& indices, RunOptions options) {
  const bool async = current_parallel().async;
  if (async && options.output_dir.empty())
    log::warning("parallel.async: a run without an output folder stays with its driver");
  const JobSpec job = job_of(indices, options);
  if (!options.output_dir.empty()) {
    const Json fingerprint = fingerprint_of(job, indices, options);
    RunFolderOptions how_to_open = opening(options);
    if (async) {
      {
        RunFolder folder(options.output_dir, fingerprint, indices, how_to_open);
        const AsyncOptions how{.item_names = write_item_names(folder, indices, options.item_of)};
        if (!folder.remaining().empty())
          submit_async(folder, current_parallel(), job, indices, options, how);
      }  // nobody may hold the folder while they work in it
      wait_for_async(std::filesystem::absolute(options.output_dir));
      how_to_open.resume = true;
    }
    RunFolder folder(options.output_dir, fingerprint, indices, how_to_open);
    write_item_names(folder, indices, options.item_of);
    return run_here(folder, job, indices, options);
  }
  std::unique_ptr<Client> own;
  if (current_client() == nullptr) own = build_client(current_parallel(), {});
  Client& pool = own ? *own : current_client()->client();
  const Places place(indices);
  std::vector<Json> results(indices.size());
  pool.run(job, {.indices = indices, .options = options}, [&](const Outcome& outcome) {
    if (outcome.ok()) results[place(outcome.index)] = take_result(pool, outcome);
  });
  return results;
}

}  // namespace tutti::parallel
