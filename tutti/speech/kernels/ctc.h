// CTC from logits, blank = 0. Same rules as in kernels.h; every sum has a fixed order.
//
// Three steps: `ctc_frames` reads the logits once, `ctc_recursions` works on the few columns that
// matter to each utterance, `ctc_gradient` reads the logits once more and writes their gradient.
// Probabilities over the whole vocabulary exist in registers only.
#pragma once

#include <cstdint>

#include "tutti/speech/kernels/kernels.h"

namespace tutti::speech::cuda {

struct CtcSize {
  std::int64_t batch = 0, frames = 0, vocab = 0;
  std::int64_t labels = 0;     // of the longest text, at most kMaxCtcLabels
  std::int64_t label_row = 0;  // elements from one text to the next
  std::int64_t states() const { return 2 * labels + 1; }
};
inline constexpr std::int64_t kMaxCtcLabels = 2500;  // two rows of states lie in shared memory

// What an utterance is: its frames and labels, none of which is blank.
struct CtcTexts {
  const std::int64_t* labels = nullptr;   // (B, label_row)
  const std::int64_t* lengths = nullptr;  // (2, B): frames, then labels
};

// What one step leaves to the next. N stands for size.labels.
struct CtcState {
  float* log_sums = nullptr;      // (B, T): log of the sum of exp(logits)
  float* emissions = nullptr;     // (B, T, N + 1): log-probabilities of blank and of each label
  double* alpha = nullptr;        // (B, T, 2N + 1): log-probability of all ways to a state,
  double* beta = nullptr;         // and from it to the end, both with the frame itself. Null: no
                                  // gradient is wanted
  std::int32_t* links = nullptr;  // (2, B, N): the first label equal to this one, and the next, or
                                  // -1; may be null without beta
  double* log_probs = nullptr;    // (B): log-probability of the text
};

void ctc_frames(Number type, const void* logits, const CtcTexts& texts, const CtcState& state,
                const CtcSize& size, Stream stream);

// losses (B); with zero_infinity, 0 instead of infinity.
void ctc_recursions(const CtcTexts& texts, const CtcState& state, bool zero_infinity, float* losses,
                    const CtcSize& size, Stream stream);

// grad_logits = (softmax(logits) - expected share of each label) * grad_losses[b], 0 past the end
// of an utterance and, with zero_infinity, where the loss was infinite. May be written over the logits.
void ctc_gradient(Number type, const void* logits, const CtcTexts& texts, const CtcState& state,
                  bool zero_infinity, const float* grad_losses, void* grad_logits,
                  const CtcSize& size, Stream stream);

}  // namespace tutti::speech::cuda
