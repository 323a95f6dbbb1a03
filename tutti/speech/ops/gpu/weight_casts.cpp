#include "tutti/speech/ops/fused.h"

#ifdef TUTTI_WITH_CUDA_KERNELS
#include "tutti/speech/ops/gpu/tools.h"

namespace tutti::speech {

namespace {

thread_local const WeightCasts* current_casts = nullptr;

}  // namespace

torch::Tensor gpu::cast_weight(const torch::Tensor& weight, torch::ScalarType type) {
  if (weight.scalar_type() == type) return weight.contiguous();
  if (current_casts)
    if (torch::Tensor found = current_casts->find(weight, type); found.defined()) return found;
  return weight.to(type).contiguous();
}

WeightCasts::Scope::Scope(const WeightCasts* casts) : before_(current_casts) {
  current_casts = casts;
}
WeightCasts::Scope::~Scope() { current_casts = before_; }

std::unique_ptr<WeightCasts::Scope> WeightCasts::refresh(const torch::nn::Module& model) {
#if TUTTI_TORCH_AT_LEAST(2, 4)
  if (!cuda_autocast_on()) return nullptr;
  torch::NoGradGuard no_grad;
  if (weights_.empty()) {
    std::vector<torch::Tensor> biases;
    for (const auto& module : model.modules(/*include_self=*/false)) {
      const auto* linear = dynamic_cast<const LinearImpl*>(module.get());
      if (!linear || linear->weight.scalar_type() != torch::kFloat32) continue;
      weights_.push_back(linear->weight);
      if (linear->bias.defined()) biases.push_back(linear->bias);
    }
    weights_.insert(weights_.end(), biases.begin(), biases.end());
  }
  if (weights_.empty()) return nullptr;
  for (const torch::Tensor& weight : weights_)
    if (!weight.is_cuda() || weight.storage().nbytes() == 0) return nullptr;
  const auto type = product_type(weights_[0]);
  if (casts_.empty() || casts_[0].scalar_type() != type ||
      casts_[0].device() != weights_[0].device()) {
    casts_.clear();
    places_.clear();
    // In one piece, weights first, then biases: those of a layer's query, key and value lie side by
    // side, and products() takes them at once.
    constexpr std::int64_t kAlignment = 128;  // elements; 256 bytes
    std::int64_t total = 0;
    std::vector<std::int64_t> offsets;
    for (const torch::Tensor& weight : weights_) {
      offsets.push_back(total);
      total += (weight.numel() + kAlignment - 1) / kAlignment * kAlignment;
    }
    const torch::Tensor piece = torch::empty({total}, weights_[0].options().dtype(type));
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      places_[weights_[i].unsafeGetTensorImpl()] = i;
      casts_.push_back(piece.narrow(0, offsets[i], weights_[i].numel()).view(weights_[i].sizes()));
    }
  }
  at::_foreach_copy_(casts_, weights_);
  return std::make_unique<Scope>(this);
#else
  static_cast<void>(model);
  return nullptr;
#endif
}

void WeightCasts::keep_floats(const torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  *this = WeightCasts();
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (dynamic_cast<const LinearImpl*>(module.get())) continue;
    for (const torch::Tensor& parameter : module->parameters(/*recurse=*/false)) {
      if (!parameter.is_cuda() || parameter.scalar_type() == torch::kFloat32) continue;
      places_[parameter.unsafeGetTensorImpl()] = weights_.size();
      weights_.push_back(parameter);
      casts_.push_back(parameter.to(torch::kFloat32).contiguous());
    }
  }
}

torch::Tensor WeightCasts::find(const torch::Tensor& weight, torch::ScalarType type) const {
  const auto place = places_.find(weight.unsafeGetTensorImpl());
  if (place == places_.end() || casts_[place->second].scalar_type() != type) return {};
  return casts_[place->second];
}

}  // namespace tutti::speech

#else

namespace tutti::speech {

WeightCasts::Scope::Scope(const WeightCasts* casts) : before_(casts) {}
WeightCasts::Scope::~Scope() { static_cast<void>(before_); }  // of CUDA only
std::unique_ptr<WeightCasts::Scope> WeightCasts::refresh(const torch::nn::Module&) {
  return nullptr;
}
void WeightCasts::keep_floats(const torch::nn::Module&) {}
torch::Tensor WeightCasts::find(const torch::Tensor&, torch::ScalarType) const { return {}; }

}  // namespace tutti::speech
#endif
