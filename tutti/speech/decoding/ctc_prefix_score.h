// CTC prefix scores of the hypotheses of a batched beam search, on the device, without a kernel per
// frame.
//
//   CtcPrefixScore ctc(log_probs_UTV, lengths, beam, {.blank = 0, .eos = eos});
//   auto psi = ctc.score(candidates_UWK);        // log P(prefix + candidate ...), (U, W, K)
//   float64 ctc.advance(parents_UW, tokens_UW);          // the hypotheses that the search kept
//
// ESPnet runs r_t = f(r_{t-1}) over frames in Python for every candidate. Two observations make
// that needless. The score of a candidate is a plain log-sum over frames of what came before times
// the candidate's posterior, psi = logsumexp_t(phi_{t-1} + x_t): no recursion. And the recursion,
// which is needed only for the hypotheses that survive, is linear, so with A = cumsum(x) it is a
// scan:
//   r_t = logaddexp(r_{t-1}, phi_{t-1}) + x_t   <=>   r = A + logcumsumexp(phi_{t-1} - A_{t-1}).
// The scan subtracts numbers that grow with the length, so it runs in float64. On a GPU score() and
// advance() are a kernel each (ops/gpu/ctc_prefix.h).
//
// Semantics as ESPnet's CTCPrefixScoreTH: <eos> scores the prefix as a whole sentence, blank is
// impossible, a repeated token counts only paths that end in blank. Not thread-safe.
#pragma once

#include <torch/types.h>

#include <cstdint>

#include "tutti/speech/models/lengths.h"
#include "tutti/speech/ops/gpu/ctc_prefix.h"

namespace tutti::speech {

class CtcPrefixScore {
 public:
  struct Settings {
    std::int64_t blank = 0;
    std::int64_t eos = 0;
    std::int64_t start_token = 0;  // the token hypotheses begin with
    // Frames before this one may not hold the first token: ESPnet's scorer counts prompt tokens as
    // if they were spoken, so a prompt of n tokens gives n - 1 here.
    std::int64_t first_frame = 0;
  };

  // log_probs (U, T, V) float32; frames past an utterance's length may hold anything finite.
  CtcPrefixScore(torch::Tensor log_probs_UTV, const Lengths& lengths, std::int64_t beam,
                 Settings settings);

  // Log-probability of all label sequences that begin with hypothesis (u, w) and candidate k: (U,
  // W, K).
  torch::Tensor score(const torch::Tensor& candidates_UWK) const;
  // The same for the whole vocabulary: (U, W, V), in one matrix product.
  torch::Tensor score_all() const;
  // New hypothesis (u, w) is (u, parents[u, w]) followed by tokens[u, w].
  void advance(const torch::Tensor& parents_UW, const torch::Tensor& tokens_UW);
  // Keeps these utterances only.
  void select_utterances(const torch::Tensor& utterances);

 private:
  // log P of prefix (u, w) up to frame t-1, by its two endings, one frame later: (U, W, T).
  torch::Tensor shifted(const torch::Tensor& r_UWT) const;
  torch::Tensor finish(torch::Tensor psi_UWK, const torch::Tensor& is_eos,
                       const torch::Tensor& is_blank) const;
  gpu::PrefixState state() const;

  Settings settings_;
  std::int64_t beam_;
  bool fused_;                  // by kernels of ours
  torch::Tensor log_probs_;     // (U, T, V) float32
  torch::Tensor outside_;       // (U, 1, T) true past the end
  torch::Tensor end_;           // (U, 1, 1) int64: the last frame
  torch::Tensor blank_cumsum_;  // (U, 1, T) float64
  torch::Tensor either_,
      blank_;                 // (U, W, T) float64: all paths of the prefix, those that end in blank
  torch::Tensor last_token_;  // (U, W) int64
  bool at_start_ = true;
  mutable torch::Tensor probs_;  // exp(log_probs) in float64, made by the first score_all()
};

}  // namespace tutti::speech
