// Dropout that is cheap on a CPU: torch draws a double from a Mersenne twister for every element,
// which was a fifth of a training step of a small model. Here one draw from torch's generator keys
// a hash of the element's index, which vectorises; the backward pass hashes again instead of
// keeping a mask. Seeds and saved generator states mean what they mean for torch's own dropout.
// GPUs do the same (kernels/fused.cuh): a model drops the same elements on both.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <atomic>
#include <cstdint>
#include <mutex>

#include "tutti/core/error.h"
#include "tutti/core/vector_clones.h"
#include "tutti/speech/kernels/dropout_hash.h"
#include "tutti/speech/models/modules.h"
#include "tutti/speech/ops/dropout.h"
#include "tutti/speech/ops/gpu/fused.h"

namespace tutti::speech {

namespace {

// y = x * scale where the element stays, else 0.
TUTTI_VECTOR_CLONES
void drop(const float* __restrict x, float* __restrict y, std::int64_t begin, std::int64_t end,
          std::uint32_t key_low, std::uint32_t key_high, std::int32_t threshold, float scale) {
  for (std::int64_t i = begin; i < end; ++i)
    y[i] = cuda::dropout_keeps(static_cast<std::uint32_t>(i), key_low, key_high, threshold)
               ? x[i] * scale
               : 0.0F;
}

torch::Tensor dropped(const torch::Tensor& x, std::uint64_t key, double rate) {
  const torch::Tensor input = x.contiguous();
  torch::Tensor output = torch::empty_like(input);
  const std::int32_t threshold = dropout_threshold(rate);
  const float scale = static_cast<float>(1.0 / (1.0 - rate));
  const float* from = input.data_ptr<float>();
  float* to = output.data_ptr<float>();
  at::parallel_for(0, input.numel(), 1 << 15, [&](std::int64_t begin, std::int64_t end) {
    drop(from, to, begin, end, static_cast<std::uint32_t>(key),
         static_cast<std::uint32_t>(key >> 32), threshold, scale);
  });
  return output;
}

class CpuDropout : public torch::autograd::Function<CpuDropout> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               double rate, std::int64_t key) {
    context->saved_data["rate"] = rate;
    context->saved_data["key"] = key;
    return dropped(x, static_cast<std::uint64_t>(key), rate);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto key = static_cast<std::uint64_t>(context->saved_data["key"].toInt());
    return {dropped(gradients[0], key, context->saved_data["rate"].toDouble()), torch::Tensor(),
            torch::Tensor()};
  }
};

thread_local RecordedKeys* t_recorded_keys = nullptr;
std::atomic<const std::uint64_t*> g_recorded_keys = nullptr;

}  // namespace

RecordedKeys::RecordedKeys(const std::uint64_t* keys, std::int64_t capacity) : capacity_(capacity) {
  t_recorded_keys = this;
  g_recorded_keys = keys;
}
RecordedKeys::~RecordedKeys() {
  t_recorded_keys = nullptr;
  g_recorded_keys = nullptr;
}

std::uint64_t RecordedKeys::next_place() {
  if (num_places_ == capacity_)
    throw InternalError("dropout: more places than a recording has keys for");
  return static_cast<std::uint64_t>(num_places_++);
}

const std::uint64_t* RecordedKeys::current_keys() { return g_recorded_keys; }

std::uint64_t draw_dropout_key() {
  if (t_recorded_keys) return t_recorded_keys->next_place();
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard<std::mutex> lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

torch::Tensor apply_dropout(const torch::Tensor& x, double rate, bool training) {
  if (!training || rate <= 0) return x;
  if (rate < 1 && gpu::can_fuse_dropout(x)) return gpu::fused_dropout(x, rate);
  const bool ours = x.device().is_cpu() && x.scalar_type() == torch::kFloat32 && rate < 1;
  return ours ? CpuDropout::apply(x, rate, static_cast<std::int64_t>(draw_dropout_key()))
              : torch::dropout(x, rate, true);
}

}  // namespace tutti::speech
