// Decoding with a transducer (RNN-T): greedy over a batch, and beam search utterance by utterance.
//
//   TransducerModel t{model->predictor, model->joint_network, /*blank=*/0};
//   auto results = transducer_greedy(t, encoded.out, encoded.lengths);
//   auto nbest = transducer_beam_search(t, encoded.out[0].narrow(0, 0, frames), {.beam_size = 5,
//   .nbest = 5});
//
// Greedy is ESPnet's for max_symbols = 1 (at most one token per frame, blanks do not count in the
// score), for all utterances at once and without asking the device anything before the end. Beam
// search is ESPnet's "default" (Graves 2012): hypotheses are expanded best first within each frame.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "tutti/speech/models/lengths.h"
#include "tutti/speech/models/transducer.h"

namespace tutti::speech {

struct TransducerModel {
  Predictor predictor{nullptr};
  JointNetwork joint{nullptr};
  std::int64_t blank = 0;
};

struct TransducerHypothesis {
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> frames;  // where each token was emitted
  double score = 0;
};

// memory (U, T, D).
std::vector<TransducerHypothesis> transducer_greedy(TransducerModel model,
                                                    const torch::Tensor& memory_UTD,
                                                    const Lengths& lengths, int max_symbols = 1);

struct TransducerBeamOptions {
  std::int64_t beam_size = 5;
  std::int64_t nbest = 1;
  bool score_norm = true;  // order the n-best by score / (tokens + 1)
};

// memory (T, D) of one utterance, without padding.
std::vector<TransducerHypothesis> transducer_beam_search(TransducerModel model,
                                                         const torch::Tensor& memory_TD,
                                                         const TransducerBeamOptions& options = {});

}  // namespace tutti::speech
