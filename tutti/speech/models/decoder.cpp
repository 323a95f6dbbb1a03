#include "tutti/speech/models/decoder.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "tutti/core/error.h"
#include "tutti/speech/ops/fused.h"
#include "tutti/speech/ops/gpu/cuda_ops.h"

namespace tutti::speech {

namespace {

constexpr std::size_t kMaxKept = 8;
constexpr std::int64_t kFrameStep = 64;    // of what few hypotheses look at
constexpr std::int64_t kShortPrompt = 8;   // is read token by token, by recorded steps
constexpr std::int64_t kLeastFrames = 64;  // that a batch of unlike lengths looks at

// The next power of two, or three quarters of it: one of few numbers.
std::int64_t coarsely_up(std::int64_t frames) {
  std::int64_t power = kLeastFrames;
  while (power < frames) power *= 2;
  return frames <= power / 4 * 3 && power > kLeastFrames ? power / 4 * 3 : power;
}

gpu::StepLinear weights_of(const Linear& linear) { return {linear->weight, linear->bias}; }
gpu::StepNorm weights_of(const LayerNorm& norm) { return {norm->weight, norm->bias, norm->eps()}; }

gpu::StepState state_of(const DecoderCache& cache) {
  return {cache.memory_kv, cache.memory_bias, cache.self_kv, cache.ancestors,
          cache.position,  cache.tokens,      cache.table};
}

}  // namespace

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
  const double rate = is_training() ? dropout_rate_ : 0.0;
  SumAndNorms x = with_norms(tgt, norm1_);
  x = add_and_norm(x.sum, self_attn_->forward(x.first, x.first, tgt_bias), 1.0, rate, norm2_);
  x = add_and_norm(x.sum, src_attn_->forward(x.first, memory, memory_bias), 1.0, rate, norm3_);
  return add_dropped(x.sum, feed_forward_(x.first), 1.0, rate);
}

void DecoderLayerImpl::project_memory(const torch::Tensor& memory_UTD, torch::Tensor kv) {
  const torch::Tensor frames = kv.narrow(3, 0, memory_UTD.size(1));
  frames[0].copy_(src_attn_->project_key(memory_UTD));
  frames[1].copy_(src_attn_->project_value(memory_UTD));
}

gpu::StepLayer DecoderLayerImpl::weights() const {
  return {.self_norm = weights_of(norm1_),
          .memory_norm = weights_of(norm2_),
          .feed_forward_norm = weights_of(norm3_),
          .q = weights_of(self_attn_->query()),
          .k = weights_of(self_attn_->key()),
          .v = weights_of(self_attn_->value()),
          .out = weights_of(self_attn_->out()),
          .memory_q = weights_of(src_attn_->query()),
          .memory_out = weights_of(src_attn_->out()),
          .w_1 = weights_of(feed_forward_->first()),
          .w_2 = weights_of(feed_forward_->second())};
}

torch::Tensor DecoderLayerImpl::step(torch::Tensor x, const DecoderCache& cache, std::int64_t layer,
                                     const torch::Tensor& causal_bias) {
  const std::int64_t count = x.size(0), added = x.size(1), size = x.size(2);
  const torch::Tensor k_cache = cache.self_kv[layer][0], v_cache = cache.self_kv[layer][1];
  const torch::Tensor normed = norm1_(x);
  const torch::Tensor q = self_attn_->project_query(normed), k = self_attn_->project_key(normed),
                      v = self_attn_->project_value(normed);
  torch::Tensor said;
  if (cache.scattered) {
    said = cuda_attend_past(q, k, v, k_cache, v_cache, cache.ancestors, cache.position);
  } else {
    k_cache.narrow(2, cache.length, added).copy_(k);
    v_cache.narrow(2, cache.length, added).copy_(v);
    const std::int64_t seen = cache.length + added;
    said = attend(q, k_cache.narrow(2, 0, seen), v_cache.narrow(2, 0, seen), causal_bias, 0.0);
  }
  x = x + self_attn_->merge_heads(said);
  // The hypotheses of an utterance are its queries: its keys and values are read once for all.
  const torch::Tensor query_UQD = norm2_(x).view({count / cache.beam, cache.beam * added, size});
  x = x + src_attn_
              ->merge_heads(attend(src_attn_->project_query(query_UQD), cache.memory_kv[layer][0],
                                   cache.memory_kv[layer][1], cache.memory_bias, 0.0))
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
                                                   const torch::Tensor& positions_LD) {
  const torch::Tensor x = embedding_(tokens_BL) * std::sqrt(static_cast<double>(settings_.size));
  return apply_dropout(x + positions_LD, settings_.positional_dropout_rate, is_training());
}

torch::Tensor TransformerDecoderImpl::forward(const torch::Tensor& encoded_BTD,
                                              const Lengths& memory_lengths,
                                              const torch::Tensor& tokens_in_BL,
                                              const Lengths& token_lengths) {
  // Padded tokens come after all real ones, so the causal mask already hides them.
  static_cast<void>(token_lengths);
  return forward_masked(encoded_BTD,
                        key_bias(memory_lengths, encoded_BTD.size(1), embedding_->weight.options()),
                        tokens_in_BL, position_rows(tokens_in_BL.size(1)));
}

torch::Tensor TransformerDecoderImpl::position_rows(std::int64_t count) {
  return positions_.rows(0, count, embedding_->weight.options());
}

bool TransformerDecoderImpl::can_record() const {
  return settings_.layer_drop_rate == 0 && settings_.gradient_checkpoint_layers.empty() &&
         std::none_of(layers_.begin(), layers_.end(),
                      [](const DecoderLayer& layer) { return layer->recomputes(); });
}

torch::Tensor TransformerDecoderImpl::forward_masked(const torch::Tensor& encoded_BTD,
                                                     const torch::Tensor& memory_bias,
                                                     const torch::Tensor& tokens_in_BL,
                                                     const torch::Tensor& positions_LD) {
  const torch::Tensor memory_BTD = as_factor(encoded_BTD);  // once for all layers
  torch::Tensor x = embed_tokens(tokens_in_BL, positions_LD);
  const torch::Tensor tgt_bias = causal_bias(tokens_in_BL.size(1), 0, x.options());
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
  return output_layer_(norm_of(x, after_norm_));
}

gpu::StepDecoder TransformerDecoderImpl::step_weights() const {
  gpu::StepDecoder out{.embedding = embedding_->weight,
                       .layers = {},
                       .after_norm = weights_of(after_norm_),
                       .output = weights_of(output_layer_),
                       .heads = settings_.attention_heads};
  for (const DecoderLayer& layer : layers_) {
    if (layer->has_attention_norms()) return {};
    out.layers.push_back(layer->weights());
  }
  return out;
}

// Weights move together: a few tell whether they did.
std::vector<const void*> TransformerDecoderImpl::weight_places() const {
  std::vector<const void*> places{embedding_->weight.data_ptr(), output_layer_->weight.data_ptr()};
  for (const DecoderLayer& layer : layers_)
    places.push_back(layer->weights().w_1.weight.data_ptr());
  return places;
}

void TransformerDecoderImpl::keep(DecoderCache cache) {
  if (!cache.memory_kv.is_cuda()) return;
  const std::size_t limit = gpu::most_kept_bytes(cache.memory_kv.device());
  std::size_t bytes = cache.num_bytes();
  if (bytes > limit) return;
  // From the newest on, as many as there is room for.
  std::size_t first = kept_.size();
  while (first > 0 && kept_.size() - first + 1 < kMaxKept &&
         bytes + kept_[first - 1].cache.num_bytes() <= limit)
    bytes += kept_[--first].cache.num_bytes();
  kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(first));
  kept_.push_back({std::move(cache), weight_places()});
}

DecoderCache TransformerDecoderImpl::take_kept(const CacheSize& size,
                                               const torch::Tensor& memory_bias) {
  const auto fits = [&](const Kept& kept) {
    const DecoderCache& cache = kept.cache;
    return cache.few == size.few && cache.num_utterances() == size.utterances &&
           cache.memory_kv.size(4) == size.frames && cache.beam == size.beam &&
           cache.capacity() >= size.capacity &&
           cache.memory_bias.defined() == memory_bias.defined() && kept.weights == weight_places();
  };
  const auto found = std::find_if(kept_.begin(), kept_.end(), fits);
  if (found == kept_.end()) return {};
  DecoderCache cache = std::move(found->cache);
  kept_.erase(found);
  // The recorded step knows these tensors: they stay, with new contents.
  if (memory_bias.defined()) cache.memory_bias.copy_(memory_bias);
  cache.scattered = false;
  cache.length = 0;
  return cache;
}

DecoderCache TransformerDecoderImpl::start(const torch::Tensor& memory_UTD,
                                           const Lengths& memory_lengths, std::int64_t beam,
                                           std::int64_t capacity) {
  torch::NoGradGuard no_grad;
  const std::int64_t utterances = memory_UTD.size(0), heads = settings_.attention_heads;
  const bool few = memory_UTD.is_cuda() && utterances * beam <= gpu::kMostStepRows &&
                   gpu::can_step_few_rows(step_weights());
  // A search looks at one of few numbers of frames, so that recorded steps fit again: recording one
  // takes longer than many steps. Windows are of one length anyway, and need no mask.
  const std::int64_t given = memory_UTD.size(1);
  const bool alike = std::all_of(memory_lengths.begin(), memory_lengths.end(),
                                 [&](std::int64_t length) { return length == given; });
  const std::int64_t frames = few ? (given + kFrameStep - 1) / kFrameStep * kFrameStep
                              : memory_UTD.is_cuda() && !alike ? coarsely_up(given)
                                                               : given;
  const torch::Tensor memory_bias = key_bias(memory_lengths, frames, memory_UTD.options());
  DecoderCache cache = take_kept({utterances, frames, beam, capacity, few}, memory_bias);
  if (!cache.memory_kv.defined()) {
    cache.beam = beam;
    cache.few = few;
    cache.memory_kv =
        torch::empty({settings_.num_blocks, 2, utterances, heads, frames, settings_.size / heads},
                     memory_UTD.options());
    cache.memory_bias = memory_bias;
    cache.self_kv = torch::zeros({settings_.num_blocks, 2, utterances * beam, heads,
                                  std::max<std::int64_t>(capacity, 1), settings_.size / heads},
                                 memory_UTD.options());
  }
  // What is past the end is hidden, and must be a number.
  if (frames > given) cache.memory_kv.narrow(4, given, frames - given).zero_();
  for (std::size_t i = 0; i < layers_.size(); ++i)
    layers_[i]->project_memory(memory_UTD, cache.memory_kv[static_cast<std::int64_t>(i)]);
  return cache;
}

torch::Tensor TransformerDecoderImpl::run_step(const torch::Tensor& tokens_NL,
                                               const torch::Tensor& positions_LD,
                                               const torch::Tensor& causal,
                                               const DecoderCache& cache) {
  torch::Tensor x = embed_tokens(tokens_NL, positions_LD);
  for (std::size_t i = 0; i < layers_.size(); ++i)
    x = layers_[i]->step(x, cache, static_cast<std::int64_t>(i), causal);
  return torch::log_softmax(output_layer_(after_norm_(x.select(1, x.size(1) - 1))), -1,
                            torch::kFloat32);
}

// One token for each hypothesis, on a GPU.
torch::Tensor TransformerDecoderImpl::step_by_one(const torch::Tensor& tokens_N1,
                                                  DecoderCache& cache) {
  const std::int64_t rows = tokens_N1.size(0);
  if (!cache.scattered) {
    const auto ids = torch::TensorOptions(tokens_N1.device());
    const torch::Tensor own = torch::arange(rows, ids.dtype(torch::kInt32)).unsqueeze(1);
    if (cache.ancestors.defined()) {  // of a search before
      cache.ancestors.copy_(own);
      cache.position.fill_(cache.length);
    } else {
      cache.ancestors = own.repeat({1, cache.capacity()});
      cache.position = torch::full({1}, cache.length, ids.dtype(torch::kInt64));
      cache.tokens = torch::empty({rows, 1}, ids.dtype(torch::kInt64));
      cache.table = positions_.rows(0, cache.capacity(), embedding_->weight.options());
    }
    cache.scattered = true;
  }
  cache.tokens.copy_(tokens_N1);
  const torch::Tensor log_probs = cache.graph.run(tokens_N1.device(), [&] {
    torch::Tensor out;
    if (cache.few)
      out = gpu::step_few_rows(step_weights(), state_of(cache));
    else
      out = run_step(cache.tokens, cache.table.index_select(0, cache.position), {}, cache);
    cache.position.add_(1);
    return out;
  });
  ++cache.length;
  return log_probs;
}

torch::Tensor TransformerDecoderImpl::step(const torch::Tensor& tokens, DecoderCache& cache) {
  torch::NoGradGuard no_grad;
  const torch::Tensor tokens_NL = tokens.dim() == 1 ? tokens.unsqueeze(1) : tokens;
  const std::int64_t rows = tokens_NL.size(0), added = tokens_NL.size(1);
  if (rows != cache.num_hypotheses())
    throw InternalError("decoder step: got tokens of " + std::to_string(rows) +
                        " hypotheses, the cache has " + std::to_string(cache.num_hypotheses()));
  cache.reserve(cache.length + added);
  torch::Tensor log_probs;
  if (added <= (cache.few ? kShortPrompt : 1) && can_attend_past(cache.self_kv[0][0])) {
    for (std::int64_t i = 0; i < added; ++i)
      log_probs = step_by_one(tokens_NL.narrow(1, i, 1), cache);
    return log_probs;
  }
  if (cache.scattered) cache.settle();
  const auto like = embedding_->weight.options();
  const torch::Tensor causal =
      added == 1 ? torch::Tensor() : causal_bias(added, cache.length, like);
  log_probs = run_step(tokens_NL, positions_.rows(cache.length, added, like), causal, cache);
  cache.length += added;
  return log_probs;
}

}  // namespace tutti::speech
