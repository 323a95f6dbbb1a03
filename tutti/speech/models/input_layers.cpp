#include <torch/torch.h>

#include <map>
#include <memory>

#include "tutti/core/error.h"
#include "tutti/core/text.h"
#include "tutti/speech/models/encoder_blocks.h"
#include "tutti/speech/ops/cpu/first_conv.h"
#include "tutti/speech/ops/gpu/input_conv.h"

namespace tutti::speech {

namespace {

struct Stage {
  int kernel = 3;
  int stride = 1;
};
struct Plan {
  bool two_dimensional = true;
  std::vector<Stage> stages;
};

const std::map<std::string, Plan>& plans() {
  static const std::map<std::string, Plan> kPlans = {
      {"conv1d1", {false, {{3, 1}, {3, 1}}}}, {"conv1d2", {false, {{3, 1}, {3, 2}}}},
      {"conv1d3", {false, {{3, 1}, {5, 3}}}}, {"conv2d", {true, {{3, 2}, {3, 2}}}},
      {"conv2d1", {true, {{3, 1}, {3, 1}}}},  {"conv2d2", {true, {{3, 2}, {3, 1}}}},
      {"conv2d6", {true, {{3, 2}, {5, 3}}}},  {"conv2d8", {true, {{3, 2}, {3, 2}, {3, 2}}}},
  };
  return kPlans;
}

std::int64_t after_stages(const std::vector<Stage>& stages, std::int64_t length) {
  for (const Stage& stage : stages) length = conv_length(length, stage.kernel, stage.stride);
  return length;
}

// embed.conv.{0,2,4}, embed.out: convolutions without padding, so a frame of the output never sees
// past the frames it is made of, and true lengths are all it takes to ignore padding.
class ConvInput final : public InputLayer {
 public:
  ConvInput(Build build, const EncoderSettings& settings, const Plan& plan) : plan_(plan) {
    auto convolutions = register_module("conv", std::make_shared<torch::nn::Module>());
    const std::int64_t size = settings.output_size;
    std::int64_t in = plan.two_dimensional ? 1 : settings.input_size;
    for (std::size_t i = 0; i < plan.stages.size(); ++i) {
      const ConvShape shape{
          .in = in, .out = size, .kernel = plan.stages[i].kernel, .stride = plan.stages[i].stride};
      const std::string name = std::to_string(2 * i);  // a ReLU sits between two convolutions
      if (plan.two_dimensional)
        conv2d_.push_back(convolutions->register_module(name, Conv2d(build, shape)));
      else
        conv1d_.push_back(convolutions->register_module(name, Conv1d(build, shape)));
      in = size;
    }
    const std::int64_t bins =
        plan.two_dimensional ? after_stages(plan.stages, settings.input_size) : 1;
    if (bins < 1)
      throw ConfigError("encoder_conf.input_layer: " + settings.input_layer +
                        " leaves nothing of " + std::to_string(settings.input_size) + " features");
    out_ = register_module("out", Linear(build, size * bins, size));
  }

  torch::Tensor forward(const torch::Tensor& features_BTF, const Lengths&) override {
    if (!plan_.two_dimensional) {
      torch::Tensor x = features_BTF.transpose(1, 2);
      for (auto& conv : conv1d_) x = torch::relu(conv(x));
      return out_(x.transpose(1, 2));
    }
    // Channels stay innermost all the way: the convolutions like that best, on CPUs and GPUs.
    const bool on_gpu =
        has_cuda_input(features_BTF, conv2d_[0]->weight, conv2d_[0]->shape().stride);
    const auto conv = [this](std::size_t i) -> InputConv {
      return {conv2d_[i]->weight, conv2d_[i]->bias, conv2d_[i]->shape().stride};
    };
    torch::Tensor x_BCTF = on_gpu ? cuda_first_convs_relu(features_BTF, conv(0), conv(1))
                                  : first_convolution(features_BTF);
    for (std::size_t i = on_gpu ? 2 : 1; i < conv2d_.size(); ++i)
      x_BCTF = on_gpu ? cuda_conv_relu(x_BCTF, conv(i)) : conv2d_[i](x_BCTF).relu_();
    // The projection has its inputs in the order (channel, bin): its weight is put into the order
    // of the activations, which are a hundred times as large.
    const std::int64_t size = out_->weight.size(0);
    const torch::Tensor weight = out_->weight.view({size, x_BCTF.size(1), x_BCTF.size(3)})
                                     .transpose(1, 2)
                                     .reshape({size, -1});
    return torch::linear(x_BCTF.permute({0, 2, 3, 1}).flatten(2), weight, out_->bias);
  }

  torch::Tensor first_convolution(const torch::Tensor& features_BTF) {
    Conv2d& conv = conv2d_[0];
    if (has_first_conv(features_BTF, conv->weight))
      return first_conv_relu(features_BTF, conv->weight, conv->bias, conv->shape().stride);
    return torch::relu(conv(features_BTF.unsqueeze(1)));
  }

  std::int64_t output_length(std::int64_t length) const override {
    return after_stages(plan_.stages, length);
  }

  std::int64_t min_input_length() const override {
    std::int64_t length = 1;
    while (output_length(length) < 1) ++length;
    return length;
  }

 private:
  Plan plan_;
  std::vector<Conv1d> conv1d_;
  std::vector<Conv2d> conv2d_;
  Linear out_{nullptr};
};

// embed.0 and embed.1: a projection and a LayerNorm with torch's eps, no subsampling.
class LinearInput final : public InputLayer {
 public:
  LinearInput(Build build, const EncoderSettings& settings)
      : dropout_rate_(settings.dropout_rate),
        with_relu_(settings.kind == EncoderKind::kTransformer) {
    linear_ = register_module("0", Linear(build, settings.input_size, settings.output_size));
    norm_ = register_module("1", LayerNorm(build, settings.output_size, 1e-5));
  }
  torch::Tensor forward(const torch::Tensor& features_BTF, const Lengths&) override {
    const torch::Tensor x =
        apply_dropout(norm_(linear_(features_BTF)), dropout_rate_, is_training());
    return with_relu_ ? torch::relu(x) : x;
  }
  std::int64_t output_length(std::int64_t length) const override { return length; }
  std::int64_t min_input_length() const override { return 1; }

 private:
  Linear linear_{nullptr};
  LayerNorm norm_{nullptr};
  double dropout_rate_ = 0;
  bool with_relu_ = false;
};

}  // namespace

std::shared_ptr<InputLayer> make_input_layer(Build build, const EncoderSettings& settings) {
  if (settings.input_layer == "linear") return std::make_shared<LinearInput>(build, settings);
  const auto found = plans().find(settings.input_layer);
  if (found != plans().end()) return std::make_shared<ConvInput>(build, settings, found->second);
  std::vector<std::string> known = {"linear"};
  for (const auto& [name, plan] : plans()) known.push_back(name);
  throw ConfigError("encoder_conf.input_layer: got '" + settings.input_layer +
                    "', expected one of " + join(known, ", "));
}

}  // namespace tutti::speech
