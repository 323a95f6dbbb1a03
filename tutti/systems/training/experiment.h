// exp_dir as training sees it: who trains in it, with which config, and whether this one may go on.
//
//   refuse_start(context);                          // before anything is touched
//   Experiment experiment(context, loop, restarted);             // rank 0, when all ranks are there
//   experiment.clear_way();                         // model and data are there
//   ... fit, and when the first step is about to be made:
//   experiment.begin();
//
// A folder has one trainer at a time (a lock with host and process). Checkpoints belong to the config
// they were trained with: another one that would change the result is refused, with the keys that
// differ and the ways on. What changes nothing about the weights (how long, where, with how many
// devices, what is logged) is free.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/systems/stage.h"
#include "tutti/systems/training/checkpoint_home.h"

namespace tutti::parallel {
class FolderLock;
}
namespace tutti::trainer {
struct LoopSettings;
}

namespace tutti::systems {

struct ConfigDifference {
  std::string key;  // "optimizer.lr"
  std::string before;
  std::string now;
  bool reshapes = false;  // of weights: a size or kind in the model
};
// What matters to the weights, in the order of keys. `accepted`: keys (or blocks) that may differ.
std::vector<ConfigDifference> config_differences(const Json& before, const Json& now,
                                                 const std::vector<std::string>& accepted = {});

// Throws IoError if somebody trains in exp_dir or where its checkpoints go, ConfigError if these are of
// another experiment, or of another config and the command does not say what to do about it. Touches
// nothing.
void refuse_start(const StageContext& context);

// How often the scheduler or our own agent has started this same command again.
int restart_count();

class Experiment {
 public:
  // Locks and checks again. A job that comes back on another machine waits until the lock of its dead
  // self has grown old.
  Experiment(const StageContext& context, const trainer::LoopSettings& loop, bool restarted);
  ~Experiment();
  Experiment(const Experiment&) = delete;
  Experiment& operator=(const Experiment&) = delete;

  // A fresh start was asked for (--force, ckpt_path: never), and this run has made nothing yet.
  bool starts_over() const;
  // For a fresh start, moves what an earlier run left to *.before; but
  // never what this run made before it was restarted. Call when nothing can go wrong any more.
  void clear_way() const;
  // When the first step is about to be made: exp_dir/config.yaml, which decoding builds the model from, with its tokens
  // beside it (kept_tokens.h; an older one becomes config.yaml.1, config.yaml.2, ...), and whose the checkpoints are.
  void begin() const;
  // For a process that ends in a hurry.
  void unlock() noexcept;

 private:
  void beat();
  void note_config() const;

  const StageContext& context_;
  const std::filesystem::path folder_;
  const CheckpointHome home_;
  const bool restarted_;
  std::unique_ptr<parallel::FolderLock> lock_;
  std::unique_ptr<parallel::FolderLock> home_lock_;  // null: checkpoints lie in exp_dir
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;  // guarded by mutex_
  std::thread heart_;
};

}  // namespace tutti::systems
