// Models for tests on a GPU, and what they give there and on the CPU.
#pragma once

#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <string>

#include "tutti/config/load.h"
#include "tutti/speech/models/asr_model.h"
#include "tutti/speech/models/model_config.h"

namespace tutti::speech {

// Skips where there is no GPU; products and convolutions are of full precision.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
    at::globalContext().setAllowTF32CuDNN(false);
    at::globalContext().setAllowTF32CuBLAS(false);
  }
};

// On the CPU, the same weights every time.
inline AsrModel model_from(const std::string& yaml) {
  config::Problems problems;
  const AsrSettings settings =
      read_asr_model_block(config::parse_yaml(yaml, "model.yaml"), false, problems);
  EXPECT_EQ(problems.describe(), "");
  torch::manual_seed(4);
  return AsrModel(Build{}, settings);
}

using Gradients = std::map<std::string, torch::Tensor>;

// Of one padded batch, under the parameters' names; the loss as "loss". Random numbers are the same
// every time.
inline Gradients loss_and_gradients(AsrModel model, torch::Device device) {
  model->to(device);
  torch::manual_seed(9);
  AsrBatch batch;
  batch.speech = (torch::randn({3, 30000}) * 0.1).to(device);
  batch.speech_lengths = {30000, 24001, 17000};
  batch.text =
      torch::tensor({{1, 2, 3, 7}, {4, 5, 8, -1}, {6, 6, -1, -1}}, torch::kInt64).to(device);
  batch.text_lengths = {4, 3, 2};
  const torch::Tensor loss = model->forward(batch).loss;
  loss.backward();
  Gradients result{{"loss", loss.detach().cpu()}};
  for (const auto& item : model->named_parameters()) result[item.key()] = item.value().grad().cpu();
  return result;
}

// The largest difference of a gradient, as a part of the largest gradient.
inline double distance(const Gradients& got, const Gradients& expected) {
  double largest = 0, difference = 0;
  for (const auto& [name, gradient] : expected) {
    if (name == "loss") continue;
    largest = std::max(largest, gradient.abs().max().item<double>());
    difference = std::max(difference, (got.at(name) - gradient).abs().max().item<double>());
  }
  return difference / largest;
}

}  // namespace tutti::speech
