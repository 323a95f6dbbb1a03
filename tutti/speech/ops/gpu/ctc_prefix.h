// CTC prefix scores of a search by kernels of ours (kernels/ctc_prefix.h): one for the scores of
// candidates, one for the step to new hypotheses. Internal to speech/.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <utility>

namespace tutti::speech::gpu {

// What CtcPrefixScore keeps; either, blank and last_token are (U, W, ..), contiguous.
struct PrefixState {
  const torch::Tensor &log_probs_UTV, &ends_U, &either_UWT, &blank_UWT, &last_token_UW;
  std::int64_t blank_id = 0, eos_id = 0, first_frame = 0;
};

// Whether these posteriors can be served.
bool can_fuse_ctc_prefix(const torch::Tensor& log_probs_UTV);
// (U, W, K) float64.
torch::Tensor fused_prefix_scores(const PrefixState& state, const torch::Tensor& candidates_UWK);
// either and blank of hypotheses parents[u, w] with tokens[u, w]; past an utterance's end they hold
// anything.
std::pair<torch::Tensor, torch::Tensor> fused_prefix_advance(const PrefixState& state,
                                                             const torch::Tensor& parents_UW,
                                                             const torch::Tensor& tokens_UW);

}  // namespace tutti::speech::gpu
