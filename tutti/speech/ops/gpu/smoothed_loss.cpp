#include "tutti/speech/ops/gpu/smoothed_loss.h"

#include "tutti/core/error.h"

#ifdef TUTTI_WITH_CUDA_KERNELS
#include <cmath>

#include "tutti/speech/kernels/smoothed_loss.h"
#include "tutti/speech/ops/gpu/cuda_ops.h"
#include "tutti/speech/ops/gpu/tools.h"

namespace tutti::speech::gpu {

namespace {

cuda::SmoothedLoss describe(const torch::Tensor& logits_BLV, const torch::Tensor& targets,
                            const torch::Tensor& lengths, const torch::Tensor& begins,
                            const torch::Tensor& scale, const torch::Tensor& log_sums,
                            double smoothing) {
  const std::int64_t classes = logits_BLV.size(2);
  const double other = classes > 1 ? smoothing / static_cast<double>(classes - 1) : 0.0;
  const double confidence = 1.0 - smoothing;
  const auto entropy_term = [](double p) { return p > 0 ? p * std::log(p) : 0.0; };
  return {.rows = logits_BLV.size(0) * logits_BLV.size(1),
          .places = logits_BLV.size(1),
          .classes = static_cast<int>(classes),
          .type = number_of(logits_BLV),
          .logits = logits_BLV.data_ptr(),
          .targets = targets.data_ptr<std::int64_t>(),
          .lengths = lengths.data_ptr<std::int64_t>(),
          .begins = begins.defined() ? begins.data_ptr<std::int64_t>() : nullptr,
          .right = static_cast<float>(confidence - other),
          .other = static_cast<float>(other),
          .constant = static_cast<float>(entropy_term(confidence) +
                                         static_cast<double>(classes - 1) * entropy_term(other)),
          .scale = floats(scale),
          .log_sums = log_sums.data_ptr<float>()};
}

class SmoothedLoss : public Function<SmoothedLoss> {
 public:
  static variable_list forward(AutogradContext* context, const torch::Tensor& logits_BLV,
                               const torch::Tensor& targets_BL, const torch::Tensor& lengths_B,
                               const std::optional<torch::Tensor>& begins_B,
                               const torch::Tensor& scale, double smoothing) {
    const PlainArithmetic plain;
    const c10::cuda::CUDAGuard guard(logits_BLV.device());
    const torch::Tensor logits = logits_BLV.contiguous(), targets = targets_BL.contiguous();
    const torch::Tensor begins = begins_B ? *begins_B : torch::Tensor();
    const std::int64_t rows = logits.size(0) * logits.size(1);
    const torch::Tensor numbers = fresh({3 * rows + 2}, floats_like(logits));
    const torch::Tensor log_sums = numbers.narrow(0, 0, rows);
    const torch::Tensor result = numbers.narrow(0, 3 * rows, 2);
    cuda::smoothed_loss(describe(logits, targets, lengths_B, begins, scale, log_sums, smoothing),
                        numbers.data_ptr<float>() + rows, result.data_ptr<float>(),
                        scratch(0, logits).counters, stream_of(logits));
    variable_list saved{logits, targets, lengths_B, scale, log_sums};
    if (begins.defined()) saved.push_back(begins);
    context->save_for_backward(saved);
    context->saved_data["smoothing"] = smoothing;
    const torch::Tensor loss = result.select(0, 0).clone(), accuracy = result.select(0, 1).clone();
    context->mark_non_differentiable({accuracy});
    return {loss, accuracy};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const PlainArithmetic plain;
    const auto saved = context->get_saved_variables();
    const torch::Tensor& logits = saved[0];
    const c10::cuda::CUDAGuard guard(logits.device());
    const torch::Tensor g = contiguous_as(gradients[0], torch::kFloat32);
    torch::Tensor grad_logits = fresh_like(logits);
    cuda::smoothed_loss_back(
        describe(logits, saved[1], saved[2], saved.size() > 5 ? saved[5] : torch::Tensor(),
                 saved[3], saved[4], context->saved_data["smoothing"].toDouble()),
        floats(g), grad_logits.data_ptr(), stream_of(logits));
    variable_list result(6);
    result[0] = grad_logits;
    return result;
  }
};

}  // namespace

bool can_fuse_smoothed_loss(const torch::Tensor& logits_BLV) {
  return has_cuda_ops(logits_BLV) && logits_BLV.numel() > 0 &&
         logits_BLV.size(2) < (std::int64_t{1} << 30);
}

AttentionLoss fused_smoothed_loss(const torch::Tensor& logits_BLV, const torch::Tensor& targets_BL,
                                  const torch::Tensor& lengths_B, const torch::Tensor& begins_B,
                                  const torch::Tensor& scale, double smoothing) {
  const auto results =
      SmoothedLoss::apply(logits_BLV, targets_BL, lengths_B, given(begins_B), scale, smoothing);
  return {results[0], results[1]};
}

}  // namespace tutti::speech::gpu

#else

namespace tutti::speech::gpu {

bool can_fuse_smoothed_loss(const torch::Tensor&) { return false; }

AttentionLoss fused_smoothed_loss(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&,
                                  const torch::Tensor&, const torch::Tensor&, double) {
  throw InternalError("this build has no GPU kernels");
}

}  // namespace tutti::speech::gpu
#endif
