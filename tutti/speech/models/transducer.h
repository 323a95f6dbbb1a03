// Prediction networks and the joint network of a transducer (RNN-T).
//
//   auto state = predictor->initial_state(batch);
//   auto [out_ND, next] = predictor->step(tokens_N, state);          // search
//   auto logits = joint->forward(encoded_frame_ND, out_ND);          // (N, V)
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tutti/speech/models/lengths.h"
#include "tutti/speech/models/modules.h"

namespace tutti::speech {

// Of N hypotheses; rows may be picked with index_select. Undefined tensors for the stateless kind.
struct PredictorState {
  torch::Tensor h_LND, c_LND;
  PredictorState index_select(const torch::Tensor& rows) const;
};

class PredictorImpl : public torch::nn::Module {
 public:
  PredictorImpl(Build build, const PredictorSettings& settings);
  // Outputs for sequences that begin with blank: tokens (B, U+1) -> (B, U+1, D).
  torch::Tensor forward(const torch::Tensor& tokens_BU);
  PredictorState initial_state(std::int64_t count) const;
  // One token of each of N hypotheses -> (N, D) and the state after it.
  std::pair<torch::Tensor, PredictorState> step(const torch::Tensor& tokens_N,
                                                const PredictorState& state);
  std::int64_t size() const { return settings_.hidden_size; }

 private:
  torch::Tensor run(torch::Tensor x_BUD, PredictorState& state);

  PredictorSettings settings_;
  Embedding embedding_{nullptr};
  struct RecurrentLayer {
    torch::Tensor weight_ih, weight_hh, bias_ih, bias_hh;
  };
  std::vector<RecurrentLayer> layers_;
};
TORCH_MODULE(Predictor);

class JointNetworkImpl : public torch::nn::Module {
 public:
  JointNetworkImpl(Build build, std::int64_t vocab_size, std::int64_t encoder_size,
                   std::int64_t predictor_size, JointSettings settings);
  // Broadcasts: (B, T, 1, De) with (B, 1, U, Dp) gives (B, T, U, V).
  torch::Tensor forward(const torch::Tensor& encoded, const torch::Tensor& predicted);
  // In parts, so that a search projects an encoder frame once for all hypotheses.
  torch::Tensor project_encoded(const torch::Tensor& encoded);
  torch::Tensor project_predicted(const torch::Tensor& predicted);
  torch::Tensor combine(const torch::Tensor& encoded_J, const torch::Tensor& predicted_J);

  // What the fused loss applies itself, node by node.
  const Linear& output_layer() const { return lin_out_; }
  Activation activation() const { return settings_.activation; }

 private:
  Linear lin_enc_{nullptr}, lin_dec_{nullptr}, lin_out_{nullptr};
  JointSettings settings_;
};
TORCH_MODULE(JointNetwork);

}  // namespace tutti::speech
