// The state of one run of fit(), shared by the files of the loop. Internal to the room.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tutti/trainer/device_feed.h"
#include "tutti/trainer/loop.h"

namespace tutti::trainer {

struct OptimizerSlot {
  std::string name;
  std::unique_ptr<Optimizer> optimizer;
  Schedule schedule;
  double clip_val = 0;  // 0: off
  ClipAlgorithm clip_algorithm = ClipAlgorithm::kNorm;
};

// Seconds spent since the last log line.
struct StepTimes {
  double data = 0, forward = 0, backward = 0, optimizer = 0, total = 0;
  std::int64_t batches = 0, steps = 0;
  double audio_seconds = 0, items = 0;
};

struct Run {
  explicit Run(FitInputs& inputs);

  FitInputs& in;
  LoopSettings settings;
  at::Device device;
  Precision precision;
  LossScaler scaler;
  std::vector<OptimizerSlot> optimizers;
  NamedTensors weights;                    // as this rank holds them; see held_weights
  std::unique_ptr<CheckpointStore> store;  // on rank 0, and where ranks hold parts

  // What a checkpoint holds beside tensors.
  std::int64_t epoch = 0;
  std::int64_t batch = 0;   // micro-batches of this epoch behind us, per rank
  std::int64_t step = 0;    // optimizer steps taken
  std::int64_t window = 0;  // votes taken: steps and dropped steps
  std::int64_t skipped = 0;
  int bad_in_a_row = 0;
  int oom_in_a_row = 0;
  MetricSums interval;    // since the last log line, this rank
  MetricSums epoch_sums;  // since the epoch's start, all ranks

  // Not saved.
  bool resumed = false;
  double reference_weight = 1;  // a power of two near the last global weight; see window.cpp
  std::int64_t first_logged_batch = 0;
  std::int64_t saved_step = -1;
  StepTimes times;
  Metrics extra_metrics;
  Metrics last_validation;
  Metrics unsaved_validation;  // decides which checkpoints are the best; goes with the next save
  std::string stop_reason;
  std::optional<std::int64_t> batches_in_epoch;  // per rank
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_save = started;

  bool is_main() const { return in.control.rank() == 0; }
  // Overfitting sees the same batches again and again.
  std::int64_t data_epoch() const { return settings.overfit_batches.value > 0 ? 0 : epoch; }
  // With one rank and one micro-batch per step the batch's mean is the global mean already.
  bool weighs_losses() const {
    return settings.loss_reduction == LossReduction::kGlobal &&
           (in.control.world_size() > 1 || settings.accumulate_grad_batches > 1);
  }
  Moment moment(const Metrics* metrics = nullptr) {
    return {in.model, weights, epoch, step, metrics, &extra_metrics, &stop_reason};
  }
};

// window.cpp: forward and backward over the micro-batches of one optimizer step.
struct Window {
  Vote vote;
  std::uint64_t complete = 0;  // bit i: optimizer i's gradients come from a whole armed backward
  std::int64_t micro_batches = 0;
  std::string ids;  // of the batch that went wrong
  double data_seconds = 0;
};
Window run_window(Run& run, DeviceFeed& feed, std::optional<std::int64_t> batches_in_epoch);

// update.cpp: from summed gradients to new weights. False when the step was skipped.
bool apply_update(Run& run, const Verdict& verdict);
void discard_gradients(Run& run);

// validate.cpp
void validate(Run& run, std::optional<std::int64_t> limit, bool sanity_check);
bool validation_due(const Run& run, std::optional<std::int64_t> batches_in_epoch,
                    std::int64_t batch_before, bool epoch_over);

// resume.cpp
NamedTensors held_weights(Run& run);  // parameters, or this rank's parts of them
void seed_everything(Run& run);
bool restore(Run& run);
void save(Run& run, bool epoch_over);

// report.cpp
void log_interval(Run& run);
void summarise_epoch(Run& run);
void write_metrics(Run& run, const Metrics& metrics);
std::string describe_run(const Run& run);

}  // namespace tutti::trainer
