#include "tutti/trainer/precision.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/trainer/autocast.h"
#include "tutti/trainer/torch_version.h"

namespace tutti::trainer {

AutocastScope::AutocastScope(at::DeviceType device, at::ScalarType type)
    : device_(device),
      was_on_(autocast_on(device)),
      was_cached_(at::autocast::is_autocast_cache_enabled()),
      old_type_(autocast_type(device)) {
  set_autocast(device_, true);
  set_autocast_type(device_, type);
  at::autocast::set_autocast_cache_enabled(true);
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  // Weights cast inside the scope must not be reused after the optimizer changed them.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  set_autocast(device_, was_on_);
  set_autocast_type(device_, old_type_);
  at::autocast::set_autocast_cache_enabled(was_cached_);
}

Precision::Precision(PrecisionMode mode, at::Device device) : mode_(mode), device_(device) {
#if !TUTTI_TORCH_AT_LEAST(2, 1)
  if (mode_ == PrecisionMode::k16Mixed && device_.is_cpu()) {
    log::warning(
        "precision: 16-mixed is not available on this CPU libtorch ({}.{}); using bf16-mixed",
        TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR);
    mode_ = PrecisionMode::kBf16Mixed;
  }
#endif
}

std::optional<at::ScalarType> Precision::weight_type() const {
  if (mode_ == PrecisionMode::k64) return at::kDouble;
  if (mode_ == PrecisionMode::kBf16True) return at::kBFloat16;
  return std::nullopt;
}

std::unique_ptr<AutocastScope> Precision::forward_scope() const {
  if (mode_ == PrecisionMode::k16Mixed)
    return std::make_unique<AutocastScope>(device_.type(), at::kHalf);
  if (mode_ == PrecisionMode::kBf16Mixed)
    return std::make_unique<AutocastScope>(device_.type(), at::kBFloat16);
  return nullptr;
}

void Precision::prepare(Batch& batch) const {
  const auto type = weight_type();
  for (auto& [name, tensor] : batch.tensors) {
    // Models read lengths on the host, to shape what they compute; from a GPU that would wait for
    // it.
    if (name.ends_with("_lengths")) continue;
    if (device_ != tensor.device()) tensor = tensor.to(device_, /*non_blocking=*/true);
    if (type && tensor.is_floating_point()) tensor = tensor.to(*type);
  }
}

bool LossScaler::update(bool finite) {
  if (!enabled_) return true;
  if (!finite) {
    scale_ *= 0.5;
    good_steps_ = 0;
    return false;
  }
  if (++good_steps_ == growth_interval_) {
    if (scale_ < 1e30) scale_ *= 2;
    good_steps_ = 0;
  }
  return true;
}

Json LossScaler::state() const {
  return {{"enabled", enabled_}, {"scale", scale_}, {"good_steps", good_steps_}};
}

void LossScaler::load(const Json& state) {
  scale_ = state.value("scale", scale_);
  good_steps_ = state.value("good_steps", good_steps_);
}

}  // namespace tutti::trainer
