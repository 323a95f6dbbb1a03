// Training: from a model, data and settings to weights, on one rank of any number of ranks.
//
//   FitInputs inputs{.model = model, .train = train, .valid = &valid, .strategy = *strategy,
//                    .control = *control, .settings = settings,
//                    .optimizers = {{.options = default_options(OptimizerKind::kAdamW)}}};
//   FitResult result = fit(inputs);
//   if (result.end == FitEnd::kPreempted) return 85;
//
// Every rank calls fit() with the same settings. The loop's only communication is: gradients (in
// the strategy), one vote per optimizer step, one metric sum per log line, one list of
// random-number states per checkpoint. An exception on one rank is told to the others, who throw it
// too, with that rank's number.
//
// Throws ConfigError, DataError (plans differ, NaN for too long, out of memory for too long),
// CommError (a rank is gone), IoError (checkpoints cannot be written).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/core/subprocess.h"
#include "tutti/trainer/batch.h"
#include "tutti/trainer/callbacks/callback.h"
#include "tutti/trainer/checkpoint/store.h"
#include "tutti/trainer/control.h"
#include "tutti/trainer/loggers/logger.h"
#include "tutti/trainer/model.h"
#include "tutti/trainer/optim/groups.h"
#include "tutti/trainer/preemption.h"
#include "tutti/trainer/strategies/strategy.h"
#include "tutti/trainer/trainer_settings.h"

namespace tutti::trainer {

// One optimizer with its schedule. With several, `params` says which parameters are whose; every
// trainable parameter must belong to exactly one. A loss that names no optimizer moves them all.
struct OptimizerSpec {
  std::string name;                    // empty for the only one
  std::vector<std::string> params;     // as GroupSpec::match; empty: all parameters
  OptimizerOptions options;            // of Adam, AdamW and SGD,
  MakeOptimizer make = {};             // or any other
  std::vector<GroupSpec> groups = {};  // parameters with other settings; the first that matches
  ScheduleSpec schedule = {};
  // Of this optimizer's gradients alone; empty: as the loop's settings say.
  std::optional<double> gradient_clip_val = {};
  std::optional<ClipAlgorithm> gradient_clip_algorithm = {};
};

struct FitInputs {
  TrainableModel& model;
  DataSource& train;
  DataSource* valid = nullptr;
  Strategy& strategy;
  Control& control;
  LoopSettings settings;
  std::vector<OptimizerSpec> optimizers;
  std::vector<Criterion> criteria;  // which checkpoints are the best
  std::vector<Callback*> callbacks = {};
  std::vector<Logger*> loggers = {};  // rank 0 only
  StopSignals* signals = nullptr;
  // Called when everything is loaded and the first step is about to be made.
  std::function<void()> begins = {};
  std::string users_model =
      {};  // its name: what its code throws is the user's to mend; empty: ours
};

enum class FitEnd {
  kDone,        // max_epochs, max_steps, or a callback said so
  kTimeUp,      // max_time
  kPreempted,   // SIGTERM, SIGUSR1 or the requeue signal: saved, resumable
  kInterrupted  // SIGINT: saved, resumable
};

// Bytes this rank held for the model, by the strategy's own counting (not the allocator's).
struct HeldMemory {
  std::int64_t parameters = 0;  // most at any time: parts, and whole units while they are used
  std::int64_t gradients = 0;   // most at any time
  std::int64_t optimizer = 0;   // state
  std::int64_t peak = 0;        // most of all three together
};

struct FitResult {
  FitEnd end = FitEnd::kDone;
  std::int64_t epochs = 0;  // completed
  std::int64_t steps = 0;   // optimizer steps
  std::int64_t skipped_steps = 0;
  std::string reason;  // for people
  int signal = 0;      // that stopped it
  Metrics last_validation;
  HeldMemory memory;
};

FitResult fit(FitInputs& inputs);

// What a rank does after fit(): the exit code (0, 85 or 130), and under Slurm, when the requeue
// signal or a preemption stopped the run, rank 0's request to be requeued.
ExitCode conclude(const FitResult& result, int rank, CommandRunner& runner,
                  int requeue_signal = SIGUSR1);

}  // namespace tutti::trainer
