// What operations of ours on a GPU are made of. Internal to speech/.
#pragma once

#ifdef TUTTI_WITH_CUDA_KERNELS
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "tutti/speech/kernels/fused.h"
#include "tutti/speech/ops/dropout.h"
#include "tutti/speech/ops/gpu/call.h"

namespace tutti::speech::gpu {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// As torch::empty, without the way through torch's dispatcher: half of a small kernel's launch.
inline torch::Tensor fresh(at::IntArrayRef sizes, const torch::TensorOptions& options) {
  return torch::Tensor(at::detail::empty_cuda(sizes, options));
}
inline torch::Tensor fresh_like(const torch::Tensor& x) { return fresh(x.sizes(), x.options()); }

inline torch::Tensor as_rows(const torch::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// Like x with another last dimension.
inline std::vector<std::int64_t> with_last(const torch::Tensor& x, std::int64_t last) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = last;
  return sizes;
}

inline cuda::Matrix matrix_of(const torch::Tensor& x) {
  return {.rows = x.numel() / x.size(-1), .columns = x.size(-1)};
}

inline torch::TensorOptions floats_like(const torch::Tensor& x) {
  return x.options().dtype(torch::kFloat32);
}

constexpr std::int64_t kScratchBytes = 32 << 20;
constexpr std::int64_t kCounterBytes = cuda::kCounters * sizeof(unsigned);

struct Scratch {
  unsigned* counters;  // zeros
  void* memory;
};

// Memory for what a kernel writes and the next one reads. What is queued on a stream runs in turn,
// so one piece for each thread and stream does for all of them; it is kept for the life of the
// process, as a thread may end after the driver has.
inline Scratch scratch(std::int64_t bytes, const torch::Tensor& like) {
  using Pieces = std::map<std::pair<int, void*>, torch::Tensor>;
  thread_local auto* pieces = new Pieces;
  torch::Tensor& piece = (*pieces)[{like.device().index(), stream_of(like)}];
  if (!piece.defined() || piece.numel() < kCounterBytes + bytes) {
    // A recording may know the old piece by its address.
    thread_local auto* outgrown = new std::vector<torch::Tensor>;
    if (piece.defined()) outgrown->push_back(piece);
    piece = fresh({kCounterBytes + std::max(bytes, kScratchBytes)},
                  like.options().dtype(torch::kUInt8));
    piece.narrow(0, 0, kCounterBytes).zero_();
  }
  auto* begin = static_cast<std::uint8_t*>(piece.data_ptr());
  return {reinterpret_cast<unsigned*>(begin), begin + kCounterBytes};
}
inline float* scratch_for_sums(int sums, std::int64_t columns, const torch::Tensor& like) {
  const std::int64_t bytes =
      cuda::partial_floats(sums, columns) * static_cast<std::int64_t>(sizeof(float));
  return static_cast<float*>(scratch(bytes, like).memory);
}
inline cuda::Sums sums_to(torch::Tensor& totals, int sums, std::int64_t columns) {
  float* partials = scratch_for_sums(sums, columns, totals);
  return {totals.data_ptr<float>(), partials, scratch(0, totals).counters};
}

inline const float* floats(const torch::Tensor& x) { return x.data_ptr<float>(); }

inline const std::uint8_t* bytes_of(const torch::Tensor& mask) {
  return mask.defined() ? static_cast<const std::uint8_t*>(mask.data_ptr()) : nullptr;
}

inline torch::Tensor contiguous_as(const torch::Tensor& x, torch::ScalarType type) {
  return (x.scalar_type() == type ? x : x.to(type)).contiguous();
}

// Whether what is launched now is written down instead of run.
inline bool is_recording() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

struct Dropping {
  std::int64_t key = 0;
  double rate = 0;

  static Dropping draw(double rate) {
    return {rate > 0 ? static_cast<std::int64_t>(draw_dropout_key()) : 0, rate};
  }
  void save(AutogradContext& context, const char* key_name, const char* rate_name) const {
    context.saved_data[key_name] = key;
    context.saved_data[rate_name] = rate;
  }
  static Dropping load(AutogradContext& context, const char* key_name, const char* rate_name) {
    return {context.saved_data[key_name].toInt(), context.saved_data[rate_name].toDouble()};
  }
  cuda::Dropout call() const {
    if (rate <= 0) return {};
    cuda::Dropout dropout{.key = static_cast<std::uint64_t>(key),
                          .threshold = dropout_threshold(rate),
                          .scale = static_cast<float>(1.0 / (1.0 - rate))};
    if (const std::uint64_t* keys = RecordedKeys::current_keys(); keys && is_recording())
      dropout.key_at = keys + key;
    return dropout;
  }
};

// Kernels read parameters sixteen bytes at a time; those of a flat buffer may lie anywhere.
inline bool is_plain(const torch::Tensor& parameter) {
  return parameter.scalar_type() == torch::kFloat32 && parameter.is_contiguous() &&
         reinterpret_cast<std::uintptr_t>(parameter.data_ptr()) % 16 == 0;
}

inline bool can_be_floats(const torch::Tensor& parameter) {
  return is_plain(parameter) ||
         number_type(parameter.scalar_type()).value_or(cuda::Number::kFloat) !=
             cuda::Number::kFloat;
}

// A copy of the weight in this type; of WeightCasts where one is at hand.
torch::Tensor cast_weight(const torch::Tensor& weight, torch::ScalarType type);

// Kernels read parameters as floats; those of a model in half precision are few.
inline torch::Tensor as_floats(const torch::Tensor& parameter) {
  return is_plain(parameter) ? parameter : cast_weight(parameter, torch::kFloat32);
}

}  // namespace tutti::speech::gpu
#endif
