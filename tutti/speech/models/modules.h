// The small layers everything is built from, under the names torch gives their parameters.
//
// Not torch::nn's own: these can be built without memory (`Build{.device = torch::kMeta}`, to count
// parameters or to name them) or without initial values (when a checkpoint follows), LayerNorm has
// ESPnet's eps and keeps its arithmetic in the precision of its weights under autocast, and a
// translation unit that uses them compiles in a third of the time.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cstdint>
#include <string>

#include "tutti/speech/models/asr_settings.h"

namespace tutti::speech {

// How modules come to life. Passed by value to every constructor.
struct Build {
  torch::Device device = torch::kCPU;  // torch::kMeta: shapes only
  bool initialise = true;              // false: memory is left as it is; load a state dict next
  torch::Tensor tensor(at::IntArrayRef shape) const;
};

class LinearImpl : public torch::nn::Module {
 public:
  LinearImpl(Build build, std::int64_t in, std::int64_t out, bool with_bias = true);
  torch::Tensor forward(const torch::Tensor& x);
  torch::Tensor weight;  // (out, in)
  torch::Tensor bias;    // (out) or undefined
};
TORCH_MODULE(Linear);

class LayerNormImpl : public torch::nn::Module {
 public:
  LayerNormImpl(Build build, std::int64_t size, double eps = 1e-12);
  torch::Tensor forward(const torch::Tensor& x);
  double eps() const { return eps_; }
  torch::Tensor weight, bias;

 private:
  double eps_ = 1e-12;
};
TORCH_MODULE(LayerNorm);

// Weights of a convolution; `forward` is here for the plain case, users of the weights may do
// better.
struct ConvShape {
  std::int64_t in = 1, out = 1;
  int kernel = 1, stride = 1, padding = 0;
  std::int64_t groups = 1;
  bool causal = false;  // of one filter per channel: see taps()
};

class Conv1dImpl : public torch::nn::Module {
 public:
  Conv1dImpl(Build build, ConvShape shape);
  torch::Tensor forward(const torch::Tensor& x_BCT);
  // The weight for depthwise_conv. A causal filter is the left half of one twice as wide, whose
  // right half is 0: it looks back only, and all kernels serve it.
  torch::Tensor taps() const;
  const ConvShape& shape() const { return shape_; }
  torch::Tensor weight, bias;

 private:
  ConvShape shape_;
};
TORCH_MODULE(Conv1d);

class Conv2dImpl : public torch::nn::Module {
 public:
  Conv2dImpl(Build build, ConvShape shape);
  torch::Tensor forward(const torch::Tensor& x_BCTF);
  const ConvShape& shape() const { return shape_; }
  torch::Tensor weight, bias;

 private:
  ConvShape shape_;
};
TORCH_MODULE(Conv2d);

class EmbeddingImpl : public torch::nn::Module {
 public:
  // `padding_id` >= 0: that row starts as zero and gets no gradient, as in torch.
  EmbeddingImpl(Build build, std::int64_t count, std::int64_t size, std::int64_t padding_id = -1);
  torch::Tensor forward(const torch::Tensor& ids);
  torch::Tensor weight;
  std::int64_t padding_id() const { return padding_id_; }

 private:
  std::int64_t padding_id_ = -1;
};
TORCH_MODULE(Embedding);

// A convolution over time with one filter per channel, "same" padding: the heart of a Conformer.
// x is (B, T, C), so no transposes around it; frames past an utterance's end must be zero already.
// On the CPU and on GPUs this is our own kernel (C is contiguous, so it vectorises), for float64
// and deterministic GPU runs torch's. `residual` adds x to the result.
torch::Tensor depthwise_conv(const torch::Tensor& x_BTC, const torch::Tensor& weight_C1K,
                             const torch::Tensor& bias_C, bool residual = false);

torch::Tensor activate(const torch::Tensor& x, Activation activation);

// Dropout; on a CPU our own, see dropout.cpp.
torch::Tensor apply_dropout(const torch::Tensor& x, double rate, bool training);

class FeedForwardImpl : public torch::nn::Module {
 public:
  FeedForwardImpl(Build build, std::int64_t size, std::int64_t hidden, double dropout_rate,
                  Activation activation);
  torch::Tensor forward(const torch::Tensor& x);
  const Linear& first() const { return w_1_; }
  const Linear& second() const { return w_2_; }

 private:
  Linear w_1_{nullptr}, w_2_{nullptr};
  double dropout_rate_ = 0;
  Activation activation_ = Activation::kRelu;
};
TORCH_MODULE(FeedForward);

}  // namespace tutti::speech
