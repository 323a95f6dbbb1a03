#include "tutti/trainer/cuda/adam.h"

#include "tutti/trainer/cuda/many_tensors.cuh"

namespace tutti::trainer::cuda {
namespace {

using Tensors = Many<AdamTensor, sizeof(AdamNumbers)>;

__device__ inline void update(const AdamNumbers& n, const AdamTensor& t, float factor, float& p,
                              float g, float& m, float& v) {
  g = g * factor + n.l2 * p;
  m = n.beta1 * m + n.more1 * g;
  v = n.beta2 * v + n.more2 * g * g;
  p = p * n.decay - t.step_size * m / (sqrtf(v) * t.denom_scale + n.eps);
}

__device__ inline bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

__global__ void __launch_bounds__(kThreads)
    adam_kernel(const __grid_constant__ Tensors many, const __grid_constant__ AdamNumbers n) {
  float factor = n.factor;
  if (n.squared_norm != nullptr) {
    // As the host would reckon, with the same roundings.
    const double norm = static_cast<double>(sqrtf(*n.squared_norm)) * n.average;
    if (!isfinite(norm)) return;
    factor = static_cast<float>(n.limit > 0 ? n.average * fmin(1.0, n.limit / (norm + 1e-6))
                                            : n.average);
  }
  std::int64_t piece = 0;
  const AdamTensor& t = many.tensors[many.find(piece)];
  const std::int64_t begin = piece * kPiece, end = min(begin + kPiece, t.count);
  const bool aligned = is_aligned(t.parameter) && is_aligned(t.gradient) && is_aligned(t.average) &&
                       is_aligned(t.square);
  const std::int64_t fours = aligned ? begin + (end - begin) / 4 * 4 : begin;
  for (std::int64_t i = begin + 4 * threadIdx.x; i < fours; i += 4 * kThreads) {
    auto& parameter = *reinterpret_cast<float4*>(t.parameter + i);
    auto& average = *reinterpret_cast<float4*>(t.average + i);
    auto& square = *reinterpret_cast<float4*>(t.square + i);
    const float4 g = *reinterpret_cast<const float4*>(t.gradient + i);
    float4 p = parameter, m = average, v = square;
    update(n, t, factor, p.x, g.x, m.x, v.x);
    update(n, t, factor, p.y, g.y, m.y, v.y);
    update(n, t, factor, p.z, g.z, m.z, v.z);
    update(n, t, factor, p.w, g.w, m.w, v.w);
    parameter = p;
    average = m;
    square = v;
  }
  for (std::int64_t i = fours + threadIdx.x; i < end; i += kThreads)
    update(n, t, factor, t.parameter[i], t.gradient[i], t.average[i], t.square[i]);
}

}  // namespace

void adam(const std::vector<AdamTensor>& tensors, const AdamNumbers& numbers, CUstream_st* stream) {
  launch_many<Tensors>(tensors, "adam", [&](const Tensors& many, unsigned blocks, std::int64_t) {
    adam_kernel<<<blocks, kThreads, 0, stream>>>(many, numbers);
  });
}

}  // namespace tutti::trainer::cuda
