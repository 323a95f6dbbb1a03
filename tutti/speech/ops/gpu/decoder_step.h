// A decoder's step for few hypotheses (kernels/few_rows.h): six kernels for a layer, or eight.
// Internal to speech/.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace tutti::speech::gpu {

struct StepLinear {
  torch::Tensor weight, bias;
};
struct StepNorm {
  torch::Tensor weight, bias;
  double eps = 0;
};
struct StepLayer {
  StepNorm self_norm, memory_norm, feed_forward_norm;
  StepLinear q, k, v, out, memory_q, memory_out, w_1, w_2;
};
struct StepDecoder {
  torch::Tensor embedding;
  std::vector<StepLayer> layers;
  StepNorm after_norm;
  StepLinear output;
  std::int64_t heads = 1;
};

// What a search in progress keeps: DecoderCache says more.
struct StepState {
  torch::Tensor memory_kv, memory_bias, self_kv, ancestors, position, tokens, table;
};

// Hypotheses that a step may have at once.
constexpr std::int64_t kMostStepRows = 16;

// Whether a step of `decoder` can be done so.
bool can_step_few_rows(const StepDecoder& decoder);

// What is done together with what comes before it, where the GPU and the sizes allow.
struct StepJoins {
  bool past = true;    // attention to the past, with its norm and q, k, v
  bool memory = true;  // attention to the memory, with its norm and q
};

// Log-probabilities (rows, vocabulary), float32. Without `joins` what is fastest for so many rows. REQUIRES:
// can_step_few_rows().
torch::Tensor step_few_rows(const StepDecoder& decoder, const StepState& state,
                            std::optional<StepJoins> joins = {});

// What searches may leave for the next ones on this GPU.
std::size_t most_kept_bytes(torch::Device device);

}  // namespace tutti::speech::gpu
