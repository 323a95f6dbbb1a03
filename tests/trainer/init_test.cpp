// Weights begin as ESPnet's names say.
#include "tutti/trainer/init.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "tests/trainer/toy.h"
#include "tutti/core/error.h"

namespace tutti::trainer {
namespace {

struct LayersImpl : torch::nn::Module {
  LayersImpl()
      : linear(register_module("linear", torch::nn::Linear(300, 200))),
        conv(register_module(
            "conv", torch::nn::Conv1d(torch::nn::Conv1dOptions(40, 60, /*kernel_size=*/5)))),
        embedding(register_module(
            "embedding",
            torch::nn::Embedding(torch::nn::EmbeddingOptions(500, 20).padding_idx(0)))),
        norm(register_module("norm", torch::nn::LayerNorm(std::vector<std::int64_t>{20}))),
        lstm(register_module("lstm", torch::nn::LSTM(8, 16))) {}
  torch::nn::Linear linear;
  torch::nn::Conv1d conv;
  torch::nn::Embedding embedding;
  torch::nn::LayerNorm norm;
  torch::nn::LSTM lstm;
};

double deviation(const at::Tensor& t) { return t.detach().std().item<double>(); }
double largest(const at::Tensor& t) { return t.detach().abs().max().item<double>(); }

LayersImpl initialised(const std::string& method) {
  torch::manual_seed(5);
  LayersImpl layers;
  torch::NoGradGuard no_grad;
  layers.norm->weight.fill_(7);
  layers.norm->bias.fill_(7);
  initialize(static_cast<torch::nn::Module&>(layers), method);
  return layers;
}

TEST(Init, XavierAndKaimingSpreadMatricesAndClearBiases) {
  const std::pair<const char*, double> methods[] = {{"xavier_uniform", std::sqrt(2.0 / 500)},
                                                    {"xavier_normal", std::sqrt(2.0 / 500)},
                                                    {"kaiming_uniform", std::sqrt(2.0 / 300)},
                                                    {"kaiming_normal", std::sqrt(2.0 / 300)},
                                                    {"normal", 0.02}};
  for (const auto& [method, expected] : methods) {
    const LayersImpl layers = initialised(method);
    EXPECT_NEAR(deviation(layers.linear->weight) / expected, 1, 0.02) << method;
    EXPECT_EQ(largest(layers.linear->bias), 0) << method;
    EXPECT_EQ(largest(layers.conv->bias), 0) << method;
    EXPECT_EQ(largest(layers.norm->weight - 1), 0) << method;
    EXPECT_EQ(largest(layers.norm->bias), 0) << method;
    EXPECT_NEAR(deviation(layers.embedding->weight), 1, 0.05) << method;
    EXPECT_EQ(largest(layers.embedding->weight[0]), 0) << method;
  }
  EXPECT_LE(largest(initialised("xavier_uniform").linear->weight), std::sqrt(6.0 / 500));
}

TEST(Init, ChainerScalesByFanInAndOpensForgetGates) {
  const LayersImpl layers = initialised("chainer");
  EXPECT_NEAR(deviation(layers.linear->weight) * std::sqrt(300.0), 1, 0.02);
  EXPECT_NEAR(deviation(layers.conv->weight) * std::sqrt(40.0 * 5), 1, 0.03);
  EXPECT_EQ(largest(layers.norm->weight - 1), 0);
  const at::Tensor bias = layers.lstm->named_parameters()["bias_ih_l0"];
  EXPECT_EQ(bias.narrow(0, 16, 16).min().item<double>(), 1);
  EXPECT_EQ(bias.sum().item<double>(), 16);
}

TEST(Init, UnknownNamesAndFinishedModelsAreErrors) {
  LayersImpl layers;
  try {
    initialize(static_cast<torch::nn::Module&>(layers), "xavier_unifrom");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("did you mean xavier_uniform?"));
  }
  class Finished final : public TrainableModel {
    StepOutput training_step(const Batch&) override { return {}; }
    NamedTensors named_parameters() override { return {}; }
    NamedTensors named_buffers() override { return {}; }
    void set_training(bool) override {}
    void to(at::Device, std::optional<at::ScalarType>) override {}
  } finished;
  EXPECT_THROW(initialize(finished, "chainer"), ConfigError);
  initialize(finished, "");
}

}  // namespace
}  // namespace tutti::trainer
