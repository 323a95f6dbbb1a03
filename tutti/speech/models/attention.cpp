#include "tutti/speech/models/attention.h"

#include <torch/torch.h>
#include <torch/version.h>

#include <cmath>
#include <limits>

#include "tutti/speech/ops/fused.h"
#include "tutti/speech/ops/gpu/cuda_ops.h"
#include "tutti/speech/ops/gpu/relative_attention.h"
#include "tutti/trainer/torch_version.h"

namespace tutti::speech {

namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

}  // namespace

torch::Tensor PositionTable::rows(std::int64_t first, std::int64_t count,
                                  const torch::TensorOptions& like) {
  const std::int64_t reach = std::max(std::abs(first), std::abs(first + count - 1));
  if (!table_.defined() || reach > reach_ || table_.device() != like.device() ||
      table_.scalar_type() != c10::typeMetaToScalarType(like.dtype())) {
    torch::NoGradGuard no_grad;
    reach_ = std::max<std::int64_t>(std::max(reach, reach_), 512);
    const auto position = torch::arange(-reach_, reach_ + 1, torch::kFloat32).unsqueeze(1);
    const auto rate = torch::exp(torch::arange(0, size_, 2, torch::kFloat32) *
                                 -(std::log(10000.0) / static_cast<double>(size_)));
    const auto angle = position * rate;
    // Interleaved: even columns sin, odd columns cos.
    table_ = torch::stack({torch::sin(angle), torch::cos(angle)}, -1).flatten(1).to(like);
  }
  return table_.narrow(0, first + reach_, count);
}

torch::Tensor key_bias(const Lengths& lengths, std::int64_t max_len,
                       const torch::TensorOptions& like) {
  const torch::Tensor valid = valid_mask(lengths, max_len, like.device());
  return valid.defined() ? key_bias(valid, like) : torch::Tensor();
}

torch::Tensor key_bias(const torch::Tensor& valid_BT, const torch::TensorOptions& like) {
  return torch::zeros(valid_BT.sizes(), like)
      .masked_fill_(valid_BT.logical_not(), kMinusInfinity)
      .view({valid_BT.size(0), 1, 1, valid_BT.size(1)});
}

torch::Tensor causal_bias(std::int64_t length, std::int64_t past,
                          const torch::TensorOptions& like) {
  return torch::full({length, past + length}, kMinusInfinity, like)
      .triu_(past + 1)
      .view({1, 1, length, past + length});
}

torch::Tensor attend(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                     const torch::Tensor& bias, double dropout_rate) {
#if TORCH_VERSION_MAJOR >= 2
  if (!bias.defined()) return at::scaled_dot_product_attention(q, k, v, {}, dropout_rate, false);
  return at::scaled_dot_product_attention(q, k, v, bias.to(q.scalar_type()), dropout_rate, false);
#else
  // The scale goes to q, which is smaller than the scores.
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
  torch::Tensor scores = torch::matmul(q * scale, k.transpose(-2, -1));
  if (bias.defined()) scores = scores + bias;
  // float32 whatever autocast made of the product: CPU autocast would stay in bf16.
  torch::Tensor weights = torch::softmax(scores, -1, torch::kFloat32);
  weights = apply_dropout(weights, dropout_rate, true).to(v.scalar_type());
  return torch::matmul(weights, v);
#endif
}

void attend_without_plans() {
#if TUTTI_TORCH_AT_LEAST(2, 4)
  at::globalContext().setSDPUseCuDNN(false);
#endif
}

AttentionImpl::AttentionImpl(Build build, Settings settings) : settings_(settings) {
  const std::int64_t size = settings.size, head_size = size / settings.heads;
  linear_q_ = register_module("linear_q", Linear(build, size, size));
  linear_k_ = register_module("linear_k", Linear(build, size, size));
  linear_v_ = register_module("linear_v", Linear(build, size, size));
  linear_out_ = register_module("linear_out", Linear(build, size, size));
  const bool relative = settings.positions == PositionKind::kRelative ||
                        settings.positions == PositionKind::kLegacyRelative;
  if (settings.qk_norm && !relative) {
    q_norm_ = register_module("q_norm", LayerNorm(build, head_size));
    k_norm_ = register_module("k_norm", LayerNorm(build, head_size));
  }
  if (!relative) return;
  linear_pos_ = register_module("linear_pos", Linear(build, size, size, /*with_bias=*/false));
  pos_bias_u_ = register_parameter("pos_bias_u", build.tensor({settings.heads, head_size}));
  pos_bias_v_ = register_parameter("pos_bias_v", build.tensor({settings.heads, head_size}));
  if (!build.initialise || build.device.is_meta()) return;
  torch::nn::init::xavier_uniform_(pos_bias_u_);
  torch::nn::init::xavier_uniform_(pos_bias_v_);
}

torch::Tensor AttentionImpl::split_heads(const torch::Tensor& x_BTD) const {
  return x_BTD.view({x_BTD.size(0), x_BTD.size(1), settings_.heads, -1}).transpose(1, 2);
}

torch::Tensor AttentionImpl::project_query(const torch::Tensor& x_BTD) {
  const torch::Tensor q = split_heads(linear_q_(x_BTD));
  return q_norm_.is_empty() ? q : q_norm_(q);
}

torch::Tensor AttentionImpl::project_key(const torch::Tensor& x_BTD) {
  const torch::Tensor k = split_heads(linear_k_(x_BTD));
  return k_norm_.is_empty() ? k : k_norm_(k);
}

torch::Tensor AttentionImpl::project_value(const torch::Tensor& x_BTD) {
  return split_heads(linear_v_(x_BTD));
}

torch::Tensor AttentionImpl::merge_heads(const torch::Tensor& x_BHTd) {
  return linear_out_(
      x_BHTd.transpose(1, 2).reshape({x_BHTd.size(0), x_BHTd.size(2), settings_.size}));
}

torch::Tensor AttentionImpl::forward(const torch::Tensor& query_BTD,
                                     const torch::Tensor& memory_BSD, const torch::Tensor& bias) {
  const double rate = is_training() ? settings_.dropout_rate : 0.0;
  if (query_BTD.is_same(memory_BSD) && q_norm_.is_empty()) {
    const ThreeProducts qkv = products(query_BTD, linear_q_, linear_k_, linear_v_);
    return merge_heads(attend(split_heads(qkv.first), split_heads(qkv.second),
                              split_heads(qkv.third), bias, rate));
  }
  return merge_heads(attend(project_query(query_BTD), project_key(memory_BSD),
                            project_value(memory_BSD), bias, rate));
}

torch::Tensor AttentionImpl::forward_self(const torch::Tensor& x_BTD, const BatchContext& context) {
  if (linear_pos_.is_empty()) return forward(x_BTD, x_BTD, context.key_bias);
  const double scale = 1.0 / std::sqrt(static_cast<double>(pos_bias_u_.size(1)));
  const ThreeProducts qkv = products(x_BTD, linear_q_, linear_k_, linear_v_);
  const double rate = is_training() ? settings_.dropout_rate : 0.0;
  const torch::Tensor positions_ND = linear_pos_(context.positions).squeeze(0);
  if (settings_.positions == PositionKind::kRelative && !settings_.zero_triu &&
      gpu::can_fuse_attention(qkv.first, positions_ND, pos_bias_u_))
    return linear_out_(gpu::fused_relative_attention(qkv, pos_bias_u_, pos_bias_v_, positions_ND,
                                                     context.valid_BT, rate));
  const PositionQueries queries = position_queries(qkv.first, pos_bias_u_, pos_bias_v_, scale);
  const torch::Tensor bias = relative_scores(queries.with_v_HMd, positions_ND, context);
  const torch::Tensor key = split_heads(qkv.second);
  // Under autocast torch's sum is float32 and the rest is not.
  const torch::Tensor query = queries.with_u_BTHd.to(key.scalar_type()).transpose(1, 2);
  return merge_heads(attend(query, key, split_heads(qkv.third), bias, rate));
}

// Scores (B, H, T, T) of query i, scaled, against the position of key j relative to it; -inf where
// key j is padding.
torch::Tensor AttentionImpl::relative_scores(const torch::Tensor& query_HMd,
                                             const torch::Tensor& positions_ND,
                                             const BatchContext& context) {
  const auto batch = static_cast<std::int64_t>(context.lengths.size());
  const std::int64_t heads = settings_.heads, frames = query_HMd.size(1) / batch;
  const std::int64_t columns = positions_ND.size(0);
  // One matrix product per head for the whole batch: positions are the same for all utterances, and
  // a broadcast matmul would copy them B times.
  const torch::Tensor p_HdN = positions_ND.view({columns, heads, -1}).permute({1, 2, 0});
  const torch::Tensor scores = torch::bmm(query_HMd, p_HdN).view({heads, batch, frames, columns});

  torch::Tensor shifted;
  if (settings_.positions == PositionKind::kRelative) {
    if (has_cuda_ops(scores) && !settings_.zero_triu)
      return cuda_relative_shift(scores, context.key_bias);
    // Row i wants columns T-1-i .. 2T-2-i. Seen flat, that is a matrix of rows one shorter that
    // begins T-1 elements in: a view instead of a copy.
    if (columns == 1) {
      shifted = scores;
    } else {
      shifted = scores.view({heads, batch, frames * columns})
                    .narrow(2, frames - 1, frames * (columns - 1))
                    .view({heads, batch, frames, columns - 1})
                    .narrow(3, 0, frames);
    }
  } else {
    // The old shift: a zero column in front, then the rows read with another width. Entries right
    // of the diagonal come out as scores of the next query, and all of it hangs on the length of
    // the sequence; a padded batch needs each utterance's own end (legacy_index).
    const torch::Tensor padded = torch::constant_pad_nd(scores, {1, 0});
    if (context.legacy_index.defined()) {
      const torch::Tensor index =
          context.legacy_index.unsqueeze(0).expand({heads, batch, frames * frames});
      shifted = padded.view({heads, batch, frames * (frames + 1)})
                    .gather(2, index)
                    .view({heads, batch, frames, frames});
    } else {
      shifted = padded.view({heads, batch, frames + 1, frames})
                    .narrow(2, 1, frames)
                    .reshape({heads, batch, frames, frames});
    }
  }
  shifted = shifted.transpose(0, 1);
  if (settings_.zero_triu) shifted = shifted.tril();
  return context.key_bias.defined() ? shifted + context.key_bias : shifted;
}

}  // namespace tutti::speech
