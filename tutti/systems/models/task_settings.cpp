#include "tutti/systems/models/task_settings.h"

namespace tutti::systems {

bool is_s2t(const config::Node& training) {
  const config::Node task = training["task"];
  return task.is_scalar() && (task.raw() == "s2t" || task.raw().ends_with(".S2TTask"));
}

void check_trainable(const config::Node& training, config::Problems& problems) {
  if (is_s2t(training))
    problems.add(training["task"],
                 "S2TTask models are decoded here, but not trained: their prompts, previous texts "
                 "and time tokens are not part of training yet",
                 "set task: espnet3.systems.asr.task.ASRTask to train a plain recogniser");
}

}  // namespace tutti::systems
