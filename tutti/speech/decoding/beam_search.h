// Joint CTC/attention beam search over a batch of utterances, with ESPnet's results.
//
//   AttentionCtcModel scorers(model);                       // an AsrModel in eval mode
//   BeamSearch search(scorers, {.beam_size = 10, .ctc_weight = 0.3});
//   Encoded encoded = model->encode(speech, lengths);
//   auto results = search.decode(encoded.out, encoded.lengths);
//   results[0].nbest[0].tokens
//
// Every utterance has `beam_size` rows in one batch; a row whose hypothesis ended is dead (score
// -inf) until the utterance is done. Everything from the decoder to the top-k and the end test
// stays on the device; the host only asks now and then whether all are done, and drops finished
// utterances from the batch when half of them are. So an utterance gets the same words alone or in
// any company.
//
// Semantics (espnet2's BatchBeamSearch): weights 1-c for the decoder, c for CTC prefix scores,
// lm_weight for a language model, penalty per token; with 0 < c < 1 decoder and language model pick
// int(1.5 * beam) candidates per row and CTC scores those and <eos>; c = 1 scores the whole vocabulary
// by CTC. A model without a decoder is searched by CTC, and by the language model if there is one. Hypotheses that end leave
// the beam, which shrinks. The search stops when no row is left, at the length limit (where <eos>
// is forced without its score), or, when maxlenratio is 0, once the best that ended at each of
// three successive lengths is 10 nats below the best.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/speech/decoding/time_filter.h"
#include "tutti/speech/models/lengths.h"

namespace tutti::speech {

// Token by token log-probabilities of the hypotheses of a batch: an attention decoder, a table in a
// test. Rows lie utterance by utterance, `beam` each.
class StepScorer {
 public:
  virtual ~StepScorer() = default;
  // Newest tokens (N), or a first prompt (N, L) -> log-probabilities of the next token, (N, V)
  // float32.
  virtual torch::Tensor step(const torch::Tensor& tokens) = 0;
  // New row i continues old row parents_N[i], which belongs to the same utterance.
  virtual void reorder(const torch::Tensor& parents_N) = 0;
  virtual void select_utterances(const torch::Tensor& utterances) = 0;
};

// What the search needs of a model. Either function may be missing when its weight is 0.
struct SearchModel {
  std::function<std::unique_ptr<StepScorer>(const torch::Tensor& memory_UTD, const Lengths&,
                                            std::int64_t beam)>
      start_decoder;
  std::function<torch::Tensor(const torch::Tensor& memory_UTD)> ctc_log_probs;  // (U, T, V) float32
  // A language model over the same tokens, or none.
  std::function<std::unique_ptr<StepScorer>(std::int64_t beam)> start_lm = {};
  std::int64_t vocab_size = 0;
  std::int64_t sos = 0;
  std::int64_t eos = 0;
  std::int64_t blank = 0;
};

struct BeamSearchOptions {
  std::int64_t beam_size = 20;
  double ctc_weight = 0.5;   // [0, 1]
  double lm_weight = 0.0;    // 0: the language model is not asked
  double penalty = 0.0;      // added per token, <eos> included
  double maxlenratio = 0.0;  // x frames; 0: frames, with end detection; < 0: that many tokens
  double minlenratio = 0.0;  // x frames; < 0: that many tokens. Lowered by 0.1 when nothing ends
  bool normalize_length = false;  // order the n-best by score per token
  std::int64_t nbest = 1;
  double pre_beam_ratio = 1.5;
  std::vector<std::int64_t> prompt;  // what every hypothesis begins with; empty: <sos>
  std::optional<TimeTokens> times;   // OWSM: the rules of its time tokens hold
  // Steps between two looks at the device; 0: 1 on a CPU, 8 elsewhere. Never changes a result.
  std::int64_t steps_per_check = 0;
};

struct Hypothesis {
  std::vector<std::int64_t> tokens;  // without prompt and <eos>
  double score = 0;
  double decoder_score = 0;  // unweighted parts of the score
  double ctc_score = 0;
};

struct SearchResult {
  std::vector<Hypothesis> nbest;  // by falling score; empty when nothing ended
  std::int64_t num_steps = 0;
};

class BeamSearch {
 public:
  // Throws ConfigError for options that make no sense or that the model cannot serve.
  BeamSearch(SearchModel model, BeamSearchOptions options);

  // memory (U, T, D) from the encoder. REQUIRES: eval mode; gradients are off inside.
  std::vector<SearchResult> decode(const torch::Tensor& memory_UTD, const Lengths& lengths) const;
  const BeamSearchOptions& options() const noexcept { return options_; }

 private:
  std::vector<SearchResult> search(const torch::Tensor& memory_UTD, const Lengths& lengths,
                                   double minlenratio) const;

  SearchModel model_;
  BeamSearchOptions options_;
};

}  // namespace tutti::speech
