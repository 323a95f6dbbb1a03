#include "tutti/speech/ops/gpu/ctc.h"

#include "tutti/core/error.h"

#ifdef TUTTI_WITH_CUDA_KERNELS
#include <torch/torch.h>

#include "tutti/speech/kernels/ctc.h"
#include "tutti/speech/ops/gpu/call.h"
#include "tutti/speech/ops/gpu/cuda_ops.h"

namespace tutti::speech {

namespace {

cuda::CtcTexts ctc_texts(const torch::Tensor& text_BL, const torch::Tensor& lengths_2B) {
  return {.labels = text_BL.data_ptr<std::int64_t>(),
          .lengths = lengths_2B.data_ptr<std::int64_t>()};
}

cuda::CtcSize ctc_size(const torch::Tensor& logits_BTV, const torch::Tensor& text_BL,
                       std::int64_t max_labels) {
  return {.batch = logits_BTV.size(0),
          .frames = logits_BTV.size(1),
          .vocab = logits_BTV.size(2),
          .labels = max_labels,
          .label_row = text_BL.size(1)};
}

class CudaCtcLoss : public torch::autograd::Function<CudaCtcLoss> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& logits_BTV, const torch::Tensor& text_BL,
                               const torch::Tensor& lengths_2B, std::int64_t max_labels,
                               bool zero_infinity, bool with_gradient, bool logits_are_ours) {
    const c10::cuda::CUDAGuard guard(logits_BTV.device());
    const torch::Tensor logits = logits_BTV.contiguous(), text = text_BL.contiguous();
    const cuda::CtcSize size = ctc_size(logits, text, max_labels);
    const auto buffer = [&](std::initializer_list<std::int64_t> shape, torch::ScalarType type) {
      return torch::empty(shape, logits.options().dtype(type));
    };
    const torch::Tensor log_sums = buffer({size.batch, size.frames}, torch::kFloat32),
                        log_probs = buffer({size.batch}, torch::kFloat64),
                        emissions =
                            buffer({size.batch, size.frames, size.labels + 1}, torch::kFloat32);
    torch::Tensor losses = buffer({size.batch}, torch::kFloat32);
    cuda::CtcState state{.log_sums = log_sums.data_ptr<float>(),
                         .emissions = emissions.data_ptr<float>(),
                         .log_probs = log_probs.data_ptr<double>()};
    torch::Tensor ways, links;
    if (with_gradient) {
      ways = buffer({2, size.batch, size.frames, size.states()}, torch::kFloat64);
      links = buffer({2, size.batch, size.labels}, torch::kInt32);
      enter_gradient_state(state, ways, links);
    }
    const cuda::CtcTexts texts = ctc_texts(text, lengths_2B);
    cuda::ctc_frames(number_of(logits), logits.data_ptr(), texts, state, size, stream_of(logits));
    cuda::ctc_recursions(texts, state, zero_infinity, losses.data_ptr<float>(), size,
                         stream_of(logits));
    if (with_gradient)
      context->save_for_backward(
          {logits, text, lengths_2B, log_sums, log_probs, emissions, ways, links});
    context->saved_data["max_labels"] = max_labels;
    context->saved_data["zero_infinity"] = zero_infinity;
    context->saved_data["ours"] = logits_are_ours;
    return losses;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const torch::Tensor &logits = saved[0], &text = saved[1], &lengths_2B = saved[2];
    const c10::cuda::CUDAGuard guard(logits.device());
    cuda::CtcState state{.log_sums = saved[3].data_ptr<float>(),
                         .emissions = saved[5].data_ptr<float>(),
                         .log_probs = saved[4].data_ptr<double>()};
    enter_gradient_state(state, saved[6], saved[7]);
    const torch::Tensor g = gradients[0].to(torch::kFloat32).contiguous();
    torch::Tensor grad_logits =
        context->saved_data["ours"].toBool() ? logits.detach() : torch::empty_like(logits);
    cuda::ctc_gradient(
        number_of(logits), logits.data_ptr(), ctc_texts(text, lengths_2B), state,
        context->saved_data["zero_infinity"].toBool(), g.data_ptr<float>(), grad_logits.data_ptr(),
        ctc_size(logits, text, context->saved_data["max_labels"].toInt()), stream_of(logits));
    return {grad_logits,     torch::Tensor(), torch::Tensor(), torch::Tensor(),
            torch::Tensor(), torch::Tensor(), torch::Tensor()};
  }

 private:
  static void enter_gradient_state(cuda::CtcState& state, const torch::Tensor& ways,
                                   const torch::Tensor& links) {
    state.alpha = ways.data_ptr<double>();
    state.beta = state.alpha + ways.stride(0);
    state.links = links.data_ptr<std::int32_t>();
  }
};

}  // namespace

bool has_cuda_ctc(const torch::Tensor& logits_BTV, const Lengths& text_lengths) {
  return has_cuda_ops(logits_BTV) && logits_BTV.numel() > 0 &&
         max_length(text_lengths) <= cuda::kMaxCtcLabels;
}

torch::Tensor cuda_ctc_loss(const torch::Tensor& logits_BTV, const Lengths& frame_lengths,
                            const torch::Tensor& text_BL, const Lengths& text_lengths,
                            bool zero_infinity, bool logits_are_ours) {
  const auto batch = static_cast<std::size_t>(logits_BTV.size(0));
  if (frame_lengths.size() != batch || text_lengths.size() != batch ||
      max_length(frame_lengths) > logits_BTV.size(1) || max_length(text_lengths) > text_BL.size(1))
    throw InternalError("cuda_ctc_loss: lengths do not fit logits and text");
  // Both at once: every copy to a device costs a launch.
  Lengths lengths = frame_lengths;
  lengths.insert(lengths.end(), text_lengths.begin(), text_lengths.end());
  return CudaCtcLoss::apply(
      logits_BTV, text_BL.to(logits_BTV.device(), torch::kInt64),
      to_device(lengths, logits_BTV.device()), max_length(text_lengths), zero_infinity,
      torch::GradMode::is_enabled() && logits_BTV.requires_grad(), logits_are_ours);
}

torch::Tensor cuda_ctc_loss(const torch::Tensor& logits_BTV, const torch::Tensor& lengths_2B,
                            const torch::Tensor& text_BL, bool zero_infinity,
                            bool logits_are_ours) {
  return CudaCtcLoss::apply(
      logits_BTV, text_BL, lengths_2B.contiguous(), text_BL.size(1), zero_infinity,
      torch::GradMode::is_enabled() && logits_BTV.requires_grad(), logits_are_ours);
}

}  // namespace tutti::speech

#else

namespace tutti::speech {

bool has_cuda_ctc(const torch::Tensor&, const Lengths&) { return false; }

torch::Tensor cuda_ctc_loss(const torch::Tensor&, const Lengths&, const torch::Tensor&,
                            const Lengths&, bool, bool) {
  throw InternalError("this build has no GPU kernels");
}

torch::Tensor cuda_ctc_loss(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&, bool,
                            bool) {
  throw InternalError("this build has no GPU kernels");
}

}  // namespace tutti::speech
#endif
