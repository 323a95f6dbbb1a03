#include "tutti/speech/losses/transducer_loss.h"

#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/speech/losses/transducer_lattice.h"

namespace tutti::speech {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check_lengths(std::int64_t frames_room, std::int64_t tokens_room, const Lengths& frames,
                   const Lengths& tokens) {
  for (std::size_t b = 0; b < frames.size(); ++b)
    if (frames[b] < 1 || frames[b] > frames_room || tokens[b] < 0 || tokens[b] > tokens_room)
      throw DataError("transducer loss: utterance " + std::to_string(b) + " of the batch has " +
                      std::to_string(frames[b]) + " frames and " + std::to_string(tokens[b]) +
                      " tokens, expected 1.." + std::to_string(frames_room) + " and 0.." +
                      std::to_string(tokens_room));
}

class LatticeLoss : public torch::autograd::Function<LatticeLoss> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& blank,
                               const torch::Tensor& token, const Lengths& frames,
                               const Lengths& tokens) {
    const LatticeFlows flows = lattice_flows(blank, token, frames, tokens);
    context->save_for_backward({flows.blank_flow, flows.token_flow});
    return flows.loss_B;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const torch::Tensor scale = gradients[0].view({-1, 1, 1});
    return {-saved[0] * scale, -saved[1] * scale, torch::Tensor(), torch::Tensor()};
  }
};

// Every real node of the batch's lattices, one after the other.
struct Nodes {
  torch::Tensor frame;   // row in encoded (B*T)
  torch::Tensor prefix;  // row in predicted (B*(U+1)), and of a node's text token
  torch::Tensor place;   // row in a (B, T, U+1) grid
};

Nodes list_nodes(const Lengths& frames, const Lengths& tokens, std::int64_t T, std::int64_t width,
                 torch::Device device) {
  std::vector<std::int64_t> frame, prefix, place;
  for (std::int64_t b = 0; b < static_cast<std::int64_t>(frames.size()); ++b) {
    for (std::int64_t t = 0; t < frames[b]; ++t) {
      for (std::int64_t u = 0; u <= tokens[b]; ++u) {
        frame.push_back(b * T + t);
        prefix.push_back(b * width + u);
        place.push_back((b * T + t) * width + u);
      }
    }
  }
  return {to_device(frame, device), to_device(prefix, device), to_device(place, device)};
}

// The derivative of an activation from its output; those a joint network uses have one.
torch::Tensor activation_slope(const torch::Tensor& output, Activation activation) {
  switch (activation) {
    case Activation::kTanh:
      return 1 - output * output;
    case Activation::kRelu:
      return (output > 0).to(output.scalar_type());
    case Activation::kIdentity:
      return torch::ones_like(output);
    default:
      break;
  }
  throw ConfigError("joint_net_conf.joint_activation_type: expected tanh, relu or identity");
}

struct Slice {
  torch::Tensor hidden_MJ;
  torch::Tensor log_probs_MV;
};

class FusedLoss : public torch::autograd::Function<FusedLoss> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& encoded_BTJ,
                               const torch::Tensor& predicted_BUJ, const torch::Tensor& weight_VJ,
                               const torch::Tensor& bias_V, const torch::Tensor& texts_BU,
                               const Lengths& frames, const Lengths& tokens, std::int64_t blank,
                               std::int64_t activation, std::int64_t slice_elements) {
    const std::int64_t T = encoded_BTJ.size(1), width = predicted_BUJ.size(1);
    const Nodes nodes = list_nodes(frames, tokens, T, width, encoded_BTJ.device());
    // The token a node may emit; the last node of a column may emit none, its number is not used.
    const torch::Tensor next_token =
        torch::constant_pad_nd(texts_BU.clamp_min(0), {0, width - texts_BU.size(1)}, 0).flatten();
    const std::int64_t rows = std::max<std::int64_t>(1, slice_elements / weight_VJ.size(0));
    const auto lattice_options = torch::TensorOptions(torch::kFloat32).device(encoded_BTJ.device());
    torch::Tensor blank_grid = torch::zeros({encoded_BTJ.size(0) * T * width}, lattice_options);
    torch::Tensor token_grid = torch::zeros_like(blank_grid);
    const std::int64_t count = nodes.place.size(0);
    const torch::Tensor encoded = encoded_BTJ.reshape({-1, encoded_BTJ.size(2)});
    const torch::Tensor predicted = predicted_BUJ.reshape({-1, predicted_BUJ.size(2)});
    for (std::int64_t first = 0; first < count; first += rows) {
      const std::int64_t n = std::min(rows, count - first);
      const Slice slice =
          make_slice(encoded, predicted, weight_VJ, bias_V, nodes, first, n, activation);
      const auto place = nodes.place.narrow(0, first, n);
      const auto token = next_token.index_select(0, nodes.prefix.narrow(0, first, n));
      blank_grid.index_copy_(0, place, slice.log_probs_MV.select(1, blank));
      token_grid.index_copy_(0, place, slice.log_probs_MV.gather(1, token.unsqueeze(1)).squeeze(1));
    }
    const LatticeFlows flows = lattice_flows(
        blank_grid.view({encoded_BTJ.size(0), T, width}),
        token_grid.view({encoded_BTJ.size(0), T, width}).narrow(2, 0, width - 1), frames, tokens);
    const auto token_flow = torch::constant_pad_nd(flows.token_flow, {0, 1});
    context->save_for_backward({encoded_BTJ, predicted_BUJ, weight_VJ, bias_V, next_token,
                                nodes.frame, nodes.prefix,
                                flows.blank_flow.flatten().index_select(0, nodes.place),
                                token_flow.flatten().index_select(0, nodes.place)});
    context->saved_data["blank"] = blank;
    context->saved_data["activation"] = activation;
    context->saved_data["rows"] = rows;
    return flows.loss_B;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const torch::Tensor &encoded_BTJ = saved[0], &predicted_BUJ = saved[1], &weight = saved[2],
                        &bias = saved[3];
    const Nodes nodes{saved[5], saved[6], {}};
    const std::int64_t blank = context->saved_data["blank"].toInt();
    const std::int64_t activation = context->saved_data["activation"].toInt();
    const std::int64_t rows = context->saved_data["rows"].toInt();
    const torch::Tensor encoded = encoded_BTJ.reshape({-1, encoded_BTJ.size(2)});
    const torch::Tensor predicted = predicted_BUJ.reshape({-1, predicted_BUJ.size(2)});
    torch::Tensor grad_encoded = torch::zeros_like(encoded),
                  grad_predicted = torch::zeros_like(predicted);
    torch::Tensor grad_weight = torch::zeros_like(weight), grad_bias = torch::zeros_like(bias);
    // A node's part of the batch's gradient: that of its utterance.
    const torch::Tensor scale =
        gradients[0].repeat_interleave(encoded_BTJ.size(1)).index_select(0, nodes.frame);
    const torch::Tensor blank_flow = saved[7] * scale, token_flow = saved[8] * scale;
    const std::int64_t count = nodes.frame.size(0);
    for (std::int64_t first = 0; first < count; first += rows) {
      const std::int64_t n = std::min(rows, count - first);
      const Slice slice = make_slice(encoded, predicted, weight, bias, nodes, first, n, activation);
      const auto frame = nodes.frame.narrow(0, first, n), prefix = nodes.prefix.narrow(0, first, n);
      const auto b = blank_flow.narrow(0, first, n), k = token_flow.narrow(0, first, n);
      const auto token = saved[4].index_select(0, prefix).unsqueeze(1);
      // softmax x what flows through the node, minus what flows through each arc.
      torch::Tensor grad_logits = slice.log_probs_MV.exp().mul_((b + k).unsqueeze(1));
      grad_logits.select(1, blank).sub_(b);
      grad_logits.scatter_add_(1, token, -k.unsqueeze(1));
      grad_logits = grad_logits.to(weight.scalar_type());
      grad_bias += grad_logits.sum(0);
      grad_weight += grad_logits.t().mm(slice.hidden_MJ.to(weight.scalar_type()));
      const torch::Tensor grad_hidden =
          grad_logits.to(slice.hidden_MJ.scalar_type())
              .mm(weight.to(slice.hidden_MJ.scalar_type())) *
          activation_slope(slice.hidden_MJ, static_cast<Activation>(activation));
      grad_encoded.index_add_(0, frame, grad_hidden);
      grad_predicted.index_add_(0, prefix, grad_hidden);
    }
    variable_list result(10);
    result[0] = grad_encoded.view(encoded_BTJ.sizes());
    result[1] = grad_predicted.view(predicted_BUJ.sizes());
    result[2] = grad_weight;
    result[3] = grad_bias;
    return result;
  }

 private:
  static Slice make_slice(const torch::Tensor& encoded, const torch::Tensor& predicted,
                          const torch::Tensor& weight, const torch::Tensor& bias,
                          const Nodes& nodes, std::int64_t first, std::int64_t count,
                          std::int64_t activation) {
    Slice slice;
    slice.hidden_MJ = activate(encoded.index_select(0, nodes.frame.narrow(0, first, count)) +
                                   predicted.index_select(0, nodes.prefix.narrow(0, first, count)),
                               static_cast<Activation>(activation));
    const auto type = slice.hidden_MJ.scalar_type();
    slice.log_probs_MV = torch::log_softmax(
        torch::linear(slice.hidden_MJ, weight.to(type), bias.to(type)), -1, torch::kFloat32);
    return slice;
  }
};

}  // namespace

torch::Tensor transducer_lattice_loss(const torch::Tensor& blank_BTU,
                                      const torch::Tensor& token_BTU, const Lengths& frames,
                                      const Lengths& tokens) {
  check_lengths(blank_BTU.size(1), token_BTU.size(2), frames, tokens);
  return LatticeLoss::apply(blank_BTU, token_BTU, frames, tokens);
}

torch::Tensor transducer_loss(const torch::Tensor& logits_BTUV, const torch::Tensor& texts_BU,
                              const Lengths& frames, const Lengths& tokens, std::int64_t blank) {
  const torch::Tensor log_probs = torch::log_softmax(logits_BTUV, -1);
  const std::int64_t width = logits_BTUV.size(2);
  const torch::Tensor index = texts_BU.clamp_min(0)
                                  .view({texts_BU.size(0), 1, width - 1, 1})
                                  .expand({logits_BTUV.size(0), logits_BTUV.size(1), width - 1, 1});
  return transducer_lattice_loss(log_probs.select(3, blank),
                                 log_probs.narrow(2, 0, width - 1).gather(3, index).squeeze(3),
                                 frames, tokens);
}

torch::Tensor fused_transducer_loss(const torch::Tensor& encoded_BTJ,
                                    const torch::Tensor& predicted_BUJ, const JointOutput& joint,
                                    const torch::Tensor& texts_BU, const Lengths& frames,
                                    const Lengths& tokens, std::int64_t blank,
                                    std::int64_t slice_elements) {
  check_lengths(encoded_BTJ.size(1), predicted_BUJ.size(1) - 1, frames, tokens);
  // Forward and backward must round alike, and a backward pass does not see the autocast of now.
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return FusedLoss::apply(encoded_BTJ, predicted_BUJ, joint.weight_VJ, joint.bias_V, texts_BU,
                          frames, tokens, blank, static_cast<std::int64_t>(joint.activation),
                          slice_elements);
}

}  // namespace tutti::speech
