// Multi-head attention with ESPnet's parameter names: plain, and with relative positions.
//
// Masks are additive biases, broadcastable to (B, H, T1, T2): 0 where a key may be seen, -inf where
// not; undefined means "everything may be seen". From libtorch 2.0 on the work is done by
// scaled_dot_product_attention, which picks flash or memory-efficient kernels; before, by our own.
// Relative positions in bf16 on a GPU have kernels of their own (gpu/relative_attention.h).
#pragma once

#include "tutti/speech/models/lengths.h"
#include "tutti/speech/models/modules.h"

namespace tutti::speech {

// Sinusoids by position; grows on demand and follows the device and dtype of its users.
class PositionTable {
 public:
  explicit PositionTable(std::int64_t size = 0) : size_(size) {}
  // (count, size): rows for positions first, first+1, ... (negative ones too).
  torch::Tensor rows(std::int64_t first, std::int64_t count, const torch::TensorOptions& like);

 private:
  std::int64_t size_ = 0;
  std::int64_t reach_ = 0;  // the table covers -reach_ .. reach_
  torch::Tensor table_;
};

// The bias for keys past the end of each utterance: (B, 1, 1, T), or undefined when none is.
torch::Tensor key_bias(const Lengths& lengths, std::int64_t max_len,
                       const torch::TensorOptions& like);
// From a mask of frames that exist, (B, T).
torch::Tensor key_bias(const torch::Tensor& valid_BT, const torch::TensorOptions& like);
// (1, 1, L, past + L): token i sees what is not after it.
torch::Tensor causal_bias(std::int64_t length, std::int64_t past, const torch::TensorOptions& like);

// softmax(q k' / sqrt(dk) + bias) v for (B, H, T, dk) tensors.
torch::Tensor attend(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                     const torch::Tensor& bias, double dropout_rate);

// For decoding, where nearly every batch has a shape of its own: attend() leaves cuDNN alone, which makes a
// plan for each shape, for longer than a batch takes. A setting of the whole process.
void attend_without_plans();

// What every layer of an encoder needs to know about the batch.
struct BatchContext {
  Lengths lengths;
  torch::Tensor valid_BT;      // undefined: no padding
  torch::Tensor valid_index;   // flat positions of real frames; undefined: no padding
  torch::Tensor key_bias;      // (B, 1, 1, T), undefined: no padding
  torch::Tensor positions;     // (1, 2T-1 or more, D), (1, T, D) for legacy, or undefined
  torch::Tensor legacy_index;  // padded legacy batches: see attention.cpp
  torch::Tensor memory_BSD;    // a prompt that blocks with cross-attention read, or undefined
  torch::Tensor memory_bias;   // (B, 1, 1, S), undefined: no padding
};

class AttentionImpl : public torch::nn::Module {
 public:
  struct Settings {
    std::int64_t size = 256;
    std::int64_t heads = 4;
    double dropout_rate = 0;
    bool qk_norm = false;
    PositionKind positions = PositionKind::kAbsolute;
    bool zero_triu = false;
  };
  AttentionImpl(Build build, Settings settings);

  torch::Tensor forward(const torch::Tensor& query_BTD, const torch::Tensor& memory_BSD,
                        const torch::Tensor& bias);
  // Self-attention with the positions and the padding of `context`.
  torch::Tensor forward_self(const torch::Tensor& x_BTD, const BatchContext& context);

  // For caches: heads split, (B, H, T, dk).
  torch::Tensor project_query(const torch::Tensor& x_BTD);
  torch::Tensor project_key(const torch::Tensor& x_BTD);
  torch::Tensor project_value(const torch::Tensor& x_BTD);
  // (B, H, T, dk) -> (B, T, D), through linear_out.
  torch::Tensor merge_heads(const torch::Tensor& x_BHTd);

  // For steps that compute all of it themselves; none has norms of its own.
  bool has_norms() const { return !q_norm_.is_empty(); }
  const Linear& query() const { return linear_q_; }
  const Linear& key() const { return linear_k_; }
  const Linear& value() const { return linear_v_; }
  const Linear& out() const { return linear_out_; }

 private:
  torch::Tensor split_heads(const torch::Tensor& x_BTD) const;
  torch::Tensor relative_scores(const torch::Tensor& query_HMd, const torch::Tensor& positions_ND,
                                const BatchContext& context);

  Settings settings_;
  Linear linear_q_{nullptr}, linear_k_{nullptr}, linear_v_{nullptr}, linear_out_{nullptr};
  Linear linear_pos_{nullptr};
  LayerNorm q_norm_{nullptr}, k_norm_{nullptr};
  torch::Tensor pos_bias_u_, pos_bias_v_;
};
TORCH_MODULE(Attention);

}  // namespace tutti::speech
