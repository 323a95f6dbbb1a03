// Checkpoints that lie elsewhere than in exp_dir/checkpoints: trainer.default_root_dir, ModelCheckpoint's
// dirpath, or a link that somebody made.
//
// Such a folder belongs to one experiment, as exp_dir does. A mark in it names the experiment, and
// exp_dir/checkpoints is a link to it, through which decoding, packing, the report and fit.ckpt_path find
// the weights. Why both: the link goes with an experiment that is moved, and the mark tells the
// experiment from a copy of it, whose link is the same.
#pragma once

#include <filesystem>
#include <string>

#include "tutti/systems/stage.h"

namespace tutti::trainer {
struct LoopSettings;
}

namespace tutti::systems {

class CheckpointHome {
 public:
  CheckpointHome(const StageContext& context, const trainer::LoopSettings& loop);

  bool is_elsewhere() const noexcept { return is_elsewhere_; }
  const std::filesystem::path& path() const noexcept { return path_; }  // links followed
  // Throws ConfigError for another experiment's checkpoints, and where this experiment has its own at a
  // third place; the latter is no obstacle to a fresh start. Touches nothing.
  void refuse(bool fresh_start) const;
  // The override that gives this experiment a folder of its own.
  std::string own_folder() const;
  // The best weights of a run whose checkpoints are gone: nothing to go on from, and a run that begins
  // anew must not count them among its own.
  bool has_only_weights() const;
  // Moves what an earlier run left to *.before: checkpoints only, whatever else lies there.
  void set_aside() const;
  // Mark and link. Call when the first step is about to be made.
  void claim() const;

 private:
  void refuse_others(bool fresh_start) const;
  void refuse_third_place() const;

  const StageContext& context_;
  const std::filesystem::path exp_dir_;
  const std::filesystem::path link_;  // exp_dir/checkpoints
  const std::filesystem::path path_;  // empty: nothing is saved
  const bool is_elsewhere_;
};

// As *.before; what was there of an earlier run gets a number (*.before.1, ...).
void set_path_aside(const std::filesystem::path& path);

}  // namespace tutti::systems
