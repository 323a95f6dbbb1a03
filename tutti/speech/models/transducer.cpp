#include "tutti/speech/models/transducer.h"

#include <torch/torch.h>

#include <cmath>

#include "tutti/core/error.h"

namespace tutti::speech {

PredictorState PredictorState::index_select(const torch::Tensor& rows) const {
  PredictorState picked;
  if (h_LND.defined()) picked.h_LND = h_LND.index_select(1, rows);
  if (c_LND.defined()) picked.c_LND = c_LND.index_select(1, rows);
  return picked;
}

PredictorImpl::PredictorImpl(Build build, const PredictorSettings& settings) : settings_(settings) {
  const std::int64_t size = settings.hidden_size;
  const std::int64_t embed_size = settings.embed_size > 0 ? settings.embed_size : size;
  embedding_ = register_module(
      "embed", Embedding(build, settings.vocab_size, embed_size, settings.blank_id));
  if (settings.kind == "stateless") return;
  if (settings.kind != "lstm" && settings.kind != "gru")
    throw ConfigError("decoder_conf.rnn_type: got '" + settings.kind + "', expected lstm or gru");
  const std::int64_t gates = settings.kind == "lstm" ? 4 : 3;
  auto list = register_module("decoder", std::make_shared<torch::nn::Module>());
  for (std::int64_t i = 0; i < settings.num_layers; ++i) {
    auto layer = list->register_module(std::to_string(i), std::make_shared<torch::nn::Module>());
    RecurrentLayer weights;
    weights.weight_ih = layer->register_parameter(
        "weight_ih_l0", build.tensor({gates * size, i == 0 ? embed_size : size}));
    weights.weight_hh =
        layer->register_parameter("weight_hh_l0", build.tensor({gates * size, size}));
    weights.bias_ih = layer->register_parameter("bias_ih_l0", build.tensor({gates * size}));
    weights.bias_hh = layer->register_parameter("bias_hh_l0", build.tensor({gates * size}));
    if (build.initialise && !build.device.is_meta()) {
      torch::NoGradGuard no_grad;
      const double bound = 1.0 / std::sqrt(static_cast<double>(size));
      for (auto& tensor : layer->parameters(false)) tensor.uniform_(-bound, bound);
    }
    layers_.push_back(weights);
  }
}

PredictorState PredictorImpl::initial_state(std::int64_t count) const {
  if (layers_.empty()) return {};
  PredictorState state;
  state.h_LND = torch::zeros({settings_.num_layers, count, settings_.hidden_size},
                             embedding_->weight.options());
  if (settings_.kind == "lstm") state.c_LND = torch::zeros_like(state.h_LND);
  return state;
}

torch::Tensor PredictorImpl::run(torch::Tensor x, PredictorState& state) {
  std::vector<torch::Tensor> h_next, c_next;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto& layer = layers_[i];
    const std::vector<torch::Tensor> weights = {layer.weight_ih, layer.weight_hh, layer.bias_ih,
                                                layer.bias_hh};
    const torch::Tensor h = state.h_LND.narrow(0, i, 1);
    if (settings_.kind == "lstm") {
      const auto [out, h_out, c_out] =
          torch::lstm(x, {h, state.c_LND.narrow(0, i, 1)}, weights, /*has_biases=*/true, 1, 0.0,
                      is_training(), /*bidirectional=*/false, /*batch_first=*/true);
      x = out;
      h_next.push_back(h_out);
      c_next.push_back(c_out);
    } else {
      const auto [out, h_out] = torch::gru(x, h, weights, true, 1, 0.0, is_training(), false, true);
      x = out;
      h_next.push_back(h_out);
    }
    x = apply_dropout(x, settings_.dropout, is_training());
  }
  if (!h_next.empty()) state.h_LND = torch::cat(h_next);
  if (!c_next.empty()) state.c_LND = torch::cat(c_next);
  return x;
}

torch::Tensor PredictorImpl::forward(const torch::Tensor& tokens_BU) {
  PredictorState state = initial_state(tokens_BU.size(0));
  return run(apply_dropout(embedding_(tokens_BU), settings_.dropout_embed, is_training()), state);
}

std::pair<torch::Tensor, PredictorState> PredictorImpl::step(const torch::Tensor& tokens_N,
                                                             const PredictorState& state) {
  PredictorState next = state;
  const torch::Tensor out = run(embedding_(tokens_N.unsqueeze(1)), next);
  return {out.squeeze(1), next};
}

JointNetworkImpl::JointNetworkImpl(Build build, std::int64_t vocab_size, std::int64_t encoder_size,
                                   std::int64_t predictor_size, JointSettings settings)
    : settings_(settings) {
  lin_enc_ = register_module("lin_enc", Linear(build, encoder_size, settings.joint_space_size));
  lin_dec_ = register_module(
      "lin_dec", Linear(build, predictor_size, settings.joint_space_size, settings.predictor_bias));
  lin_out_ = register_module("lin_out", Linear(build, settings.joint_space_size, vocab_size));
}

torch::Tensor JointNetworkImpl::project_encoded(const torch::Tensor& encoded) {
  return lin_enc_(encoded);
}
torch::Tensor JointNetworkImpl::project_predicted(const torch::Tensor& predicted) {
  return lin_dec_(predicted);
}
torch::Tensor JointNetworkImpl::combine(const torch::Tensor& encoded_J,
                                        const torch::Tensor& predicted_J) {
  return lin_out_(activate(encoded_J + predicted_J, settings_.activation));
}
torch::Tensor JointNetworkImpl::forward(const torch::Tensor& encoded,
                                        const torch::Tensor& predicted) {
  return combine(project_encoded(encoded), project_predicted(predicted));
}

}  // namespace tutti::speech
