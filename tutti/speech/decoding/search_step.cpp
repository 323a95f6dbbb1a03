#include "tutti/speech/decoding/search_step.h"

#include <torch/torch.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "tutti/speech/models/lengths.h"
#include "tutti/speech/ops/gpu/search_step.h"

namespace tutti::speech {
namespace {

constexpr int kEndDetectLengths = 3;
constexpr double kEndDetectMargin = -10.0;

}  // namespace

Beams::Beams(Settings settings, LengthLimits limits, torch::Device device)
    : settings_(settings), limits_(std::move(limits)) {
  const auto count = static_cast<std::int64_t>(limits_.max.size());
  const auto doubles = torch::dtype(torch::kFloat64).device(device);
  score_ = torch::full({count, settings_.beam}, kDead, doubles);
  score_.select(1, 0).zero_();
  decoder_score_ = torch::zeros({count, settings_.beam}, doubles);
  ctc_score_ = torch::zeros({count, settings_.beam}, doubles);
  best_ended_ = torch::full({count}, kDead, doubles);
  max_steps_ = to_device(limits_.max, device).unsqueeze(1);
  min_steps_ = to_device(limits_.min, device).unsqueeze(1);
}

// ESPnet's end_detect: lengths count prompt and <eos>, so at step i it looks at what ended in steps
// i - prompt - 1 and the two before.
std::int64_t Beams::first_decisive(std::int64_t i) const {
  return std::max<std::int64_t>(i - settings_.prompt_length - kEndDetectLengths, -1);
}

torch::Tensor Beams::end_detected(std::int64_t i) const {
  const std::int64_t first = first_decisive(i);
  if (first < 0) return {};
  torch::Tensor all;
  for (int n = 0; n < kEndDetectLengths; ++n) {
    const torch::Tensor& best = best_by_step_[static_cast<std::size_t>(first + n)];
    const torch::Tensor low = (best > kDead) & (best - best_ended_ < kEndDetectMargin);
    all = all.defined() ? all & low : low;
  }
  return all;
}

KeptStep Beams::keep(const Candidates& c, std::int64_t i) {
  const gpu::Continuations from{.tokens_UWK = c.tokens,
                                .decoder_UWK = c.decoder,
                                .ctc_UWK = c.ctc,
                                .decoder_weight = 1 - settings_.ctc_weight,
                                .ctc_weight = settings_.ctc_weight,
                                .penalty = settings_.penalty};
  const bool at_once = !c.lm.defined() && !c.bias.defined() && gpu::can_choose(from);
  return at_once ? keep_at_once(from, i) : keep_in_parts(c, i);
}

KeptStep Beams::keep_at_once(const gpu::Continuations& from, std::int64_t i) {
  gpu::StepRules rules{.step = i,
                       .eos = settings_.eos,
                       .max_steps_U = max_steps_,
                       .min_steps_U = min_steps_,
                       .detects_end = settings_.detects_end,
                       .best_ended_U = best_ended_,
                       .margin = kEndDetectMargin};
  if (const std::int64_t first = first_decisive(i); settings_.detects_end && first >= 0)
    for (int n = 0; n < kEndDetectLengths; ++n)
      rules.earlier_U[n] = &best_by_step_[static_cast<std::size_t>(first + n)];
  const gpu::Chosen chosen = gpu::choose(from, {score_, decoder_score_, ctc_score_}, rules);
  score_ = chosen.scores.score;
  decoder_score_ = chosen.scores.decoder;
  ctc_score_ = chosen.scores.ctc;
  if (settings_.detects_end) {
    best_ended_ = chosen.best_ended;
    best_by_step_.push_back(chosen.best_now);
  }
  return {chosen.tokens, chosen.parents, chosen.rows.view({-1}),
          chosen.ended,  decoder_score_, ctc_score_};
}

KeptStep Beams::keep_in_parts(const Candidates& c, std::int64_t i) {
  const std::int64_t count = num_utterances(), beam = settings_.beam, width = c.tokens.size(2);
  const double ctc_weight = settings_.ctc_weight;
  torch::Tensor total = score_.unsqueeze(2).expand({-1, -1, width});
  if (c.decoder.defined())
    total = total + (ctc_weight == 0 ? c.decoder : (1 - ctc_weight) * c.decoder);
  if (c.lm.defined()) total = total + settings_.lm_weight * c.lm;
  if (settings_.penalty != 0) total = total + settings_.penalty;
  if (c.ctc.defined()) total = total + ctc_weight * (c.ctc - ctc_score_.unsqueeze(2));
  if (c.bias.defined()) total = total + c.bias;

  // A GPU launches a kernel for every line here: what is known before is not asked.
  torch::Tensor best, flat, parents;
  const bool has_choice = beam * width > 1;
  if (has_choice) {
    std::tie(best, flat) = total.reshape({count, beam * width}).topk(beam, 1);
    parents = flat.div(width, "trunc");
  } else {
    best = total.reshape({count, 1});
    if (!only_parents_.defined() || only_parents_.size(0) != count)
      only_parents_ = torch::zeros({count, 1}, c.tokens.options());
    parents = only_parents_;
  }
  const auto pick = [&](const torch::Tensor& x) {
    const torch::Tensor of_row = x.reshape({count, beam * width});
    return has_choice ? of_row.gather(1, flat) : of_row;
  };
  const torch::Tensor tokens = pick(c.tokens);
  if (c.decoder.defined())
    decoder_score_ =
        (has_choice ? decoder_score_.gather(1, parents) : decoder_score_) + pick(c.decoder);
  if (c.ctc.defined()) ctc_score_ = pick(c.ctc);

  const auto any = [](const std::vector<std::int64_t>& limits, auto condition) {
    return std::any_of(limits.begin(), limits.end(), condition);
  };
  torch::Tensor ends = tokens == settings_.eos;
  if (any(limits_.max, [&](std::int64_t max) { return max - 1 <= i; }))
    ends = ends | (max_steps_ - 1 <= i);  // (U, 1)
  torch::Tensor counts = ends;
  if (any(limits_.min, [&](std::int64_t min) { return min > i; }))
    counts = ends & (min_steps_ <= i);
  if (!dead_.defined() || dead_.sizes() != best.sizes()) dead_ = torch::full_like(best, kDead);
  const torch::Tensor ended = torch::where(counts, best, dead_);
  score_ = torch::where(ends, dead_, best);
  if (settings_.detects_end) {
    best_by_step_.push_back(ended.amax(1));
    best_ended_ = torch::maximum(best_ended_, best_by_step_.back());
    if (const torch::Tensor stop = end_detected(i); stop.defined())
      score_ = score_.masked_fill(stop.unsqueeze(1), kDead);
  }
  torch::Tensor rows;
  if (beam > 1 && (c.decoder.defined() || c.lm.defined()))
    rows = (torch::arange(count, parents.options()).unsqueeze(1) * beam + parents).view({-1});
  return {tokens, parents, rows, ended, decoder_score_, ctc_score_};
}

void Beams::select_utterances(const std::vector<std::int64_t>& keep, const torch::Tensor& index) {
  for (std::vector<std::int64_t>* limits : {&limits_.max, &limits_.min}) {
    std::vector<std::int64_t> left;
    for (std::int64_t u : keep) left.push_back((*limits)[static_cast<std::size_t>(u)]);
    *limits = std::move(left);
  }
  for (torch::Tensor* x :
       {&score_, &decoder_score_, &ctc_score_, &best_ended_, &max_steps_, &min_steps_})
    *x = x->index_select(0, index);
  for (torch::Tensor& x : best_by_step_) x = x.index_select(0, index);
}

}  // namespace tutti::speech
