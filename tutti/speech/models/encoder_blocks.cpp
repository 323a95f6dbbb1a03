#include "tutti/speech/models/encoder_blocks.h"

#include <torch/torch.h>

#include "tutti/speech/ops/fused.h"
#include "tutti/trainer/batch_norm.h"

namespace tutti::speech {

namespace {

AttentionImpl::Settings attention_settings(const EncoderSettings& settings) {
  return {.size = settings.output_size,
          .heads = settings.attention_heads,
          .dropout_rate = settings.attention_dropout_rate,
          .qk_norm = settings.qk_norm,
          .positions = settings.positions,
          .zero_triu = settings.zero_triu};
}

FeedForward make_feed_forward(Build build, const EncoderSettings& settings) {
  return FeedForward(build, settings.output_size, settings.linear_units, settings.dropout_rate,
                     settings.activation);
}

ConvShape depthwise_shape(std::int64_t channels, int kernel, const EncoderSettings& settings) {
  return {.in = channels,
          .out = channels,
          .kernel = kernel,
          .padding = (kernel - 1) / 2,
          .groups = channels,
          .causal = settings.causal_conv};
}

class TransformerBlock final : public EncoderBlock {
 public:
  TransformerBlock(Build build, const EncoderSettings& settings) : rate_(settings.dropout_rate) {
    self_attn_ = register_module("self_attn", Attention(build, attention_settings(settings)));
    feed_forward_ = register_module("feed_forward", make_feed_forward(build, settings));
    norm1_ = register_module("norm1", LayerNorm(build, settings.output_size));
    norm2_ = register_module("norm2", LayerNorm(build, settings.output_size));
  }
  torch::Tensor forward(const torch::Tensor& input, const BatchContext& context) override {
    const double rate = is_training() ? rate_ : 0.0;
    SumAndNorms x = with_norms(input, norm1_);
    x = add_and_norm(x.sum, self_attn_->forward_self(x.first, context), 1.0, rate, norm2_);
    return add_dropped(x.sum, feed_forward_(x.first), 1.0, rate);
  }

 private:
  Attention self_attn_{nullptr};
  FeedForward feed_forward_{nullptr};
  LayerNorm norm1_{nullptr}, norm2_{nullptr};
  double rate_ = 0;
};

// pointwise -> GLU -> depthwise -> BatchNorm -> activation -> pointwise. BatchNorm counts real
// frames only: its statistics, and so training, must not depend on how a batch was padded.
class ConvolutionModule final : public torch::nn::Module {
 public:
  ConvolutionModule(Build build, const EncoderSettings& settings)
      : activation_(settings.activation) {
    const std::int64_t channels = settings.output_size;
    pointwise1_ = register_module("pointwise_conv1",
                                  Conv1d(build, ConvShape{.in = channels, .out = 2 * channels}));
    depthwise_ = register_module(
        "depthwise_conv", Conv1d(build, depthwise_shape(channels, settings.conv_kernel, settings)));
    norm_ = register_module("norm", trainer::BatchNorm(channels, build.device));
    pointwise2_ = register_module("pointwise_conv2",
                                  Conv1d(build, ConvShape{.in = channels, .out = channels}));
  }

  torch::Tensor forward(const torch::Tensor& x_BTC, const BatchContext& context) {
    // Kernels of width 1 are matrix products.
    torch::Tensor x =
        torch::glu(product(x_BTC, pointwise1_->weight.squeeze(2), pointwise1_->bias), -1);
    x = depthwise_conv(zero_padding(x, context.valid_BT), depthwise_->taps(), depthwise_->bias);
    const bool packed = is_training() && context.valid_index.defined();
    torch::Tensor rows = x.reshape({-1, x.size(2)});
    if (packed) rows = rows.index_select(0, context.valid_index);
    rows = activate(norm_->forward(rows), activation_);
    rows = product(rows, pointwise2_->weight.squeeze(2), pointwise2_->bias);
    if (packed)
      rows = torch::zeros({x.size(0) * x.size(1), rows.size(1)}, rows.options())
                 .index_copy(0, context.valid_index, rows);
    return rows.view({x.size(0), x.size(1), rows.size(1)});
  }

 private:
  Conv1d pointwise1_{nullptr}, depthwise_{nullptr}, pointwise2_{nullptr};
  trainer::BatchNorm norm_{nullptr};
  Activation activation_ = Activation::kSwish;
};

class ConformerBlock final : public EncoderBlock {
 public:
  ConformerBlock(Build build, const EncoderSettings& settings, std::int64_t index)
      : rate_(settings.dropout_rate) {
    const std::int64_t size = settings.output_size;
    if (!settings.stochastic_depth_rate.empty())
      depth_rate_ = settings.stochastic_depth_rate[index];
    self_attn_ = register_module("self_attn", Attention(build, attention_settings(settings)));
    feed_forward_ = register_module("feed_forward", make_feed_forward(build, settings));
    norm_ff_ = register_module("norm_ff", LayerNorm(build, size));
    norm_mha_ = register_module("norm_mha", LayerNorm(build, size));
    if (settings.macaron) {
      feed_forward_macaron_ =
          register_module("feed_forward_macaron", make_feed_forward(build, settings));
      norm_ff_macaron_ = register_module("norm_ff_macaron", LayerNorm(build, size));
    }
    if (settings.use_cnn_module) {
      conv_module_ =
          register_module("conv_module", std::make_shared<ConvolutionModule>(build, settings));
      norm_conv_ = register_module("norm_conv", LayerNorm(build, size));
      norm_final_ = register_module("norm_final", LayerNorm(build, size));
    }
  }

  torch::Tensor forward(const torch::Tensor& input, const BatchContext& context) override {
    double keep_scale = 1.0;  // of stochastic depth: what survives stands for what was skipped
    if (is_training() && depth_rate_ > 0) {
      if (torch::rand({1}).item<double>() < depth_rate_) return input;
      keep_scale = 1.0 / (1.0 - depth_rate_);
    }
    const double rate = is_training() ? rate_ : 0.0;
    const double ff_scale = (feed_forward_macaron_.is_empty() ? 1.0 : 0.5) * keep_scale;
    const bool macaron = !feed_forward_macaron_.is_empty();
    SumAndNorms x = with_norms(input, macaron ? norm_ff_macaron_ : norm_mha_);
    if (macaron) x = add_and_norm(x.sum, feed_forward_macaron_(x.first), ff_scale, rate, norm_mha_);
    x = add_and_norm(x.sum, self_attn_->forward_self(x.first, context), keep_scale, rate,
                     conv_module_ ? norm_conv_ : norm_ff_);
    if (!conv_module_) return add_dropped(x.sum, feed_forward_(x.first), ff_scale, rate);
    x = add_and_norm(x.sum, conv_module_->forward(x.first, context), keep_scale, rate, norm_ff_);
    return add_and_norm(x.sum, feed_forward_(x.first), ff_scale, rate, norm_final_, nullptr,
                        NormFor::kSum)
        .first;
  }

 private:
  Attention self_attn_{nullptr};
  FeedForward feed_forward_{nullptr}, feed_forward_macaron_{nullptr};
  std::shared_ptr<ConvolutionModule> conv_module_;
  LayerNorm norm_ff_{nullptr}, norm_mha_{nullptr}, norm_ff_macaron_{nullptr}, norm_conv_{nullptr},
      norm_final_{nullptr};
  double rate_ = 0;
  double depth_rate_ = 0;
};

// cgmlp.csgu: half of the channels gate the other half, through a convolution over time.
class GatingUnit final : public torch::nn::Module, public GateInitialization {
 public:
  GatingUnit(Build build, const EncoderSettings& settings)
      : rate_(settings.dropout_rate), activation_(settings.gate_activation) {
    const std::int64_t channels = settings.cgmlp_linear_units / 2;
    norm_ = register_module("norm", LayerNorm(build, channels));
    conv_ = register_module(
        "conv", Conv1d(build, depthwise_shape(channels, settings.conv_kernel, settings)));
    if (settings.use_linear_after_conv)
      linear_ = register_module("linear", Linear(build, channels, channels));
  }
  // h (B, T, C) before its activation, GELU.
  torch::Tensor forward(const torch::Tensor& h_BTC, const BatchContext& context) {
    GateFinish finish;
    if (!linear_.is_empty() || activation_ != Activation::kIdentity)
      finish = [this](const torch::Tensor& gate) {
        return activate(linear_.is_empty() ? gate : linear_(gate), activation_);
      };
    return gated_convolution(h_BTC, norm_, conv_, context.valid_BT, is_training() ? rate_ : 0.0,
                             finish);
  }
  void initialise_gate() override {
    torch::NoGradGuard no_grad;
    conv_->weight.normal_(0, 1e-6);
    conv_->bias.fill_(1);
    if (linear_.is_empty()) return;
    linear_->weight.normal_(0, 1e-6);
    linear_->bias.fill_(1);
  }

 private:
  LayerNorm norm_{nullptr};
  Conv1d conv_{nullptr};
  Linear linear_{nullptr};
  double rate_ = 0;
  Activation activation_ = Activation::kIdentity;
};

class ConvolutionalGatingMlp final : public torch::nn::Module {
 public:
  ConvolutionalGatingMlp(Build build, const EncoderSettings& settings) {
    auto projection = register_module("channel_proj1", std::make_shared<torch::nn::Module>());
    proj1_ = projection->register_module(
        "0", Linear(build, settings.output_size, settings.cgmlp_linear_units));
    csgu_ = register_module("csgu", std::make_shared<GatingUnit>(build, settings));
    proj2_ = register_module("channel_proj2",
                             Linear(build, settings.cgmlp_linear_units / 2, settings.output_size));
  }
  torch::Tensor forward(const torch::Tensor& x, const BatchContext& context) {
    return proj2_(csgu_->forward(proj1_(x), context));
  }

 private:
  Linear proj1_{nullptr}, proj2_{nullptr};
  std::shared_ptr<GatingUnit> csgu_;
};

class EBranchformerBlock final : public EncoderBlock {
 public:
  EBranchformerBlock(Build build, const EncoderSettings& settings, std::int64_t index)
      : rate_(settings.dropout_rate) {
    const std::int64_t size = settings.output_size;
    attn_ = register_module("attn", Attention(build, attention_settings(settings)));
    cgmlp_ = register_module("cgmlp", std::make_shared<ConvolutionalGatingMlp>(build, settings));
    if (settings.use_ffn) {
      feed_forward_ = register_module("feed_forward", make_feed_forward(build, settings));
      norm_ff_ = register_module("norm_ff", LayerNorm(build, size));
    }
    if (settings.use_ffn && settings.macaron) {
      feed_forward_macaron_ =
          register_module("feed_forward_macaron", make_feed_forward(build, settings));
      norm_ff_macaron_ = register_module("norm_ff_macaron", LayerNorm(build, size));
    }
    norm_mha_ = register_module("norm_mha", LayerNorm(build, size));
    norm_mlp_ = register_module("norm_mlp", LayerNorm(build, size));
    norm_final_ = register_module("norm_final", LayerNorm(build, size));
    if (settings.merge_conv_kernel > 0)
      fusion_ = register_module(
          "depthwise_conv_fusion",
          Conv1d(build, depthwise_shape(2 * size, settings.merge_conv_kernel, settings)));
    merge_proj_ = register_module("merge_proj", Linear(build, 2 * size, size));
    if (!settings.cross_attention.empty() &&
        settings.cross_attention[static_cast<std::size_t>(index)]) {
      cross_attn_ = register_module(
          "cross_attn", Attention(build, AttentionImpl::Settings{
                                             .size = size,
                                             .heads = settings.attention_heads,
                                             .dropout_rate = settings.attention_dropout_rate}));
      norm_cross_attn_ = register_module("norm_cross_attn", LayerNorm(build, size));
    }
  }

  torch::Tensor forward(const torch::Tensor& input, const BatchContext& context) override {
    const double ff_scale = feed_forward_macaron_.is_empty() ? 1.0 : 0.5;
    const double rate = is_training() ? rate_ : 0.0;
    SumAndNorms x;
    if (feed_forward_macaron_.is_empty()) {
      x = with_norms(input, norm_mha_, norm_mlp_);
    } else {
      x = with_norms(input, norm_ff_macaron_);
      x = add_and_norm(x.sum, feed_forward_macaron_(x.first), ff_scale, rate, norm_mha_, norm_mlp_);
    }
    const torch::Tensor global = attn_->forward_self(x.first, context);
    const torch::Tensor local = cgmlp_->forward(x.second, context);
    const torch::Tensor both = join_dropped(global, local, context.valid_BT, rate);
    const torch::Tensor fused =
        fusion_.is_empty()
            ? both
            : depthwise_conv(both, fusion_->taps(), fusion_->bias, /*residual=*/true);
    // What follows the merge: a feed-forward layer, cross-attention, both or neither.
    const bool looks = !cross_attn_.is_empty() && context.memory_BSD.defined();
    const LayerNorm last = looks ? norm_cross_attn_ : norm_final_;
    const NormFor last_purpose = looks ? NormFor::kProduct : NormFor::kSum;
    const LayerNorm next = feed_forward_.is_empty() ? last : norm_ff_;
    const NormFor purpose = feed_forward_.is_empty() ? last_purpose : NormFor::kProduct;
    x = add_and_norm(x.sum, merge_proj_(fused), 1.0, rate, next, nullptr, purpose);
    if (!feed_forward_.is_empty())
      x = add_and_norm(x.sum, feed_forward_(x.first), ff_scale, rate, last, nullptr, last_purpose);
    if (!looks) return x.first;
    return add_and_norm(x.sum,
                        cross_attn_->forward(x.first, context.memory_BSD, context.memory_bias), 1.0,
                        rate, norm_final_, nullptr, NormFor::kSum)
        .first;
  }

 private:
  Attention attn_{nullptr};
  std::shared_ptr<ConvolutionalGatingMlp> cgmlp_;
  FeedForward feed_forward_{nullptr}, feed_forward_macaron_{nullptr};
  LayerNorm norm_ff_{nullptr}, norm_ff_macaron_{nullptr}, norm_mha_{nullptr}, norm_mlp_{nullptr},
      norm_final_{nullptr};
  Conv1d fusion_{nullptr};
  Linear merge_proj_{nullptr};
  Attention cross_attn_{nullptr};
  LayerNorm norm_cross_attn_{nullptr};
  double rate_ = 0;
};

}  // namespace

std::shared_ptr<EncoderBlock> make_encoder_block(Build build, const EncoderSettings& settings,
                                                 std::int64_t index) {
  switch (settings.kind) {
    case EncoderKind::kTransformer:
      return std::make_shared<TransformerBlock>(build, settings);
    case EncoderKind::kConformer:
      return std::make_shared<ConformerBlock>(build, settings, index);
    case EncoderKind::kEBranchformer:
      return std::make_shared<EBranchformerBlock>(build, settings, index);
  }
  return nullptr;
}

}  // namespace tutti::speech
