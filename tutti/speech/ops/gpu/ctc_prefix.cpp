#include "tutti/speech/ops/gpu/ctc_prefix.h"

#include "tutti/core/error.h"

#ifdef TUTTI_WITH_CUDA_KERNELS
#include "tutti/speech/kernels/ctc_prefix.h"
#include "tutti/speech/ops/gpu/cuda_ops.h"
#include "tutti/speech/ops/gpu/tools.h"

namespace tutti::speech::gpu {

namespace {

constexpr std::int64_t kMostInGrid = 65535;

cuda::CtcPrefixes describe(const PrefixState& state) {
  return {.utterances = state.log_probs_UTV.size(0),
          .beam = state.last_token_UW.size(1),
          .frames = state.log_probs_UTV.size(1),
          .vocab = state.log_probs_UTV.size(2),
          .log_probs = floats(state.log_probs_UTV),
          .ends = state.ends_U.data_ptr<std::int64_t>(),
          .either = state.either_UWT.data_ptr<double>(),
          .blank = state.blank_UWT.data_ptr<double>(),
          .last_token = state.last_token_UW.data_ptr<std::int64_t>(),
          .blank_id = state.blank_id,
          .eos_id = state.eos_id,
          .first_frame = state.first_frame};
}

}  // namespace

bool can_fuse_ctc_prefix(const torch::Tensor& log_probs_UTV) {
  return has_cuda_ops(log_probs_UTV) && log_probs_UTV.scalar_type() == torch::kFloat32 &&
         log_probs_UTV.is_contiguous() && log_probs_UTV.numel() > 0 &&
         log_probs_UTV.size(0) <= kMostInGrid;
}

torch::Tensor fused_prefix_scores(const PrefixState& state, const torch::Tensor& candidates_UWK) {
  const c10::cuda::CUDAGuard guard(candidates_UWK.device());
  const torch::Tensor candidates = candidates_UWK.contiguous();
  torch::Tensor scores = fresh(candidates.sizes(), candidates.options().dtype(torch::kFloat64));
  cuda::ctc_prefix_scores(describe(state), candidates.data_ptr<std::int64_t>(), candidates.size(2),
                          scores.data_ptr<double>(), stream_of(scores));
  return scores;
}

std::pair<torch::Tensor, torch::Tensor> fused_prefix_advance(const PrefixState& state,
                                                             const torch::Tensor& parents_UW,
                                                             const torch::Tensor& tokens_UW) {
  const c10::cuda::CUDAGuard guard(tokens_UW.device());
  const torch::Tensor parents = parents_UW.contiguous(), tokens = tokens_UW.contiguous();
  torch::Tensor either = fresh_like(state.either_UWT), blank = fresh_like(state.blank_UWT);
  cuda::ctc_prefix_advance(describe(state), parents.data_ptr<std::int64_t>(),
                           tokens.data_ptr<std::int64_t>(), either.data_ptr<double>(),
                           blank.data_ptr<double>(), stream_of(tokens));
  return {either, blank};
}

}  // namespace tutti::speech::gpu

#else

namespace tutti::speech::gpu {

bool can_fuse_ctc_prefix(const torch::Tensor&) { return false; }
torch::Tensor fused_prefix_scores(const PrefixState&, const torch::Tensor&) {
  throw InternalError("this build has no GPU kernels");
}
std::pair<torch::Tensor, torch::Tensor> fused_prefix_advance(const PrefixState&,
                                                             const torch::Tensor&,
                                                             const torch::Tensor&) {
  throw InternalError("this build has no GPU kernels");
}

}  // namespace tutti::speech::gpu
#endif
