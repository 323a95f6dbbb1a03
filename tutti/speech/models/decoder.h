// The attention decoder: whole sequences in training, token by token with caches in search.
//
//   DecoderCache cache = decoder->start(encoded.out, encoded.lengths, /*beam=*/5);
//   auto log_probs = decoder->step(tokens_N, cache);      // (N, V), N = utterances x beam
//   ... pick the best; parents_N says which row each new hypothesis continues ...
//   cache.reorder(parents_N);
//
// What ESPnet caches are layer outputs, so that every step projects all encoder frames to keys and
// values again (45 times the necessary arithmetic at OWSM size). Here keys and values are kept: of
// the memory once per utterance, shared by its hypotheses, and of the tokens once per hypothesis.
#pragma once

#include <vector>

#include "tutti/speech/models/attention.h"
#include "tutti/speech/models/lengths.h"
#include "tutti/speech/models/modules.h"
#include "tutti/speech/models/step_graph.h"
#include "tutti/speech/ops/gpu/decoder_step.h"
#include "tutti/trainer/recompute.h"

namespace tutti::speech {

// Keys and values of a search in progress. Rows of hypotheses lie utterance by utterance: row
// u * beam + i is hypothesis i of utterance u. Moves, does not copy.
//
// On a CPU a row holds all of its hypothesis, and reorder() copies rows. On a GPU a row holds what
// was said in it, `ancestors` says where the rest of its hypothesis lies, and a step runs as one
// recorded launch, which is kept for the next search (TransformerDecoder::keep).
struct DecoderCache {
  torch::Tensor memory_kv;    // (layers, 2, U, H, T, dk); of few hypotheses T is padded
  torch::Tensor memory_bias;  // (U, 1, 1, T): 0 or -inf, or undefined when nothing is padded
  torch::Tensor self_kv;    // (layers, 2, N, H, capacity, dk); only [.. :length ..] means anything
  torch::Tensor spare;      // same shape; the other half of the double buffer of reorder()
  torch::Tensor ancestors;  // (N, capacity) int32; undefined at first
  torch::Tensor position;   // (1) int64, = length; where ancestors are
  torch::Tensor tokens;     // (N, 1) int64, the newest; where ancestors are
  torch::Tensor table;      // (capacity, D) position vectors; where ancestors are
  std::int64_t length = 0;  // tokens seen so far
  std::int64_t beam = 1;
  bool scattered = false;  // rows are as `ancestors` says; else they are whole
  bool few = false;        // a step is done by step_few_rows()
  StepGraph graph;

  std::size_t num_bytes() const { return memory_kv.nbytes() + self_kv.nbytes(); }
  std::int64_t num_utterances() const { return memory_kv.size(2); }
  std::int64_t num_hypotheses() const { return self_kv.size(2); }
  std::int64_t capacity() const { return self_kv.size(4); }
  // New row i continues old row parents_N[i] (int64, on the cache's device). A parent belongs to
  // the same utterance: memory is not moved.
  void reorder(const torch::Tensor& parents_N);
  // Keeps these utterances only, in this order, with all their hypotheses. Returns the cache as it
  // was, for who keeps it.
  DecoderCache select_utterances(const torch::Tensor& utterances);
  // Room for so many tokens.
  void reserve(std::int64_t capacity);

 private:
  // Makes rows whole again, for other steps or sizes than the recorded.
  void settle();
  // self_kv with rows that hold all of what these ancestors (N, capacity; int64) said.
  torch::Tensor whole_rows(const torch::Tensor& ancestors_NC) const;
  friend class TransformerDecoderImpl;
};

class DecoderLayerImpl : public torch::nn::Module, public trainer::Recomputable {
 public:
  DecoderLayerImpl(Build build, const DecoderSettings& settings);
  // tgt (B, L, D); masks as Attention wants them.
  torch::Tensor forward(torch::Tensor tgt, const torch::Tensor& tgt_bias,
                        const torch::Tensor& memory, const torch::Tensor& memory_bias);
  // x (N, L, D) new tokens of layer `layer` of the cache.
  torch::Tensor step(torch::Tensor x, const DecoderCache& cache, std::int64_t layer,
                     const torch::Tensor& causal_bias);
  // Writes keys and values of the memory to kv (2, U, H, T, dk).
  void project_memory(const torch::Tensor& memory_UTD, torch::Tensor kv);
  // For steps of few hypotheses; only the newest kinds of layers have norms in attention.
  bool has_attention_norms() const { return self_attn_->has_norms(); }
  gpu::StepLayer weights() const;

 private:
  Attention self_attn_{nullptr}, src_attn_{nullptr};
  FeedForward feed_forward_{nullptr};
  LayerNorm norm1_{nullptr}, norm2_{nullptr}, norm3_{nullptr};
  double dropout_rate_ = 0;
};
TORCH_MODULE(DecoderLayer);

class TransformerDecoderImpl : public torch::nn::Module {
 public:
  TransformerDecoderImpl(Build build, const DecoderSettings& settings);

  // Logits (B, L, V) for tokens_in (B, L) int64, which begins with <sos>; ids at padded positions
  // must be valid tokens, whichever.
  torch::Tensor forward(const torch::Tensor& memory_BTD, const Lengths& memory_lengths,
                        const torch::Tensor& tokens_in_BL, const Lengths& token_lengths);
  // The same with masks that are made already: memory_bias (B, 1, 1, T) or undefined, and
  // position_rows() of as many tokens.
  torch::Tensor forward_masked(const torch::Tensor& encoded_BTD, const torch::Tensor& memory_bias,
                               const torch::Tensor& tokens_in_BL,
                               const torch::Tensor& positions_LD);
  torch::Tensor position_rows(std::int64_t count);
  // Whether forward_masked() decides nothing on the host.
  bool can_record() const;

  // A cache for `beam` hypotheses of each utterance, with room for `capacity` tokens (it grows): a
  // kept one if there is one of these sizes.
  DecoderCache start(const torch::Tensor& memory_UTD, const Lengths& memory_lengths,
                     std::int64_t beam, std::int64_t capacity = 64);
  // Takes the newest token of every hypothesis, (N) or a prompt (N, L), and gives log-probabilities
  // of the next one: (N, V) float32. REQUIRES: no gradients wanted, eval mode.
  torch::Tensor step(const torch::Tensor& tokens, DecoderCache& cache);

  // Keeps the cache of a search that is over, for its recorded step: to record one takes as long as
  // ten. The newest, in a small part of the GPU's memory.
  void keep(DecoderCache cache);
  void forget_kept() { kept_.clear(); }
  std::size_t num_kept() const { return kept_.size(); }

  const DecoderSettings& settings() const { return settings_; }

 private:
  struct Kept {
    DecoderCache cache;
    std::vector<const void*> weights;  // that the recorded step reads
  };
  gpu::StepDecoder step_weights() const;
  std::vector<const void*> weight_places() const;
  struct CacheSize {
    std::int64_t utterances, frames, beam, capacity;
    bool few;
  };
  DecoderCache take_kept(const CacheSize& size, const torch::Tensor& memory_bias);
  torch::Tensor step_by_one(const torch::Tensor& tokens_N1, DecoderCache& cache);
  torch::Tensor embed_tokens(const torch::Tensor& tokens_BL, const torch::Tensor& positions_LD);
  torch::Tensor run_step(const torch::Tensor& tokens_NL, const torch::Tensor& positions_LD,
                         const torch::Tensor& causal, const DecoderCache& cache);

  Embedding embedding_{nullptr};
  std::vector<DecoderLayer> layers_;
  LayerNorm after_norm_{nullptr};
  Linear output_layer_{nullptr};
  PositionTable positions_;
  DecoderSettings settings_;
  std::vector<Kept> kept_;  // the newest last
};
TORCH_MODULE(TransformerDecoder);

}  // namespace tutti::speech
