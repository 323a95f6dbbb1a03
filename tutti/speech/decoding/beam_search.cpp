#include "tutti/speech/decoding/beam_search.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "tutti/core/error.h"
#include "tutti/speech/decoding/ctc_prefix_score.h"
#include "tutti/speech/decoding/search_step.h"
#include "tutti/speech/ops/gpu/search_step.h"

namespace tutti::speech {
namespace {

// ESPnet keeps impossible hypotheses at about -1e10; below this they are not results.
constexpr double kImpossible = -1e8;

// What the search decided in one step, for the utterances that were in the batch then.
struct Step {
  std::shared_ptr<const std::vector<std::int64_t>>
      utterances;  // shared by steps between two compactions
  KeptStep kept;
};

LengthLimits length_limits(const Lengths& lengths, const BeamSearchOptions& options,
                           double minlenratio) {
  LengthLimits limits;
  for (std::int64_t frames : lengths) {
    const auto n = static_cast<double>(frames);
    const double max = options.maxlenratio;
    limits.max.push_back(max == 0  ? std::max<std::int64_t>(frames, 1)
                         : max < 0 ? std::max<std::int64_t>(static_cast<std::int64_t>(-max), 1)
                                   : std::max<std::int64_t>(1, static_cast<std::int64_t>(max * n)));
    limits.min.push_back(
        static_cast<std::int64_t>(minlenratio < 0 ? -minlenratio : minlenratio * n));
  }
  return limits;
}

// The rows of a batch in progress.
class Search {
 public:
  Search(const SearchModel& model, const BeamSearchOptions& options, const torch::Tensor& memory,
         const Lengths& lengths, double minlenratio)
      : model_(model),
        options_(options),
        beam_(options.beam_size),
        device_(memory.device()),
        lengths_(lengths),
        limits_(length_limits(lengths, options, minlenratio)),
        prompt_(options.prompt.empty() ? std::vector<std::int64_t>{model.sos} : options.prompt),
        beams_({.beam = beam_,
                .ctc_weight = options.ctc_weight,
                .lm_weight = options.lm_weight,
                .penalty = options.penalty,
                .detects_end = options.maxlenratio == 0,
                .prompt_length = static_cast<std::int64_t>(prompt_.size()),
                .eos = model.eos},
               limits_, device_) {
    const auto count = static_cast<std::int64_t>(lengths.size());
    std::vector<std::int64_t> all(lengths.size());
    std::iota(all.begin(), all.end(), 0);
    active_ = std::make_shared<const std::vector<std::int64_t>>(std::move(all));
    if (options.ctc_weight < 1 && model.start_decoder)
      decoder_ = model.start_decoder(memory, lengths, beam_);
    if (options.lm_weight != 0 && model.start_lm) lm_ = model.start_lm(beam_);
    if (options.ctc_weight > 0) {
      ctc_.emplace(model.ctc_log_probs(memory), lengths, beam_,
                   CtcPrefixScore::Settings{model.blank, model.eos, prompt_.back(),
                                            static_cast<std::int64_t>(prompt_.size()) - 1});
    }
    if (options.times)
      times_.emplace(*options.times, model.vocab_size, prompt_, count, beam_, device_);
    tokens_ = to_device(prompt_, device_).expand({count * beam_, -1});
  }

  void run() {
    const std::int64_t last = *std::max_element(limits_.max.begin(), limits_.max.end());
    const std::int64_t every = options_.steps_per_check > 0 ? options_.steps_per_check
                               : device_.is_cpu()           ? 1
                                                            : 8;
    for (std::int64_t i = 0; i < last; ++i) {
      step(i);
      if ((i + 1) % every == 0 && i + 1 < last && !drop_finished()) break;
    }
  }

  std::vector<SearchResult> results() const;

 private:
  Candidates candidates();
  void step(std::int64_t i);
  bool drop_finished();

  const SearchModel& model_;
  const BeamSearchOptions& options_;
  const std::int64_t beam_;
  const torch::Device device_;
  const Lengths& lengths_;
  const LengthLimits limits_;
  const std::vector<std::int64_t> prompt_;

  Beams beams_;
  std::shared_ptr<const std::vector<std::int64_t>> active_;
  std::unique_ptr<StepScorer> decoder_, lm_;
  std::optional<CtcPrefixScore> ctc_;
  std::optional<TimeFilter> times_;
  torch::Tensor tokens_;  // (N) newest, or (N, L) the prompt
  std::vector<Step> steps_;
};

Candidates Search::candidates() {
  const std::int64_t count = beams_.num_utterances();
  Candidates out;
  const auto view = [&](const torch::Tensor& x) { return x.view({count, beam_, -1}); };
  const auto all_tokens = [&] {
    return torch::arange(model_.vocab_size, torch::dtype(torch::kInt64).device(device_))
        .view({1, 1, -1})
        .expand({count, beam_, -1});
  };
  // (N, V) each
  const torch::Tensor by_lm = lm_ ? lm_->step(tokens_) : torch::Tensor();
  if (!decoder_ && (!lm_ || options_.ctc_weight == 1)) {
    out.ctc = ctc_->score_all();
    out.tokens = all_tokens();
    if (lm_) out.lm = view(by_lm).to(torch::kFloat64);
    if (times_)
      out.bias = times_->bias()
                     .expand({count * beam_, -1})
                     .reshape({count, beam_, -1})
                     .to(torch::kFloat64);
    return out;
  }
  torch::Tensor by_decoder = decoder_ ? decoder_->step(tokens_) : torch::Tensor();
  if (times_ && decoder_) by_decoder = by_decoder + times_->bias();
  // What orders the tokens of a row; a factor that all have does not.
  torch::Tensor order = by_decoder;
  if (lm_) {
    order = options_.lm_weight * by_lm;
    if (decoder_) order = order + (1 - options_.ctc_weight) * by_decoder;
  }
  const std::int64_t vocab = order.size(1);
  const auto take = [&](const torch::Tensor& ids) {
    out.tokens = view(ids);
    if (decoder_) out.decoder = view(by_decoder.gather(1, ids)).to(torch::kFloat64);
    if (lm_) out.lm = view(by_lm.gather(1, ids)).to(torch::kFloat64);
  };
  const auto pre_beam =
      static_cast<std::int64_t>(options_.pre_beam_ratio * static_cast<double>(beam_));
  // Without CTC: the best `beam` of all rows are among the best `beam` of each row.
  const std::int64_t wanted = ctc_ ? pre_beam : std::min(beam_, vocab);
  if (!lm_ && wanted < vocab && gpu::can_take_best(by_decoder, wanted)) {
    const auto [ids, values] =
        gpu::take_best(by_decoder, wanted, ctc_ ? std::make_optional(model_.eos) : std::nullopt);
    out.tokens = view(ids);
    out.decoder = view(values);
    if (ctc_) out.ctc = ctc_->score(out.tokens);
    return out;
  }
  if (!ctc_) {
    take(beam_ == 1 ? order.argmax(1, /*keepdim=*/true) : std::get<1>(order.topk(wanted, 1)));
    return out;
  }
  if (pre_beam >= vocab) {
    if (decoder_) out.decoder = view(by_decoder).to(torch::kFloat64);
    if (lm_) out.lm = view(by_lm).to(torch::kFloat64);
    out.ctc = ctc_->score_all();
    out.tokens = all_tokens();
    return out;
  }
  const auto [values, ids] = order.topk(pre_beam, 1);
  // <eos> is scored whether the decoder likes it or not.
  const torch::Tensor eos = torch::full({ids.size(0), 1}, model_.eos, ids.options());
  take(torch::cat({ids, eos}, 1));
  const torch::Tensor twice = (ids == model_.eos).any(1, /*keepdim=*/true);
  const torch::Tensor eos_bias =
      torch::zeros_like(values.narrow(1, 0, 1)).masked_fill(twice, kDead);
  out.bias = view(torch::cat({torch::zeros_like(values), eos_bias}, 1));
  out.ctc = ctc_->score(out.tokens);
  return out;
}

void Search::step(std::int64_t i) {
  KeptStep kept = beams_.keep(candidates(), i);
  if (ctc_) ctc_->advance(kept.parents, kept.tokens);
  if (times_) times_->advance(kept.parents, kept.tokens);
  if (beam_ > 1) {  // else every row goes on with itself
    if (decoder_) decoder_->reorder(kept.rows);
    if (lm_) lm_->reorder(kept.rows);
  }
  tokens_ = kept.tokens.view({-1});
  steps_.push_back({active_, std::move(kept)});
}

// False when all utterances are done. Shrinks the batch when at least half of it is: less often
// would compute dead rows, more often would copy caches for little.
bool Search::drop_finished() {
  const torch::Tensor alive = beams_.alive().to(torch::kCPU);
  const auto* flags = alive.data_ptr<bool>();
  const std::int64_t count = beams_.num_utterances();
  std::vector<std::int64_t> keep;
  for (std::int64_t u = 0; u < count; ++u)
    if (flags[u]) keep.push_back(u);
  if (keep.empty()) return false;
  if (2 * static_cast<std::int64_t>(keep.size()) > count) return true;
  std::vector<std::int64_t> active;
  for (std::int64_t u : keep) active.push_back((*active_)[static_cast<std::size_t>(u)]);
  active_ = std::make_shared<const std::vector<std::int64_t>>(std::move(active));
  const torch::Tensor index = to_device(keep, device_);
  tokens_ = tokens_.view({count, beam_}).index_select(0, index).view({-1});
  beams_.select_utterances(keep, index);
  if (ctc_) ctc_->select_utterances(index);
  if (times_) times_->select_utterances(index);
  if (decoder_) decoder_->select_utterances(index);
  if (lm_) lm_->select_utterances(index);
  return true;
}

std::vector<SearchResult> Search::results() const {
  // One copy to the host per kind of tensor and run of equal batches, not per step.
  struct HostStep {
    const std::int64_t* tokens = nullptr;
    const std::int64_t* parents = nullptr;
    const double* ended = nullptr;
    const double* decoder = nullptr;
    const double* ctc = nullptr;
  };
  std::vector<std::vector<HostStep>> rows(lengths_.size());  // [utterance][step]
  std::vector<torch::Tensor> keep_alive;
  for (std::size_t begin = 0; begin < steps_.size();) {
    std::size_t end = begin;
    while (end < steps_.size() && steps_[end].utterances == steps_[begin].utterances) ++end;
    const auto stacked = [&](torch::Tensor KeptStep::*member) {
      std::vector<torch::Tensor> parts;
      for (std::size_t s = begin; s < end; ++s) parts.push_back(steps_[s].kept.*member);
      keep_alive.push_back(torch::stack(parts).to(torch::kCPU).contiguous());
      return keep_alive.back();
    };
    const torch::Tensor tokens = stacked(&KeptStep::tokens), parents = stacked(&KeptStep::parents);
    const torch::Tensor ended = stacked(&KeptStep::ended), decoder = stacked(&KeptStep::decoder),
                        ctc = stacked(&KeptStep::ctc);
    const auto& utterances = *steps_[begin].utterances;
    for (std::size_t s = begin; s < end; ++s) {
      for (std::size_t u = 0; u < utterances.size(); ++u) {
        const std::size_t at =
            ((s - begin) * utterances.size() + u) * static_cast<std::size_t>(beam_);
        rows[static_cast<std::size_t>(utterances[u])].push_back(
            {tokens.data_ptr<std::int64_t>() + at, parents.data_ptr<std::int64_t>() + at,
             ended.data_ptr<double>() + at, decoder.data_ptr<double>() + at,
             ctc.data_ptr<double>() + at});
      }
    }
    begin = end;
  }

  struct Ended {
    double order, score;
    std::size_t step;
    std::int64_t row;
  };
  std::vector<SearchResult> out(lengths_.size());
  for (std::size_t u = 0; u < rows.size(); ++u) {
    std::vector<Ended> ended;
    for (std::size_t s = 0; s < rows[u].size(); ++s) {
      for (std::int64_t w = 0; w < beam_; ++w) {
        const double score = rows[u][s].ended[w];
        if (score <= kImpossible) continue;
        out[u].num_steps = static_cast<std::int64_t>(s) + 1;
        // ESPnet divides by the length without <sos>, in which a forced <eos> counts once more.
        const bool forced = static_cast<std::int64_t>(s) == limits_.max[u] - 1;
        const double length = static_cast<double>(prompt_.size() + s + (forced ? 1 : 0));
        ended.push_back({options_.normalize_length ? score / length : score, score, s, w});
      }
    }
    std::stable_sort(ended.begin(), ended.end(),
                     [](const Ended& a, const Ended& b) { return a.order > b.order; });
    if (static_cast<std::int64_t>(ended.size()) > options_.nbest)
      ended.resize(static_cast<std::size_t>(options_.nbest));
    for (const Ended& e : ended) {
      Hypothesis hypothesis{
          {}, e.score, rows[u][e.step].decoder[e.row], rows[u][e.step].ctc[e.row]};
      std::int64_t row = e.row;
      for (std::size_t s = e.step + 1; s-- > 0; row = rows[u][s].parents[row])
        hypothesis.tokens.push_back(rows[u][s].tokens[row]);
      std::reverse(hypothesis.tokens.begin(), hypothesis.tokens.end());
      if (hypothesis.tokens.back() == model_.eos) hypothesis.tokens.pop_back();
      out[u].nbest.push_back(std::move(hypothesis));
    }
  }
  return out;
}

}  // namespace

BeamSearch::BeamSearch(SearchModel model, BeamSearchOptions options)
    : model_(std::move(model)), options_(std::move(options)) {
  if (options_.beam_size < 1)
    throw ConfigError(fmt::format("beam_size: got {}, expected at least 1", options_.beam_size));
  if (!(options_.ctc_weight >= 0 && options_.ctc_weight <= 1))
    throw ConfigError(fmt::format("ctc_weight: got {}, expected 0 to 1", options_.ctc_weight));
  if (options_.nbest < 1)
    throw ConfigError(fmt::format("nbest: got {}, expected at least 1", options_.nbest));
  if (options_.beam_size > model_.vocab_size)
    throw ConfigError(fmt::format("beam_size: got {}, expected at most the vocabulary's {}",
                                  options_.beam_size, model_.vocab_size));
  if (options_.ctc_weight < 1 && !model_.start_decoder &&
      !(model_.start_lm && options_.lm_weight != 0))
    throw ConfigError(fmt::format("ctc_weight: got {}, but the model has no attention decoder",
                                  options_.ctc_weight),
                      "set ctc_weight: 1.0");
  if (options_.ctc_weight > 0 && !model_.ctc_log_probs)
    throw ConfigError(
        fmt::format("ctc_weight: got {}, but the model has no CTC", options_.ctc_weight),
        "set ctc_weight: 0.0");
}

std::vector<SearchResult> BeamSearch::decode(const torch::Tensor& memory,
                                             const Lengths& lengths) const {
  if (lengths.empty()) return {};
  const torch::NoGradGuard no_grad;
  return search(memory, lengths, options_.minlenratio);
}

std::vector<SearchResult> BeamSearch::search(const torch::Tensor& memory, const Lengths& lengths,
                                             double minlenratio) const {
  Search run(model_, options_, memory, lengths, minlenratio);
  run.run();
  std::vector<SearchResult> results = run.results();
  if (minlenratio < 0.1) return results;
  // Nothing ended: ask for less.
  std::vector<std::int64_t> again;
  Lengths again_lengths;
  for (std::size_t u = 0; u < results.size(); ++u) {
    if (!results[u].nbest.empty()) continue;
    again.push_back(static_cast<std::int64_t>(u));
    again_lengths.push_back(lengths[u]);
  }
  if (again.empty()) return results;
  const torch::Tensor index = to_device(again, memory.device());
  auto retried =
      search(memory.index_select(0, index), again_lengths, std::max(0.0, minlenratio - 0.1));
  for (std::size_t i = 0; i < again.size(); ++i)
    results[static_cast<std::size_t>(again[i])] = std::move(retried[i]);
  return results;
}

}  // namespace tutti::speech
