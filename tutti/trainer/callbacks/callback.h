// Things that watch training and may ask it to stop. Every rank has its own copy and sees the same
// metrics, so every rank comes to the same decision without talking.
#pragma once

#include <cstdint>
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
};

class Callback {
 public:
  virtual ~Callback() = default;
  virtual void on_step(const Moment&) {}
  virtual void before_validation(const Moment&) {}
  virtual void after_validation(const Moment&) {}
  virtual void on_epoch_end(const Moment&) {}
  // State in a checkpoint; use names of your own ("ema/...") in `extra` and `trainer["callbacks"]`.
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
// Keeps an exponential moving average of the weights. Validation runs with the average; checkpoints
// hold it as "ema/<parameter>" beside the weights themselves.
std::unique_ptr<Callback> make_ema(EmaOptions options);

}  // namespace tutti::trainer
