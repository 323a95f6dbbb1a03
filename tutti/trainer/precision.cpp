#include "tutti/trainer/precision.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/trainer/autocast.h"
#include "tutti/trainer/torch_version.h"

namespace tutti::trainer {

PrecisionMode parse_precision(const std::string& text) {
  if (text == "32" || text == "32-true") return PrecisionMode::k32;
  if (text == "64" || text == "64-true") return PrecisionMode::k64;
  if (text == "16" || text == "16-mixed") return PrecisionMode::k16Mixed;
  if (text == "bf16" || text == "bf16-mixed") return PrecisionMode::kBf16Mixed;
  if (text == "bf16-true") return PrecisionMode::kBf16True;
  throw ConfigError(
      fmt::format("trainer.precision: got '{}', expected 32, 16-mixed, bf16-mixed, "
                  "bf16-true or 64-true",
                  text));
}

std::string to_string(PrecisionMode mode) {
  switch (mode) {
    case PrecisionMode::k32:
      return "32";
    case PrecisionMode::k64:
      return "64-true";
    case PrecisionMode::k16Mixed:
      return "16-mixed";
    case PrecisionMode::kBf16Mixed:
      return "bf16-mixed";
    case PrecisionMode::kBf16True:
      return "bf16-true";
  }
  return "?";
}

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
