// Attention with relative positions in kernels of ours: the plain formula's values and gradients.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "tests/speech/gpu_models.h"
#include "tests/speech/vectors.h"
#include "tutti/speech/ops/gpu/relative_attention.h"

namespace tutti::speech {
namespace {

using SpeechAttention = GpuTest;
using Tensors = std::vector<torch::Tensor>;

struct Case {
  std::int64_t heads, frames, head_size;
  Lengths lengths;

  std::int64_t batch() const { return static_cast<std::int64_t>(lengths.size()); }
  std::int64_t width() const { return heads * head_size; }
  torch::Tensor valid() const { return valid_mask(lengths, frames, torch::kCUDA); }
};

// q, k, v (B, T, D), the table of positions (N, D), all bf16; u and v (H, d), float32.
Tensors inputs_of(const Case& c) {
  torch::manual_seed(31);
  const auto options = torch::TensorOptions(torch::kCUDA);
  // Columns of one matrix, as the products that make them leave them.
  const torch::Tensor qkv =
      torch::randn({c.batch(), c.frames, 3 * c.width()}, options).to(torch::kBFloat16);
  const std::int64_t positions = (2 * c.frames - 1 + 7) / 8 * 8;
  Tensors x = {qkv.narrow(2, 0, c.width()),
               qkv.narrow(2, c.width(), c.width()),
               qkv.narrow(2, 2 * c.width(), c.width()),
               torch::randn({positions, c.width()}, options).to(torch::kBFloat16),
               torch::randn({c.heads, c.head_size}, options),
               torch::randn({c.heads, c.head_size}, options)};
  for (auto& tensor : x) tensor = tensor.detach().requires_grad_();
  return x;
}

torch::Tensor fused(const Case& c, const Tensors& x, double rate = 0) {
  EXPECT_TRUE(gpu::can_fuse_attention(x[0], x[3], x[4]));
  return gpu::fused_relative_attention({x[0], x[1], x[2]}, x[4], x[5], x[3], c.valid(), rate);
}

// The formula, in the inputs' precision; attention weights are multiplied with `factors`.
torch::Tensor plain(const Case& c, const Tensors& x, const torch::Tensor& factors = {}) {
  const auto heads_of = [&](const torch::Tensor& y) {
    return y.view({c.batch(), c.frames, c.heads, c.head_size}).transpose(1, 2);
  };
  const torch::Tensor q = heads_of(x[0]), u = x[4].unsqueeze(1), v = x[5].unsqueeze(1);
  const torch::Tensor table = x[3].view({-1, c.heads, c.head_size}).permute({1, 2, 0});
  const torch::Tensor frame = torch::arange(c.frames, torch::TensorOptions(torch::kCUDA));
  const torch::Tensor column = (c.frames - 1 - frame.unsqueeze(1) + frame.unsqueeze(0))
                                   .expand({c.batch(), c.heads, c.frames, c.frames});
  torch::Tensor scores = torch::matmul(q + u, heads_of(x[1]).transpose(2, 3)) +
                         torch::matmul(q + v, table).gather(3, column);
  scores = scores / std::sqrt(static_cast<double>(c.head_size));
  if (const torch::Tensor valid = c.valid(); valid.defined())
    scores = scores.masked_fill(valid.logical_not().view({c.batch(), 1, 1, c.frames}),
                                -std::numeric_limits<double>::infinity());
  torch::Tensor weights = torch::softmax(scores, -1);
  if (factors.defined()) weights = weights * factors;
  return torch::matmul(weights, heads_of(x[2]))
      .transpose(1, 2)
      .reshape({c.batch(), c.frames, c.width()});
}

Tensors exact(const Tensors& x) {
  Tensors result;
  for (const auto& tensor : x)
    result.push_back(tensor.detach().to(torch::kFloat64).requires_grad_());
  return result;
}

void expect_same(const torch::Tensor& got, const Tensors& x, const torch::Tensor& expected,
                 const Tensors& exact_x) {
  EXPECT_TRUE(close(got, expected, 2e-2));
  const torch::Tensor g = torch::randn_like(got);
  const auto gradients = torch::autograd::grad({got}, x, {g});
  const auto wanted = torch::autograd::grad({expected}, exact_x, {g.to(torch::kFloat64)});
  const char* names[] = {"q", "k", "v", "positions", "bias u", "bias v"};
  for (std::size_t i = 0; i < x.size(); ++i)
    EXPECT_TRUE(close(gradients[i], wanted[i], 4e-2)) << names[i];
}

TEST_F(SpeechAttention, ValuesAndGradientsAreThoseOfTheFormula) {
  const Case cases[] = {
      {4, 369, 64, {369, 369}},      {2, 64, 64, {64}},   {2, 65, 64, {65, 65, 65}},
      {3, 130, 32, {130, 130}},      {1, 3, 64, {3, 1}},  {2, 200, 64, {200, 64, 3, 65, 199}},
      {4, 376, 32, {376, 370, 128}}, {16, 200, 64, {200}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(
        fmt::format("{} x {} frames, {} heads of {}", c.batch(), c.frames, c.heads, c.head_size));
    const Tensors x = inputs_of(c), e = exact(x);
    expect_same(fused(c, x), x, plain(c, e), e);
  }
}

// Attention weights as they are applied: values that are rows of a unit matrix show 64 at a time.
torch::Tensor shown_weights(const Case& c, Tensors x, double rate) {
  Tensors parts;
  for (std::int64_t first = 0; first < c.frames; first += c.head_size) {
    const std::int64_t count = std::min(c.head_size, c.frames - first);
    x[2] = torch::zeros({c.batch(), c.frames, c.heads, c.head_size}, x[2].options());
    x[2].narrow(1, first, count)
        .copy_(torch::eye(c.head_size, x[2].options()).narrow(0, 0, count).unsqueeze(1));
    torch::manual_seed(5);
    parts.push_back(fused(c, {x[0], x[1], x[2].flatten(2), x[3], x[4], x[5]}, rate)
                        .view({c.batch(), c.frames, c.heads, c.head_size})
                        .narrow(3, 0, count));
  }
  return torch::cat(parts, 3).transpose(1, 2).to(torch::kFloat64);
}

TEST_F(SpeechAttention, BothPassesDropTheSameWeights) {
  const double rate = 0.3;
  for (const Case& c : {Case{2, 150, 64, {150, 150, 150}}, Case{4, 100, 32, {100, 100}}}) {
    const Tensors x = inputs_of(c), e = exact(x);
    torch::Tensor stays;
    {
      const torch::NoGradGuard no_grad;
      stays = (shown_weights(c, x, rate) > 0).to(torch::kFloat64);
      EXPECT_NEAR(stays.mean().item<double>(), 1 - rate, 0.01);
      // Neighbours of every kind drop by themselves.
      for (const auto& [dimension, step] :
           {std::pair{3, 1}, std::pair{2, 1}, std::pair{2, 8}, std::pair{1, 1}, std::pair{0, 1}}) {
        const std::int64_t size = stays.size(dimension) - step;
        const double both = (stays.narrow(dimension, 0, size) * stays.narrow(dimension, step, size))
                                .mean()
                                .item<double>();
        EXPECT_NEAR(both, (1 - rate) * (1 - rate), 0.015) << dimension << " " << step;
      }
    }
    torch::manual_seed(5);
    expect_same(fused(c, x, rate), x, plain(c, e, stays / (1 - rate)), e);
  }
}

}  // namespace
}  // namespace tutti::speech
