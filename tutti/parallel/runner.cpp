#include "tutti/parallel/runner.h"

#include <unordered_map>

#include "tutti/core/log.h"
#include "tutti/parallel/fingerprint.h"
#include "tutti/parallel/folder_run.h"
#include "tutti/parallel/parallel.h"

namespace tutti::parallel {

std::vector<Json> BaseRunner::forward_batch(std::span<const std::uint64_t> indices,
                                            const Env& env) const {
  std::vector<Json> results;
  for (const std::uint64_t index : indices) results.push_back(forward(index, env));
  return results;
}

std::vector<Json> BaseRunner::operator()(const Indices& indices, RunOptions options) {
  if (current_parallel().async)
    log::warning("parallel.async: this run stays with its driver; only `tutti map` leaves");
  JobSpec job;
  job.provider = Registry::global().name_of(typeid(provider_));
  job.runner = Registry::global().name_of(typeid(*this));
  job.config = config::to_json(provider_.config());
  job.params = provider_.params();
  if (ClientScope* scope = current_client()) job.plugins = scope->plugin_names();
  // Sorting costs memory; do it only when somebody overrides cost().
  if (!options.cost) {
    const double first = indices.size() > 0 ? cost(indices[0]) : 0;
    for (std::uint64_t i = 1; i < indices.size() && !options.cost; ++i)
      if (cost(indices[i]) != first)
        options.cost = [this](std::uint64_t index) { return cost(index); };
  }

  std::unique_ptr<Client> own;
  const auto client = [&](const std::filesystem::path& run_folder) -> Client& {
    if (ClientScope* scope = current_client()) return scope->client();
    if (!own) own = build_client(current_parallel(), {.run_folder = run_folder});
    return *own;
  };

  std::unordered_map<std::uint64_t, std::uint64_t> positions;
  if (!indices.is_range())
    for (std::uint64_t i = 0; i < indices.size(); ++i) positions[indices[i]] = i;
  const auto position = [&](std::uint64_t index) {
    return indices.is_range() ? index - indices[0] : positions.at(index);
  };
  std::vector<Json> results(indices.size());
  if (options.output_dir.empty()) {
    Client& pool = client({});
    pool.run(job, {.indices = indices, .options = options}, [&](const Outcome& outcome) {
      if (outcome.ok()) results[position(outcome.index)] = take_result(pool, outcome);
    });
    return results;
  }

  Json fingerprint;
  fingerprint["provider"] = job.provider;
  fingerprint["runner"] = job.runner;
  fingerprint["config"] = job.config;
  fingerprint["params"] = job.params;
  fingerprint["items"] = indices.size();
  fingerprint["files"] = file_stamps(provider_.model_files());
  RunFolder folder(options.output_dir, fingerprint, indices, {.resume = current_parallel().resume});
  open_writers(folder.path());
  run_in_folder(
      folder, [&]() -> Client& { return client(folder.path()); }, job, indices, options,
      [&](std::uint64_t index, const Json& result) {
        write_record(index, result);
        results[position(index)] = result;
      });
  close_writers();
  merge(folder.path());
  return results;
}

}  // namespace tutti::parallel
