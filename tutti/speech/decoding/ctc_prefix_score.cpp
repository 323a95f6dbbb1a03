#include "tutti/speech/decoding/ctc_prefix_score.h"

#include <torch/torch.h>

#include <tuple>

namespace tutti::speech {
namespace {

// Finite, so that impossible minus impossible is not NaN; far below anything real.
constexpr double kLogZero = -1e10;

using torch::indexing::None;
using torch::indexing::Slice;

}  // namespace

CtcPrefixScore::CtcPrefixScore(torch::Tensor log_probs_UTV, const Lengths& lengths,
                               std::int64_t beam, Settings settings)
    : settings_(settings),
      beam_(beam),
      fused_(gpu::can_fuse_ctc_prefix(log_probs_UTV)),
      log_probs_(std::move(log_probs_UTV)) {
  const std::int64_t utterances = log_probs_.size(0);
  const std::int64_t frames = log_probs_.size(1);
  const torch::Device device = log_probs_.device();
  const auto ints = torch::dtype(torch::kInt64).device(device);
  end_ = (to_device(lengths, device) - 1).clamp_min(0).view({utterances, 1, 1});
  outside_ = torch::arange(frames, ints).view({1, 1, frames}) > end_;
  blank_cumsum_ = log_probs_.select(2, settings_.blank).to(torch::kFloat64).cumsum(1).unsqueeze(1);
  blank_ = blank_cumsum_.expand({utterances, beam, frames}).contiguous();
  either_ = blank_;  // nothing was said
  last_token_ = torch::full({utterances, beam}, settings_.start_token, ints);
}

torch::Tensor CtcPrefixScore::shifted(const torch::Tensor& r_UWT) const {
  // Before the first frame the empty prefix is certain and every other one impossible.
  torch::Tensor out =
      torch::cat({torch::full_like(r_UWT.narrow(2, 0, 1), at_start_ ? 0.0 : kLogZero),
                  r_UWT.narrow(2, 0, r_UWT.size(2) - 1)},
                 2);
  if (at_start_ && settings_.first_frame > 0)
    out.narrow(2, 0, std::min<std::int64_t>(settings_.first_frame, out.size(2))).fill_(kLogZero);
  return out;
}

torch::Tensor CtcPrefixScore::finish(torch::Tensor psi, const torch::Tensor& is_eos,
                                     const torch::Tensor& is_blank) const {
  const torch::Tensor whole = either_.gather(2, end_.expand({-1, beam_, 1}));  // (U, W, 1)
  psi = torch::where(is_eos, whole, psi);
  if (settings_.eos != settings_.blank) psi = psi.masked_fill(is_blank, kLogZero);
  return psi;
}

gpu::PrefixState CtcPrefixScore::state() const {
  return {log_probs_,    end_,
          either_,       blank_,
          last_token_,   settings_.blank,
          settings_.eos, at_start_ ? settings_.first_frame : 1};
}

torch::Tensor CtcPrefixScore::score(const torch::Tensor& candidates) const {
  if (fused_) return gpu::fused_prefix_scores(state(), candidates);
  const std::int64_t utterances = candidates.size(0);
  const std::int64_t count = candidates.size(2);
  const std::int64_t frames = log_probs_.size(1);
  const torch::Tensor index =
      candidates.reshape({utterances, 1, beam_ * count}).expand({-1, frames, -1});
  // (U, T, W*K) -> (U, W, K, T)
  const torch::Tensor x = log_probs_.gather(2, index)
                              .to(torch::kFloat64)
                              .view({utterances, frames, beam_, count})
                              .permute({0, 2, 3, 1});
  const torch::Tensor before = shifted(either_).unsqueeze(2);
  const torch::Tensor before_repeat = shifted(blank_).unsqueeze(2);
  const torch::Tensor repeats = (candidates == last_token_.unsqueeze(2)).unsqueeze(3);
  const torch::Tensor phi = torch::where(repeats, before_repeat, before);
  const torch::Tensor psi = (phi + x).masked_fill(outside_.unsqueeze(2), kLogZero).logsumexp(3);
  return finish(psi, candidates == settings_.eos, candidates == settings_.blank);
}

torch::Tensor CtcPrefixScore::score_all() const {
  const std::int64_t vocab = log_probs_.size(2);
  if (!probs_.defined()) probs_ = log_probs_.to(torch::kFloat64).exp();
  const torch::Tensor phi = shifted(either_).masked_fill(outside_, kLogZero);
  const torch::Tensor peak = phi.amax(2, /*keepdim=*/true);
  // Sums that underflow are e^-700 below the best frame: impossible for any purpose.
  torch::Tensor psi = torch::bmm((phi - peak).exp(), probs_).log().clamp_min(kLogZero) + peak;
  const torch::Tensor last = last_token_.unsqueeze(2);  // (U, W, 1)
  const torch::Tensor x_last =
      log_probs_.gather(2, last_token_.unsqueeze(1).expand({-1, log_probs_.size(1), -1}))
          .to(torch::kFloat64)
          .transpose(1, 2);
  const torch::Tensor repeat =
      (shifted(blank_) + x_last).masked_fill(outside_, kLogZero).logsumexp(2, /*keepdim=*/true);
  psi = psi.scatter(2, last, repeat);
  const torch::Tensor ids = torch::arange(vocab, last_token_.options()).view({1, 1, vocab});
  return finish(psi, ids == settings_.eos, ids == settings_.blank);
}

void CtcPrefixScore::advance(const torch::Tensor& parents, const torch::Tensor& tokens) {
  if (fused_) {
    std::tie(either_, blank_) = gpu::fused_prefix_advance(state(), parents, tokens);
    last_token_ = tokens.contiguous();
    at_start_ = false;
    return;
  }
  const std::int64_t frames = log_probs_.size(1);
  const torch::Tensor rows = parents.unsqueeze(2).expand({-1, -1, frames});
  const torch::Tensor repeats = (last_token_.gather(1, parents) == tokens).unsqueeze(2);
  const torch::Tensor phi =
      shifted(torch::where(repeats, blank_.gather(1, rows), either_.gather(1, rows)));
  const torch::Tensor x = log_probs_.gather(2, tokens.unsqueeze(1).expand({-1, frames, -1}))
                              .to(torch::kFloat64)
                              .transpose(1, 2);
  const torch::Tensor sum = x.cumsum(2);
  const torch::Tensor non_blank = sum + torch::logcumsumexp(phi - (sum - x), 2);
  at_start_ = false;
  const torch::Tensor blank_before = torch::cat(
      {torch::zeros_like(blank_cumsum_.narrow(2, 0, 1)), blank_cumsum_.narrow(2, 0, frames - 1)},
      2);
  blank_ = blank_cumsum_ + torch::logcumsumexp(shifted(non_blank) - blank_before, 2);
  either_ = torch::logaddexp(non_blank, blank_);
  last_token_ = tokens;
}

void CtcPrefixScore::select_utterances(const torch::Tensor& utterances) {
  for (torch::Tensor* tensor :
       {&log_probs_, &outside_, &end_, &blank_cumsum_, &either_, &blank_, &last_token_, &probs_})
    if (tensor->defined()) *tensor = tensor->index_select(0, utterances);
}

}  // namespace tutti::speech
