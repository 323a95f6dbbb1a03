#include "tutti/speech/ops/gpu/log_mel.h"

#ifdef TUTTI_WITH_CUDA_KERNELS
#include <torch/torch.h>

#include <cmath>
#include <numbers>

#include "tutti/speech/kernels/log_mel.h"
#include "tutti/speech/ops/gpu/call.h"

namespace tutti::speech::gpu {

namespace {

using Filter = cuda::LogMelCall::Filter;

torch::Tensor table_of_turns() {
  torch::Tensor turns = torch::empty({cuda::kFftSize, 2}, torch::kFloat32);
  auto at = turns.accessor<float, 2>();
  for (int k = 0; k < cuda::kFftSize; ++k) {
    const double angle = -2 * std::numbers::pi * k / cuda::kFftSize;
    at[k][0] = static_cast<float>(std::cos(angle));
    at[k][1] = static_cast<float>(std::sin(angle));
  }
  return turns;
}

// A filter's bins lie side by side; the weights between its first and its last one are kept.
struct Sparse {
  std::vector<std::int32_t> places;  // first, count, at
  std::vector<float> weights;
};

Sparse sparse_filters(const torch::Tensor& filters_FM) {
  const torch::Tensor host = filters_FM.to(torch::kCPU, torch::kFloat32).contiguous();
  const auto value = host.accessor<float, 2>();
  const std::int64_t bins = host.size(0);
  Sparse out;
  for (std::int64_t m = 0; m < host.size(1); ++m) {
    std::int64_t first = 0, last = bins;
    while (first < bins && value[first][m] == 0) ++first;
    while (last > first && value[last - 1][m] == 0) --last;
    for (const std::int64_t n :
         {first, last - first, static_cast<std::int64_t>(out.weights.size())})
      out.places.push_back(static_cast<std::int32_t>(n));
    for (std::int64_t k = first; k < last; ++k) out.weights.push_back(value[k][m]);
  }
  return out;
}

template <class T>
torch::Tensor on_device(const std::vector<T>& values, torch::ScalarType type,
                        torch::Device device) {
  torch::Tensor host = torch::empty({static_cast<std::int64_t>(values.size())}, type);
  std::copy(values.begin(), values.end(), host.data_ptr<T>());
  return host.to(device);
}

}  // namespace

torch::Tensor FusedLogMel::run(const Call& call) {
  const torch::Tensor& speech = call.speech_BN;
  if (!speech.is_cuda() || speech.scalar_type() != torch::kFloat32 || speech.stride(1) != 1 ||
      call.fft_size != cuda::kFftSize || call.filters_FM.size(0) != cuda::kFftSize / 2 + 1 ||
      call.frames <= 0 || speech.size(1) > (std::int64_t{1} << 30))
    return {};
  const c10::cuda::CUDAGuard guard(speech.device());
  const auto version = call.filters_FM.unsafeGetTensorImpl()->version_counter().current_version();
  if (made_of_ != call.filters_FM.data_ptr() || version_ != version ||
      window_.device() != speech.device()) {
    const Sparse sparse = sparse_filters(call.filters_FM);
    places_ = on_device(sparse.places, torch::kInt32, speech.device());
    weights_ = on_device(sparse.weights, torch::kFloat32, speech.device());
    const std::int64_t length = call.window.numel(), left = (call.fft_size - length) / 2;
    window_ = torch::constant_pad_nd(call.window.to(torch::kFloat32),
                                     {left, call.fft_size - length - left});
    if (call.normalized) window_ = window_ / std::sqrt(static_cast<double>(call.fft_size));
    window_ = window_.to(speech.device()).contiguous();
    turns_ = table_of_turns().to(speech.device());
    made_of_ = call.filters_FM.data_ptr();
    version_ = static_cast<std::uint32_t>(version);
  }
  const auto mels = static_cast<int>(call.filters_FM.size(1));
  if (!cuda::knows_mel_filters(mels, static_cast<int>(weights_.numel()))) return {};
  static_assert(sizeof(Filter) == 3 * sizeof(std::int32_t));
  const torch::Tensor lengths = to_device(call.num_samples, speech.device());
  torch::Tensor out = torch::empty({speech.size(0), call.frames, mels}, speech.options());
  cuda::log_mel({.batch = speech.size(0),
                 .frames = call.frames,
                 .samples = speech.size(1),
                 .speech_row = speech.stride(0),
                 .speech = speech.data_ptr<float>(),
                 .lengths = lengths.data_ptr<std::int64_t>(),
                 .hop = static_cast<int>(call.hop),
                 .margin = static_cast<int>(call.margin),
                 .window = window_.data_ptr<float>(),
                 .turns = turns_.data_ptr<float>(),
                 .filters = reinterpret_cast<const Filter*>(places_.data_ptr<std::int32_t>()),
                 .weights = weights_.data_ptr<float>(),
                 .mels = mels,
                 .num_weights = static_cast<int>(weights_.numel())},
                out.data_ptr<float>(), stream_of(speech));
  return out;
}

}  // namespace tutti::speech::gpu

#else

namespace tutti::speech::gpu {

torch::Tensor FusedLogMel::run(const Call&) { return {}; }

}  // namespace tutti::speech::gpu
#endif
