#include "tutti/speech/decoding/transducer_search.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "tutti/core/error.h"

namespace tutti::speech {
namespace {

// State rows where `mask` (N) holds come from `next`, the others from `old`.
torch::Tensor mix(const torch::Tensor& mask, const torch::Tensor& next, const torch::Tensor& old) {
  if (!next.defined()) return next;
  return torch::where(mask.view({1, -1, 1}), next, old);
}

}  // namespace

std::vector<TransducerHypothesis> transducer_greedy(TransducerModel model,
                                                    const torch::Tensor& memory,
                                                    const Lengths& lengths, int max_symbols) {
  if (lengths.empty()) return {};
  const torch::NoGradGuard no_grad;
  const std::int64_t count = memory.size(0);
  const std::int64_t frames = max_length(lengths);
  const torch::Device device = memory.device();
  const torch::Tensor blanks =
      torch::full({count}, model.blank, torch::dtype(torch::kInt64).device(device));
  const torch::Tensor length = to_device(lengths, device);
  const torch::Tensor projected = model.joint->project_encoded(memory);
  PredictorState before = model.predictor->initial_state(count);
  auto [out, after] = model.predictor->step(blanks, before);
  torch::Tensor predicted = model.joint->project_predicted(out);
  std::vector<torch::Tensor> emitted, scores;  // (U) each, one per frame and symbol
  for (std::int64_t t = 0; t < frames; ++t) {
    torch::Tensor going = length > t;
    for (int s = 0; s < max_symbols; ++s) {
      const torch::Tensor logits = model.joint->combine(projected.select(1, t), predicted);
      const auto [best, token] = torch::log_softmax(logits, -1, torch::kFloat32).max(-1);
      going = going & (token != model.blank);
      emitted.push_back(torch::where(going, token, blanks));
      scores.push_back(torch::where(going, best, torch::zeros_like(best)).to(torch::kFloat64));
      // All rows take the step; those that emitted nothing keep what they had.
      auto [next_out, next] = model.predictor->step(emitted.back(), after);
      const torch::Tensor next_predicted = model.joint->project_predicted(next_out);
      predicted = torch::where(going.unsqueeze(1), next_predicted, predicted);
      after.h_LND = mix(going, next.h_LND, after.h_LND);
      after.c_LND = mix(going, next.c_LND, after.c_LND);
    }
  }
  std::vector<TransducerHypothesis> results(lengths.size());
  if (emitted.empty()) return results;
  const torch::Tensor tokens = torch::stack(emitted, 1).to(torch::kCPU).contiguous();
  const torch::Tensor score = torch::stack(scores, 1).sum(1).to(torch::kCPU);
  for (std::int64_t u = 0; u < count; ++u) {
    TransducerHypothesis& hypothesis = results[static_cast<std::size_t>(u)];
    hypothesis.score = score.data_ptr<double>()[u];
    const std::int64_t* row = tokens.data_ptr<std::int64_t>() + u * tokens.size(1);
    for (std::int64_t i = 0; i < tokens.size(1); ++i) {
      if (row[i] == model.blank) continue;
      hypothesis.tokens.push_back(row[i]);
      hypothesis.frames.push_back(i / max_symbols);
    }
  }
  return results;
}

std::vector<TransducerHypothesis> transducer_beam_search(TransducerModel model,
                                                         const torch::Tensor& memory,
                                                         const TransducerBeamOptions& options) {
  if (options.beam_size < 1)
    throw ConfigError(fmt::format("beam_size: got {}, expected at least 1", options.beam_size));
  const torch::NoGradGuard no_grad;
  const auto ints = torch::dtype(torch::kInt64).device(memory.device());

  // What the predictor says after a token sequence; computed once per sequence.
  struct Predicted {
    torch::Tensor out;  // (1, J)
    PredictorState state;
  };
  std::map<std::vector<std::int64_t>, std::shared_ptr<const Predicted>> cache;
  struct Running {
    TransducerHypothesis hypothesis;
    std::shared_ptr<const Predicted>
        parent;  // of the sequence without its last token; null at the start
  };
  const auto predict = [&](const Running& running) {
    auto& slot = cache[running.hypothesis.tokens];
    if (slot == nullptr) {
      const bool start = running.hypothesis.tokens.empty();
      const auto token =
          torch::full({1}, start ? model.blank : running.hypothesis.tokens.back(), ints);
      auto [out, state] = model.predictor->step(
          token, start ? model.predictor->initial_state(1) : running.parent->state);
      slot =
          std::make_shared<const Predicted>(Predicted{model.joint->project_predicted(out), state});
    }
    return slot;
  };
  const auto worse = [](const Running& a, const Running& b) {
    return a.hypothesis.score < b.hypothesis.score;
  };

  // With scores that are not numbers no hypothesis is ever above another and no frame ever ends.
  if (!torch::isfinite(memory).all().item<bool>()) return {};
  const torch::Tensor projected = model.joint->project_encoded(memory);
  std::vector<Running> kept(1);
  std::vector<std::int64_t> ids;
  for (std::int64_t t = 0; t < memory.size(0); ++t) {
    std::vector<Running> open = std::move(kept);  // a heap: the best is in front
    std::make_heap(open.begin(), open.end(), worse);
    kept.clear();
    while (true) {
      std::pop_heap(open.begin(), open.end(), worse);
      const Running top = std::move(open.back());
      open.pop_back();
      const auto predicted = predict(top);
      const torch::Tensor log_probs =
          torch::log_softmax(model.joint->combine(projected[t].unsqueeze(0), predicted->out), -1,
                             torch::kFloat32)
              .to(torch::kCPU)
              .contiguous();
      const float* row = log_probs.data_ptr<float>();
      if (std::isnan(row[model.blank])) return {};  // as with memory, for weights
      const std::int64_t vocab = log_probs.size(-1);
      const std::int64_t beam = std::min(options.beam_size, vocab);
      kept.push_back(top);
      kept.back().hypothesis.score += row[model.blank];

      ids.clear();
      for (std::int64_t v = 0; v < vocab; ++v)
        if (v != model.blank) ids.push_back(v);
      const auto tried = static_cast<std::ptrdiff_t>(std::min(beam, vocab - 1));
      std::partial_sort(ids.begin(), ids.begin() + tried, ids.end(),
                        [row](std::int64_t a, std::int64_t b) {
                          return row[a] > row[b] || (row[a] == row[b] && a < b);
                        });
      for (std::ptrdiff_t k = 0; k < tried; ++k) {
        const std::int64_t token = ids[static_cast<std::size_t>(k)];
        open.push_back(top);
        Running& longer = open.back();
        longer.parent = predicted;
        longer.hypothesis.score += row[token];
        longer.hypothesis.tokens.push_back(token);
        longer.hypothesis.frames.push_back(t);
        std::push_heap(open.begin(), open.end(), worse);
      }
      // Done with this frame once `beam` hypotheses are above everything still open.
      const double bar = open.front().hypothesis.score;
      const auto above = std::count_if(
          kept.begin(), kept.end(), [bar](const Running& r) { return r.hypothesis.score > bar; });
      if (above >= beam) {
        std::erase_if(kept, [bar](const Running& r) { return r.hypothesis.score <= bar; });
        std::stable_sort(kept.begin(), kept.end(), worse);
        break;
      }
    }
  }
  const auto order = [&](const Running& r) {
    const auto length = static_cast<double>(r.hypothesis.tokens.size() + 1);
    return options.score_norm ? r.hypothesis.score / length : r.hypothesis.score;
  };
  std::stable_sort(kept.begin(), kept.end(),
                   [&](const Running& a, const Running& b) { return order(a) > order(b); });
  std::vector<TransducerHypothesis> out;
  for (Running& running : kept) {
    if (static_cast<std::int64_t>(out.size()) == options.nbest) break;
    out.push_back(std::move(running.hypothesis));
  }
  return out;
}

}  // namespace tutti::speech
