// A runner does one item: `forward(index, env)`, stateless, on a worker. On the driver the same
// class starts the whole run and writes the outputs.
//
//   class DecodeRunner : public BaseRunner {
//    public:
//     using BaseRunner::BaseRunner;
//     Json forward(std::uint64_t index, const Env& env) const override {
//       const auto& sample = env.get<Dataset>("dataset")[index];
//       return {{"utt_id", sample.utt_id}, {"hyp", env.get<Model>("model").decode(sample)}};
//     }
//   };
//   TUTTI_REGISTER_RUNNER(DecodeRunner);
//
//   DecodeRunner runner(provider);
//   std::vector<Json> results = runner(range(eval_set.size()));
//
// With an output folder the run is journaled and resumable, and the writers see every ok result in
// item order on the driver, so that their files are the same bytes whatever the number of workers
// and restarts. (ESPnet3 opens writers per shard; there are no shards here.)
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "tutti/parallel/client.h"
#include "tutti/parallel/provider.h"
#include "tutti/parallel/registry.h"

namespace tutti::parallel {

struct JobSpec;
class RunFolder;
struct RunFolderOptions;

class BaseRunner {
 public:
  // Keeps a reference: the provider must outlive the runner.
  explicit BaseRunner(const EnvironmentProvider& provider) : provider_(provider) {}
  virtual ~BaseRunner() = default;

  // ---- on the worker
  virtual Json forward(std::uint64_t index, const Env& env) const = 0;
  // One result per index, in order. Called instead of forward when the run has batch_size > 1.
  virtual std::vector<Json> forward_batch(std::span<const std::uint64_t> indices,
                                          const Env& env) const;
  // A runner that reads ahead is told what comes before it comes: the items of the batch at hand,
  // then those after it that this worker has been given, about as many again. Some of them may go
  // to another worker after all. Must return at once.
  virtual bool reads_ahead() const { return false; }
  virtual void expect(std::span<const std::uint64_t> /*indices*/, const Env& /*env*/) const {}

  // ---- on the driver
  // Order hint: items are started by falling cost (long utterances first, batches of like length).
  // The default, all alike, keeps the list's order. Where all are above 0 they weigh the items in the
  // ETA: let them be in proportion to the time that items take.
  virtual double cost(std::uint64_t /*index*/) const { return 0; }
  virtual void open_writers(const std::filesystem::path& /*output_dir*/) {}
  virtual void write_record(std::uint64_t /*index*/, const Json& /*result*/) {}
  virtual void close_writers() {}
  virtual void merge(const std::filesystem::path& /*output_dir*/) {}

  // Runs the items on the current client, or on one made for the occasion. Results in the order of
  // `indices`. Throws TaskError when an item failed and on_error is stop; with skip, a failed
  // item's result is null and it is listed in failed.jsonl where there is an output folder.
  // With `parallel.async: true` and an output folder the items are done as by submit(), and the
  // call waits for them: what kills it does not stop the work, and the next call finds the results.
  std::vector<Json> operator()(const Indices& indices, RunOptions options = {});

  // Hands the items to workers that need no driver and returns: they share them out through
  // options.output_dir, the last one writes results.jsonl and calls options.finisher (the hooks
  // above are for a driver: call the runner on the folder later). Returns the jobs; none when
  // nothing was left to do. Throws SchedulerError, IoError when the folder is in use, ConfigError.
  std::vector<JobStatus> submit(const Indices& indices, RunOptions options);

  const EnvironmentProvider& provider() const noexcept { return provider_; }

 private:
  JobSpec job_of(const Indices& indices, RunOptions& options) const;
  Json fingerprint_of(const JobSpec& job, const Indices& indices, const RunOptions& options) const;
  static RunFolderOptions opening(const RunOptions& options);
  // Runs what the folder lacks, writes the results, calls hooks and finisher.
  std::vector<Json> run_here(RunFolder& folder, const JobSpec& job, const Indices& indices,
                             const RunOptions& options);

  const EnvironmentProvider& provider_;
};

}  // namespace tutti::parallel
