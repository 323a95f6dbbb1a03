#include "tutti/speech/models/language_model.h"

#include <torch/torch.h>

#include <cmath>
#include <limits>

namespace tutti::speech {
namespace {

torch::Tensor as_rows(const torch::Tensor& tokens) {
  return tokens.dim() == 1 ? tokens.unsqueeze(1) : tokens;
}

// encoders.N of ESPnet's Encoder: pre-norm, ReLU.
class LmBlockImpl : public torch::nn::Module {
 public:
  LmBlockImpl(Build build, const LmSettings& s) {
    self_attn_ = register_module(
        "self_attn",
        Attention(build, AttentionImpl::Settings{.size = s.att_unit, .heads = s.head}));
    feed_forward_ = register_module("feed_forward",
                                    FeedForward(build, s.att_unit, s.unit, 0.0, Activation::kRelu));
    norm1_ = register_module("norm1", LayerNorm(build, s.att_unit));
    norm2_ = register_module("norm2", LayerNorm(build, s.att_unit));
  }
  // keys and values (N, H, T, dk) grow by the new tokens; undefined at first.
  torch::Tensor step(const torch::Tensor& x_NLD, torch::Tensor& keys, torch::Tensor& values,
                     const torch::Tensor& bias) {
    const torch::Tensor h = norm1_(x_NLD);
    const torch::Tensor k = self_attn_->project_key(h), v = self_attn_->project_value(h);
    keys = keys.defined() ? torch::cat({keys, k}, 2) : k;
    values = values.defined() ? torch::cat({values, v}, 2) : v;
    const torch::Tensor x = x_NLD + self_attn_->merge_heads(attend(self_attn_->project_query(h),
                                                                   keys, values, bias, 0.0));
    return x + feed_forward_(norm2_(x));
  }

 private:
  Attention self_attn_{nullptr};
  FeedForward feed_forward_{nullptr};
  LayerNorm norm1_{nullptr}, norm2_{nullptr};
};
TORCH_MODULE(LmBlock);

class TransformerLm final : public LanguageModelImpl {
 public:
  TransformerLm(Build build, const LmSettings& s) : settings_(s), positions_(s.att_unit) {
    const auto vocab = static_cast<std::int64_t>(s.token_list.size());
    auto lm = register_module("lm", std::make_shared<torch::nn::Module>());
    embed_ = lm->register_module("embed", Embedding(build, vocab, s.embed_unit));
    auto encoder = lm->register_module("encoder", std::make_shared<torch::nn::Module>());
    auto input = encoder->register_module("embed", std::make_shared<torch::nn::Module>());
    input_ = input->register_module("0", Linear(build, s.embed_unit, s.att_unit));
    input_norm_ = input->register_module("1", LayerNorm(build, s.att_unit, 1e-5));
    auto list = encoder->register_module("encoders", std::make_shared<torch::nn::Module>());
    for (std::int64_t i = 0; i < s.layer; ++i)
      blocks_.push_back(list->register_module(std::to_string(i), LmBlock(build, s)));
    after_norm_ = encoder->register_module("after_norm", LayerNorm(build, s.att_unit));
    decoder_ = lm->register_module("decoder", Linear(build, s.att_unit, vocab));
  }

  // state.tensors: keys and values of each block in turn, then (N, T) whether a token can be seen.
  torch::Tensor step(const torch::Tensor& tokens, LmState& state) override {
    const torch::NoGradGuard no_grad;
    const torch::Tensor ids = as_rows(tokens);
    const std::int64_t added = ids.size(1);
    const auto like = embed_->weight.options();
    torch::Tensor x = torch::relu(input_norm_(input_(embed_(ids))));
    if (settings_.has_positions)
      x = x * std::sqrt(static_cast<double>(settings_.att_unit)) +
          positions_.rows(state.length, added, like);
    state.tensors.resize(2 * blocks_.size() + 1);
    torch::Tensor& seen = state.tensors.back();
    const torch::Tensor fresh = ids != 0;  // blank is this model's padding
    seen = seen.defined() ? torch::cat({seen, fresh}, 1) : fresh;
    torch::Tensor bias =
        torch::zeros(seen.sizes(), like)
            .masked_fill_(seen.logical_not(), -std::numeric_limits<double>::infinity())
            .view({seen.size(0), 1, 1, seen.size(1)});
    if (added > 1) bias = bias + causal_bias(added, state.length, like);
    for (std::size_t i = 0; i < blocks_.size(); ++i)
      x = blocks_[i]->step(x, state.tensors[2 * i], state.tensors[2 * i + 1], bias);
    state.length += added;
    return torch::log_softmax(decoder_(after_norm_(x.select(1, added - 1))), -1, torch::kFloat32);
  }

 private:
  LmSettings settings_;
  Embedding embed_{nullptr};
  Linear input_{nullptr}, decoder_{nullptr};
  LayerNorm input_norm_{nullptr}, after_norm_{nullptr};
  std::vector<LmBlock> blocks_;
  PositionTable positions_;
};

class RnnLm final : public LanguageModelImpl {
 public:
  RnnLm(Build build, const LmSettings& s) : settings_(s) {
    const auto vocab = static_cast<std::int64_t>(s.token_list.size());
    const std::int64_t gates = s.rnn_type == "lstm" ? 4 : s.rnn_type == "gru" ? 3 : 1;
    auto lm = register_module("lm", std::make_shared<torch::nn::Module>());
    encoder_ = lm->register_module("encoder", Embedding(build, vocab, s.unit, /*padding_id=*/0));
    rnn_ = lm->register_module("rnn", std::make_shared<torch::nn::Module>());
    for (std::int64_t i = 0; i < s.nlayers; ++i) {
      const auto add = [&](const char* name, at::IntArrayRef shape) {
        rnn_->register_parameter(name + std::to_string(i), build.tensor(shape).zero_());
      };
      add("weight_ih_l", {gates * s.nhid, i == 0 ? s.unit : s.nhid});
      add("weight_hh_l", {gates * s.nhid, s.nhid});
      add("bias_ih_l", {gates * s.nhid});
      add("bias_hh_l", {gates * s.nhid});
    }
    decoder_ = lm->register_module("decoder", Linear(build, s.nhid, vocab));
  }

  // state.tensors: h and, of an LSTM, c; (N, layers, D) each.
  torch::Tensor step(const torch::Tensor& tokens, LmState& state) override {
    const torch::NoGradGuard no_grad;
    // ESPnet gives it the last token of a prompt only.
    const torch::Tensor ids = as_rows(tokens);
    const torch::Tensor x = encoder_(ids.narrow(1, ids.size(1) - 1, 1));
    const bool is_lstm = settings_.rnn_type == "lstm";
    if (state.tensors.empty())
      state.tensors.assign(is_lstm ? 2 : 1,
                           torch::zeros({ids.size(0), settings_.nlayers, settings_.nhid},
                                        encoder_->weight.options()));
    // By number of layer, each with its four tensors in torch's order.
    const std::vector<torch::Tensor> weights = rnn_->parameters();
    const auto layers_first = [](const torch::Tensor& t) { return t.transpose(0, 1).contiguous(); };
    torch::Tensor out, h, c;
    if (is_lstm) {
      std::tie(out, h, c) =
          torch::lstm(x, {layers_first(state.tensors[0]), layers_first(state.tensors[1])}, weights,
                      true, settings_.nlayers, 0.0, false, false, /*batch_first=*/true);
      state.tensors[1] = c.transpose(0, 1);
    } else {
      const torch::Tensor before = layers_first(state.tensors[0]);
      const std::int64_t layers = settings_.nlayers;
      if (settings_.rnn_type == "gru")
        std::tie(out, h) = torch::gru(x, before, weights, true, layers, 0.0, false, false, true);
      else if (settings_.rnn_type == "rnn_relu")
        std::tie(out, h) =
            torch::rnn_relu(x, before, weights, true, layers, 0.0, false, false, true);
      else
        std::tie(out, h) =
            torch::rnn_tanh(x, before, weights, true, layers, 0.0, false, false, true);
    }
    state.tensors[0] = h.transpose(0, 1);
    return torch::log_softmax(decoder_(out.select(1, 0)), -1, torch::kFloat32);
  }

 private:
  LmSettings settings_;
  Embedding encoder_{nullptr};
  std::shared_ptr<torch::nn::Module> rnn_;
  Linear decoder_{nullptr};
};

}  // namespace

LanguageModel make_language_model(Build build, const LmSettings& settings) {
  if (settings.kind == "transformer") return std::make_shared<TransformerLm>(build, settings);
  return std::make_shared<RnnLm>(build, settings);
}

}  // namespace tutti::speech
