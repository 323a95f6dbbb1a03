// Things that watch training and may ask it to stop. Every rank has its own copy and sees the same
// metrics, so every rank comes to the same decision without talking.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/trainer/checkpoint/store.h"
#include "tutti/trainer/metrics.h"
#include "tutti/trainer/model.h"

namespace tutti::trainer {

// What a callback sees and may do.
struct Moment {
  TrainableModel& model;
  const NamedTensors& weights;  // parameters, or this rank's parts of them; live
  std::int64_t epoch = 0;
  std::int64_t step = 0;               // optimizer steps done
  const Metrics* metrics = nullptr;    // of the validation or epoch that just ended
  Metrics* extra_metrics = nullptr;    // written with the next log line
  std::string* stop_reason = nullptr;  // not empty: training ends after this step
  bool epoch_over = false;             // this step is the epoch's last
};

class Callback {
 public:
  virtual ~Callback() = default;
  virtual void on_step(const Moment&) {}
  virtual void before_validation(const Moment&) {}
  virtual void after_validation(const Moment&) {}
  virtual void on_epoch_end(const Moment&) {}
  // State in a checkpoint; use names of your own in `extra` and `trainer["callbacks"]`. A callback
  // that delivers other weights than those being trained calls deliver() in save().
  virtual void save(Checkpoint&) const {}
  virtual void load(const Checkpoint&) {}
};

struct EarlyStoppingOptions {
  std::string monitor = "valid/loss";
  Better better = Better::kLower;
  double min_delta = 0;
  int patience = 3;  // validations without improvement
  bool check_finite = true;
  std::optional<double> stopping_threshold;    // good enough
  std::optional<double> divergence_threshold;  // hopeless
};
std::unique_ptr<Callback> make_early_stopping(EarlyStoppingOptions options);

struct EmaOptions {
  double decay = 0.999;
  int every_n_steps = 1;
  std::int64_t start_step = 0;
};
// Keeps an exponential moving average of the weights. The average is what is validated and what
// checkpoints, the best files and their averages hold; training goes on with the weights themselves.
std::unique_ptr<Callback> make_ema(EmaOptions options);

// The mean of the weights at the ends of epochs, from `first_epoch` (counted from 0) on; validated and
// delivered like the moving average. Buffers are the model's own.
std::unique_ptr<Callback> make_swa(std::int64_t first_epoch);

// Memory of the GPU and, with `cpu`, of the process, with every log line.
std::unique_ptr<Callback> make_device_stats(bool cpu);

struct TraceOptions {
  std::filesystem::path file;
  std::int64_t first_step = 5;  // steps before it begins
  std::int64_t num_steps = 5;
};
// A Chrome trace of some steps; written when they are over, or at the end.
std::unique_ptr<Callback> make_chrome_trace(TraceOptions options);

// Puts `averages` (by parameter) into the checkpoint's model file; the weights that training goes on
// with move to `extra` as "trained/<parameter>", where resuming finds them.
void deliver(const TensorMap& averages, Checkpoint& checkpoint);
// The averages of a checkpoint that was saved with deliver(); empty: it was not.
TensorMap delivered(const Checkpoint& checkpoint);
// Parameters and buffers that training goes on with, whatever the checkpoint delivers.
TensorMap trained(const Checkpoint& checkpoint);

}  // namespace tutti::trainer
