#include <torch/torch.h>

#include "tutti/trainer/strategies/strategy.h"
#ifdef TUTTI_WITH_CUDA_KERNELS
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "tutti/trainer/cuda/squared_norm.h"
#endif

namespace tutti::trainer {
namespace {

class SingleStrategy final : public Strategy {
 public:
  SingleStrategy() : Strategy("single") {}
  std::vector<NamedTensors> setup(TrainableModel&, const std::vector<NamedTensors>& groups,
                                  at::Device) override {
    return groups;
  }
  void begin(const Pass&) override {}
  void settle(bool) override {}
  void finish(std::size_t, bool) override {}
  at::Tensor squared_norm(const std::vector<at::Tensor>& gradients) override {
    return local_squared_norm(gradients);
  }
};

}  // namespace

std::unique_ptr<Strategy> make_single_strategy() { return std::make_unique<SingleStrategy>(); }

#ifdef TUTTI_WITH_CUDA_KERNELS
namespace {

// Undefined where the kernel does not fit.
at::Tensor squared_norm_on_gpu(const std::vector<at::Tensor>& gradients) {
  if (!gradients[0].is_cuda()) return {};
  std::vector<cuda::Floats> floats;
  for (const at::Tensor& g : gradients) {
    if (g.scalar_type() != at::kFloat || !g.is_non_overlapping_and_dense() ||
        g.device() != gradients[0].device())
      return {};
    floats.push_back({g.data_ptr<float>(), g.numel()});
  }
  const c10::cuda::CUDAGuard guard(gradients[0].device());
  const std::int64_t count = cuda::squared_norm_partials(floats);
  const at::Tensor memory = at::empty({count + 1}, gradients[0].options());
  float* partials = memory.data_ptr<float>();
  cuda::squared_norm(floats, partials, partials + count,
                     c10::cuda::getCurrentCUDAStream(gradients[0].device().index()).stream());
  return memory.select(0, count);
}

}  // namespace
#endif

at::Tensor local_squared_norm(const std::vector<at::Tensor>& gradients) {
  torch::NoGradGuard no_grad;
  if (gradients.empty()) return at::zeros({});
#ifdef TUTTI_WITH_CUDA_KERNELS
  if (at::Tensor sum = squared_norm_on_gpu(gradients); sum.defined()) return sum;
#endif
  // bf16 gradients would lose the small terms of the sum.
  const std::vector<at::Tensor> norms = at::_foreach_norm(gradients, 2);
  const auto wide = norms[0].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::stack(norms).to(wide).square().sum();
}

}  // namespace tutti::trainer
