// Language models of ESPnet that a beam search listens to: transformer and seq_rnn.
//
//   LanguageModel lm = make_language_model(Build{}, settings);   // lm_settings.h
//   load_published_weights(*lm, read_state_dict("valid.loss.ave.pth"), "valid.loss.ave.pth");
//   LmState state;
//   auto log_probs = lm->step(tokens_N, state);                  // (N, V) float32
//   state.reorder(parents_N);
//
// Keys are those of ESPnet's state_dict (`lm.`...). Not thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "tutti/speech/models/attention.h"
#include "tutti/speech/models/lm_settings.h"
#include "tutti/speech/models/modules.h"

namespace tutti::speech {

// What hypotheses have said so far: rows along the first dimension of every tensor.
struct LmState {
  std::vector<torch::Tensor> tensors;
  std::int64_t length = 0;  // tokens seen
  void reorder(const torch::Tensor& rows) {
    for (torch::Tensor& tensor : tensors) tensor = tensor.index_select(0, rows);
  }
};

class LanguageModelImpl : public torch::nn::Module {
 public:
  // Newest tokens (N), or a first prompt (N, L) -> log-probabilities of the next, (N, V) float32.
  // REQUIRES: eval mode, no gradients wanted.
  virtual torch::Tensor step(const torch::Tensor& tokens, LmState& state) = 0;
};
using LanguageModel = std::shared_ptr<LanguageModelImpl>;

LanguageModel make_language_model(Build build, const LmSettings& settings);

}  // namespace tutti::speech
