// Whether a run has come to the end that its settings give it.
#pragma once

#include <cstdint>
#include <string>

#include "tutti/trainer/trainer_settings.h"

namespace tutti::trainer {

struct Trained {
  std::int64_t epoch = 0;  // whole ones
  std::int64_t step = 0;
  double seconds = 0;
};

// Which of max_epochs, max_steps and max_time allow no further step, and that they must be raised
// to go on. Empty: there is something left to train.
std::string reached_limits(const LoopSettings& settings, const Trained& trained);

}  // namespace tutti::trainer
