// The state of one run of fit(), shared by the files of the loop. Internal to the room.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/trainer/device_feed.h"
#include "tutti/trainer/loggers/console.h"
#include "tutti/trainer/loop.h"

namespace tutti::trainer {

struct OptimizerSlot {
  std::string name;
  std::unique_ptr<OptimizerGroups> optimizer;
  std::vector<at::Tensor> owned;  // the model's parameters it moves, or parts of which it moves
  double clip_val = 0;            // 0: off
  ClipAlgorithm clip_algorithm = ClipAlgorithm::kNorm;
};

// Seconds spent since the last log line.
struct StepTimes {
  double data = 0, forward = 0, backward = 0, optimizer = 0, total = 0;
  std::int64_t batches = 0, steps = 0;
  double audio_seconds = 0, items = 0;
};

// What a window changes before it is known whether its step is taken: running statistics in buffers,
// and the random numbers drawn. See rollback.cpp.
struct RollbackPoint {
  NamedTensors buffers;  // copies
  std::string random;
};

// What people have been shown; report.cpp.
struct Console {
  Progress progress;
  EpochTable table;
  Numbers validation;  // of this epoch
  bool validation_is_best = false;
  std::optional<double> best;  // by the first criterion
  double seconds_per_step = 0;
  std::chrono::steady_clock::time_point epoch_start, drawn;
  bool drew_validation = false;  // what the line on the terminal is about
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
  std::int64_t batch = 0;  // micro-batches of this epoch behind us, per rank
  // Of them, by ranks of other numbers before the run was continued: in today's count, and exactly.
  std::int64_t first_batch = 0;
  std::vector<Taken> taken_before;
  std::int64_t step = 0;    // optimizer steps taken
  std::int64_t window = 0;  // votes taken: steps and dropped steps
  std::int64_t skipped = 0;
  int bad_in_a_row = 0;
  int oom_in_a_row = 0;
  // The last step is followed by a validation that was not made or not finished when a signal came.
  bool validation_pending = false;
  double seconds_before = 0;  // of training, in processes before this one
  MetricSums interval;        // since the last log line, this rank
  MetricSums epoch_sums;      // from the epoch's start to the last log line, all ranks

  // Not saved.
  bool resumed = false;
  std::optional<SaveInfo> resumed_save;  // of this run's own checkpoint
  bool recording = false;                // parts of the model are launched as one
  bool told_stop = false;                // the other ranks know of our signal
  bool names_known = false;              // the metrics that are monitored exist
  int signal = 0;                        // the one all ranks stop for
  double reference_weight = 1;  // a power of two near the last global weight; see window.cpp
  std::int64_t saved_step = -1;
  bool saved_pending = false;
  std::uint64_t plan = 0;  // with which the epoch began
  StepTimes times;
  Console console;
  Metrics extra_metrics;
  Metrics last_validation;
  Metrics unsaved_validation;  // decides which checkpoints are the best; goes with the next save
  std::string stop_reason;
  std::optional<std::int64_t> batches_in_epoch;  // per rank
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_timed_save = started;

  bool is_main() const { return in.control.rank() == 0; }
  int accumulate() const { return settings.accumulate_grad_batches.at(epoch); }  // batches per step
  double seconds() const {  // of training, over all processes
    return seconds_before +
           std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  }
  int own_signal() const { return in.signals ? in.signals->received() : 0; }
  // Cheap; the other ranks are told of a signal at once.
  bool stop_wanted() {
    if (own_signal() != 0 && !std::exchange(told_stop, true)) in.control.request_stop();
    return told_stop || in.control.stop_requested();
  }
  Position position() const { return {data_epoch(), batch - first_batch, taken_before}; }
  // Overfitting sees the same batches again and again.
  std::int64_t data_epoch() const { return settings.overfit_batches.value > 0 ? 0 : epoch; }
  // With one rank and one micro-batch per step the batch's mean is the global mean already.
  bool weighs_losses() const {
    return settings.loss_reduction == LossReduction::kGlobal &&
           (in.control.world_size() > 1 || accumulate() > 1);
  }
  Moment moment(const Metrics* metrics = nullptr) {
    return {in.model, weights,        epoch,        step,
            metrics,  &extra_metrics, &stop_reason, batches_in_epoch && batch >= *batches_in_epoch};
  }
};

// window.cpp: forward and backward over the micro-batches of one optimizer step.
struct Window {
  Vote vote;
  RollbackPoint before;
  MetricSums sums;             // for the log, if the step is taken
  std::uint64_t complete = 0;  // bit i: optimizer i's gradients come from a whole armed backward
  std::int64_t micro_batches = 0;
  std::string bad_ids;           // of the batch that went wrong
  std::vector<std::string> ids;  // of all batches
  double data_seconds = 0;
};
// What the user's model threw, as the user's error with the batch and the line of their code; others
// are left as they are. Call inside a catch block only.
[[noreturn]] void rethrow_model_error(const Run& run, const Batch& batch);
Window run_window(Run& run, DeviceFeed& feed, std::optional<std::int64_t> batches_in_epoch);

// update.cpp: from summed gradients to new weights.
enum class Update {
  kTaken,
  kNothing,    // no rank's loss had weight
  kOverflow,   // the loss scale was too large, and is smaller now
  kNotFinite,  // NaN or infinity in a gradient, which no scale explains
};
Update apply_update(Run& run, const Verdict& verdict);
void discard_gradients(Run& run);

// rollback.cpp
RollbackPoint rollback_point(Run& run);
void restore_buffers(Run& run, const RollbackPoint& point);
std::string random_state(Run& run);
void restore_random_state(Run& run, const std::string& state);

// validate.cpp. False: a signal came, and all ranks left it.
bool validate(Run& run, std::optional<std::int64_t> limit, bool sanity_check);
void check_validation_interval(const Run& run, std::optional<std::int64_t> batches_in_epoch);
bool validation_due(const Run& run, std::optional<std::int64_t> batches_in_epoch,
                    std::int64_t batch_before, bool epoch_over);

// resume.cpp
NamedTensors held_weights(Run& run);  // parameters, or this rank's parts of them
void seed_everything(Run& run);
bool restore(Run& run);
enum class SavedAt {
  kStep,
  kClock,  // because save_every_seconds are over
  kEpochEnd,
};
void save(Run& run, SavedAt at);
// Whether a callback asked for a save after this step, by its number.
bool step_save_due(const Run& run);

// report.cpp
void log_interval(Run& run);
void summarise_epoch(Run& run);
void write_metrics(Run& run, const Metrics& metrics);
void show_progress(Run& run);  // on a terminal, a few times per second
void show_validation(Run& run, std::int64_t batch, std::optional<std::int64_t> batches,
                     bool sanity_check);
void report_validation(Run& run, const Metrics& metrics);
void report_start(Run& run);
void report_end(Run& run, const std::string& reason);

}  // namespace tutti::trainer
