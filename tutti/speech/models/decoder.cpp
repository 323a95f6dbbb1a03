#include "tutti/speech/models/decoder.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "tutti/core/error.h"

namespace tutti::speech {

void DecoderCache::reorder(const torch::Tensor& parents_N) {
  if (length == 0) return;
  torch::NoGradGuard no_grad;
  if (!spare.defined() || spare.sizes() != self_kv.sizes()) spare = torch::empty_like(self_kv);
  torch::Tensor target = spare.narrow(4, 0, length);
  at::index_select_out(target, self_kv.narrow(4, 0, length), 2, parents_N);
  std::swap(self_kv, spare);
}

void DecoderCache::select_utterances(const torch::Tensor& utterances) {
  torch::NoGradGuard no_grad;
  memory_kv = memory_kv.index_select(2, utterances);
  if (memory_bias.defined()) memory_bias = memory_bias.index_select(0, utterances);
  const auto lanes = torch::arange(beam, utterances.options());
  const auto rows = (utterances.unsqueeze(1) * beam + lanes.unsqueeze(0)).flatten();
  self_kv = self_kv.index_select(2, rows);
  spare = torch::Tensor();
}

void DecoderCache::expand_beam(std::int64_t new_beam) {
  if (beam != 1)
    throw InternalError("DecoderCache::expand_beam: the beam is " + std::to_string(beam) +
                        " already");
  torch::NoGradGuard no_grad;
  self_kv = self_kv.repeat_interleave(new_beam, 2);
  spare = torch::Tensor();
  beam = new_beam;
}

DecoderLayerImpl::DecoderLayerImpl(Build build, const DecoderSettings& settings)
    : dropout_rate_(settings.dropout_rate) {
  const auto attention = [&](double rate) {
    return Attention(build, AttentionImpl::Settings{.size = settings.size,
                                                    .heads = settings.attention_heads,
                                                    .dropout_rate = rate,
                                                    .qk_norm = settings.qk_norm});
  };
  self_attn_ = register_module("self_attn", attention(settings.self_attention_dropout_rate));
  src_attn_ = register_module("src_attn", attention(settings.src_attention_dropout_rate));
  feed_forward_ =
      register_module("feed_forward", FeedForward(build, settings.size, settings.linear_units,
                                                  settings.dropout_rate, Activation::kRelu));
  norm1_ = register_module("norm1", LayerNorm(build, settings.size));
  norm2_ = register_module("norm2", LayerNorm(build, settings.size));
  norm3_ = register_module("norm3", LayerNorm(build, settings.size));
}

torch::Tensor DecoderLayerImpl::forward(torch::Tensor tgt, const torch::Tensor& tgt_bias,
                                        const torch::Tensor& memory,
                                        const torch::Tensor& memory_bias) {
  const auto drop = [this](const torch::Tensor& x) {
    return apply_dropout(x, dropout_rate_, is_training());
  };
  const torch::Tensor normed = norm1_(tgt);
  tgt = tgt + drop(self_attn_->forward(normed, normed, tgt_bias));
  tgt = tgt + drop(src_attn_->forward(norm2_(tgt), memory, memory_bias));
  return tgt + drop(feed_forward_(norm3_(tgt)));
}

torch::Tensor DecoderLayerImpl::project_memory(const torch::Tensor& memory_UTD) {
  return torch::stack({src_attn_->project_key(memory_UTD), src_attn_->project_value(memory_UTD)});
}

torch::Tensor DecoderLayerImpl::step(torch::Tensor x, const torch::Tensor& self_kv,
                                     std::int64_t past, const torch::Tensor& causal_bias,
                                     const torch::Tensor& memory_kv,
                                     const torch::Tensor& memory_bias, std::int64_t beam) {
  const std::int64_t count = x.size(0), added = x.size(1), size = x.size(2);
  const torch::Tensor normed = norm1_(x);
  self_kv[0].narrow(2, past, added).copy_(self_attn_->project_key(normed));
  self_kv[1].narrow(2, past, added).copy_(self_attn_->project_value(normed));
  x = x + self_attn_->merge_heads(attend(self_attn_->project_query(normed),
                                         self_kv[0].narrow(2, 0, past + added),
                                         self_kv[1].narrow(2, 0, past + added), causal_bias, 0.0));
  // The hypotheses of an utterance are its queries: its keys and values are read once for all.
  const torch::Tensor query_UQD = norm2_(x).view({count / beam, beam * added, size});
  x = x + src_attn_
              ->merge_heads(attend(src_attn_->project_query(query_UQD), memory_kv[0], memory_kv[1],
                                   memory_bias, 0.0))
              .view({count, added, size});
  return x + feed_forward_(norm3_(x));
}

TransformerDecoderImpl::TransformerDecoderImpl(Build build, const DecoderSettings& settings)
    : positions_(settings.size), settings_(settings) {
  if (settings.size % settings.attention_heads != 0)
    throw ConfigError(
        "decoder_conf.attention_heads: got " + std::to_string(settings.attention_heads) +
        ", expected a divisor of the encoder's output_size = " + std::to_string(settings.size));
  auto embed = register_module("embed", std::make_shared<torch::nn::Module>());
  embedding_ = embed->register_module("0", Embedding(build, settings.vocab_size, settings.size));
  after_norm_ = register_module("after_norm", LayerNorm(build, settings.size));
  output_layer_ =
      register_module("output_layer", Linear(build, settings.size, settings.vocab_size));
  auto list = register_module("decoders", std::make_shared<torch::nn::Module>());
  for (std::int64_t i = 0; i < settings.num_blocks; ++i)
    layers_.push_back(list->register_module(std::to_string(i), DecoderLayer(build, settings)));
}

torch::Tensor TransformerDecoderImpl::embed_tokens(const torch::Tensor& tokens_BL,
                                                   std::int64_t first_position) {
  const torch::Tensor x = embedding_(tokens_BL) * std::sqrt(static_cast<double>(settings_.size));
  return apply_dropout(x + positions_.rows(first_position, tokens_BL.size(1), x.options()),
                       settings_.positional_dropout_rate, is_training());
}

torch::Tensor TransformerDecoderImpl::forward(const torch::Tensor& memory_BTD,
                                              const Lengths& memory_lengths,
                                              const torch::Tensor& tokens_in_BL,
                                              const Lengths& token_lengths) {
  // Padded tokens come after all real ones, so the causal mask already hides them.
  static_cast<void>(token_lengths);
  torch::Tensor x = embed_tokens(tokens_in_BL, 0);
  const torch::Tensor tgt_bias = causal_bias(tokens_in_BL.size(1), 0, x.options());
  const torch::Tensor memory_bias = key_bias(memory_lengths, memory_BTD.size(1), x.options());
  const auto& chosen = settings_.gradient_checkpoint_layers;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (is_training() && settings_.layer_drop_rate > 0 &&
        torch::rand({1}).item<double>() < settings_.layer_drop_rate)
      continue;
    DecoderLayer layer = layers_[i];
    const bool is_chosen =
        layer->recomputes() ||
        std::find(chosen.begin(), chosen.end(), static_cast<std::int64_t>(i) + 1) != chosen.end();
    if (is_training() && is_chosen) {
      // The memory's gradient has to flow too, so it is handed over with the parameters.
      std::vector<torch::Tensor> used = layer->parameters();
      used.push_back(memory_BTD);
      x = trainer::checkpointed(
          [=](const torch::Tensor& in) mutable {
            return layer->forward(in, tgt_bias, memory_BTD, memory_bias);
          },
          x, used);
    } else {
      x = layer->forward(x, tgt_bias, memory_BTD, memory_bias);
    }
  }
  return output_layer_(after_norm_(x));
}

DecoderCache TransformerDecoderImpl::start(const torch::Tensor& memory_UTD,
                                           const Lengths& memory_lengths, std::int64_t beam,
                                           std::int64_t capacity) {
  torch::NoGradGuard no_grad;
  DecoderCache cache;
  cache.beam = beam;
  std::vector<torch::Tensor> memory;
  for (auto& layer : layers_) memory.push_back(layer->project_memory(memory_UTD));
  cache.memory_kv = torch::stack(memory);
  cache.memory_bias = key_bias(memory_lengths, memory_UTD.size(1), cache.memory_kv.options());
  const std::int64_t heads = settings_.attention_heads;
  cache.self_kv = torch::zeros({settings_.num_blocks, 2, memory_UTD.size(0) * beam, heads,
                                std::max<std::int64_t>(capacity, 1), settings_.size / heads},
                               cache.memory_kv.options());
  return cache;
}

torch::Tensor TransformerDecoderImpl::step(const torch::Tensor& tokens, DecoderCache& cache) {
  torch::NoGradGuard no_grad;
  const torch::Tensor tokens_NL = tokens.dim() == 1 ? tokens.unsqueeze(1) : tokens;
  const std::int64_t added = tokens_NL.size(1), past = cache.length;
  if (tokens_NL.size(0) != cache.num_hypotheses())
    throw InternalError("decoder step: got tokens of " + std::to_string(tokens_NL.size(0)) +
                        " hypotheses, the cache has " + std::to_string(cache.num_hypotheses()));
  const std::int64_t capacity = cache.self_kv.size(4);
  if (past + added > capacity) {
    const std::int64_t grown = std::max(2 * capacity, past + added);
    cache.self_kv = torch::constant_pad_nd(cache.self_kv, {0, 0, 0, grown - capacity});
    cache.spare = torch::Tensor();
  }
  torch::Tensor x = embed_tokens(tokens_NL, past);
  const torch::Tensor causal = added == 1 ? torch::Tensor() : causal_bias(added, past, x.options());
  for (std::size_t i = 0; i < layers_.size(); ++i)
    x = layers_[i]->step(x, cache.self_kv[i], past, causal, cache.memory_kv[i], cache.memory_bias,
                         cache.beam);
  cache.length += added;
  return torch::log_softmax(output_layer_(after_norm_(x.select(1, added - 1))), -1,
                            torch::kFloat32);
}

}  // namespace tutti::speech
