// In which number formats forward, backward and weights live.
//
//   Precision precision(PrecisionMode::kBf16Mixed, device);
//   { auto scope = precision.forward_scope(); output = model.training_step(batch); }
//
// `16-mixed` on a CPU of libtorch 1.13 becomes `bf16-mixed` with a warning (that libtorch has no
// fp16 autocast there). On CPUs autocast also runs softmax, log_softmax and layer_norm in bf16, on
// GPUs in fp32: modules of ours cast explicitly, so that both agree.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>

#include "tutti/core/json.h"
#include "tutti/trainer/batch.h"
#include "tutti/trainer/trainer_settings.h"

namespace tutti::trainer {

// Autocast is thread-local; the scope belongs to the thread that made it.
class AutocastScope {
 public:
  AutocastScope(at::DeviceType device, at::ScalarType type);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  at::DeviceType device_;
  bool was_on_;
  bool was_cached_;
  at::ScalarType old_type_;
};

class Precision {
 public:
  Precision(PrecisionMode mode, at::Device device);
  PrecisionMode mode() const { return mode_; }
  bool needs_loss_scaling() const { return mode_ == PrecisionMode::k16Mixed; }
  // The type of weights, if the mode dictates one.
  std::optional<at::ScalarType> weight_type() const;
  std::unique_ptr<AutocastScope> forward_scope() const;  // null when the mode needs none
  // Moves tensors to the device and casts floating point ones where weights are cast. Tensors named
  // *_lengths stay on the host.
  void prepare(Batch& batch) const;

 private:
  PrecisionMode mode_;
  at::Device device_;
};

// Dynamic loss scaling for fp16: doubles after `growth_interval` good steps, halves on overflow.
class LossScaler {
 public:
  explicit LossScaler(bool enabled) : enabled_(enabled) {}
  bool enabled() const { return enabled_; }
  double scale() const { return enabled_ ? scale_ : 1.0; }
  // `finite`: whether the summed gradients of this step were. Returns whether to take the step.
  bool update(bool finite);
  Json state() const;
  void load(const Json& state);

 private:
  bool enabled_;
  double scale_ = 65536;
  int good_steps_ = 0;
  int growth_interval_ = 2000;
};

}  // namespace tutti::trainer
