// Cross-entropy with label smoothing, its accuracy and its gradient, in one kernel each way: logits are
// read once or twice and no logarithm of a softmax is written. Conventions of kernels.h.
#pragma once

#include "tutti/speech/kernels/fused.h"

namespace tutti::speech::cuda {

// Row r of logits (rows, classes) is place r % places of utterance r / places. It counts where begins
// (null: 0) <= place < lengths of the utterance.
struct SmoothedLoss {
  std::int64_t rows = 0, places = 0;
  int classes = 0;
  Number type = Number::kFloat;
  const void* logits = nullptr;
  const std::int64_t* targets = nullptr;  // (rows)
  const std::int64_t* lengths = nullptr;  // (utterances)
  const std::int64_t* begins = nullptr;
  float right = 1;               // the share of the right class, less that of another
  float other = 0;               // the share of every other class
  float constant = 0;            // is added for every row: what the shares themselves cost
  const float* scale = nullptr;  // one number: what the sum over rows is multiplied with
  float* log_sums = nullptr;     // (rows): of exponentials of logits
};

// result: the loss, and the part of counted rows whose largest logit is the right one (0 of none).
// row_results: scratch (2, rows); counter: one zero, and zero again afterwards.
void smoothed_loss(const SmoothedLoss& call, float* row_results, float* result, unsigned* counter,
                   Stream stream);
// grad_logits of type `type`, from the gradient of the loss, one number.
void smoothed_loss_back(const SmoothedLoss& call, const float* grad, void* grad_logits,
                        Stream stream);

}  // namespace tutti::speech::cuda
