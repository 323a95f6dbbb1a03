// A decoder's step in a few kernels: the plain formula's values and caches, whether attention is joined
// with the products before it or not.
#include <ATen/cuda/CUDAContext.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "tests/speech/gpu_models.h"
#include "tutti/speech/kernels/few_rows.h"
#include "tutti/speech/ops/gpu/decoder_step.h"

namespace tutti::speech {
namespace {

using SpeechStep = GpuTest;
using gpu::StepDecoder;
using gpu::StepJoins;
using gpu::StepLayer;
using gpu::StepLinear;
using gpu::StepNorm;
using gpu::StepState;
using torch::Tensor;

constexpr std::int64_t kLayers = 2, kWords = 83;

struct Case {
  std::int64_t utterances, beam, heads, head_size, past, frames;
  bool masked;

  std::int64_t rows() const { return utterances * beam; }
  std::int64_t size() const { return heads * head_size; }
  std::int64_t capacity() const { return past + 3; }
};

Tensor random(at::IntArrayRef sizes, torch::ScalarType type, double scale = 1) {
  return (scale * torch::randn(sizes, torch::kCUDA)).to(type);
}

StepDecoder decoder_of(const Case& c, torch::ScalarType type) {
  const std::int64_t size = c.size(), hidden = 2 * size;
  const auto linear = [&](std::int64_t out, std::int64_t in) {
    return StepLinear{random({out, in}, type, 1 / std::sqrt(static_cast<double>(in))),
                      random({out}, type, 0.3)};
  };
  const auto norm = [&] {
    return StepNorm{random({size}, type, 0.2) + 1, random({size}, type, 0.2), 1e-5};
  };
  StepDecoder decoder;
  decoder.embedding = random({kWords, size}, type, 1 / std::sqrt(static_cast<double>(size)));
  for (std::int64_t i = 0; i < kLayers; ++i)
    decoder.layers.push_back({.self_norm = norm(),
                              .memory_norm = norm(),
                              .feed_forward_norm = norm(),
                              .q = linear(size, size),
                              .k = linear(size, size),
                              .v = linear(size, size),
                              .out = linear(size, size),
                              .memory_q = linear(size, size),
                              .memory_out = linear(size, size),
                              .w_1 = linear(hidden, size),
                              .w_2 = linear(size, hidden)});
  decoder.after_norm = norm();
  decoder.output = linear(kWords, size);
  decoder.heads = c.heads;
  return decoder;
}

// Keys are large, so that a place that is left out makes a difference.
StepState state_of(const Case& c, torch::ScalarType type) {
  const auto ids = torch::TensorOptions(torch::kCUDA).dtype(torch::kInt64);
  StepState state;
  state.memory_kv = random({kLayers, 2, c.utterances, c.heads, c.frames, c.head_size}, type);
  state.memory_kv.select(1, 0).mul_(3);
  if (c.masked) {
    const Tensor lengths =
        c.frames - 7 - c.frames / 3 * torch::arange(c.utterances, ids).remainder(3);
    const Tensor hidden = torch::arange(c.frames, ids).unsqueeze(0) >= lengths.unsqueeze(1);
    state.memory_bias = torch::zeros(hidden.sizes(), torch::TensorOptions(torch::kCUDA).dtype(type))
                            .masked_fill_(hidden, -std::numeric_limits<double>::infinity())
                            .view({c.utterances, 1, 1, c.frames});
  }
  state.self_kv = random({kLayers, 2, c.rows(), c.heads, c.capacity(), c.head_size}, type);
  state.self_kv.select(1, 0).mul_(3);
  // What is not said yet need not be a number.
  state.self_kv.narrow(4, c.past, 3).fill_(std::numeric_limits<double>::quiet_NaN());
  const Tensor first = torch::arange(c.rows(), ids).floor_divide(c.beam) * c.beam;
  state.ancestors = (torch::randint(c.beam, {c.rows(), c.capacity()}, ids) + first.unsqueeze(1))
                        .to(torch::kInt32);
  state.position = torch::full({1}, c.past, ids);
  state.tokens = torch::randint(kWords, {c.rows(), 1}, ids);
  state.table = random({c.capacity(), c.size()}, type);
  return state;
}

// The formula in float, rounded where the kernels keep what they made in `type`.
class Plain {
 public:
  Plain(const Case& c, const StepDecoder& decoder, const StepState& state)
      : c_(c), decoder_(decoder), state_(state), type_(decoder.embedding.scalar_type()) {}

  Tensor log_probs() {
    Tensor x = number(decoder_.embedding.index_select(0, state_.tokens.flatten())) *
                   std::sqrt(static_cast<double>(c_.size())) +
               number(state_.table.index_select(0, state_.position));
    for (std::int64_t i = 0; i < kLayers; ++i) {
      const StepLayer& layer = decoder_.layers[static_cast<std::size_t>(i)];
      x = x + linear(attend_past(layer, i, normed(x, layer.self_norm)), layer.out);
      x = x + linear(attend_memory(layer, i, normed(x, layer.memory_norm)), layer.memory_out);
      const Tensor wide = linear(normed(x, layer.feed_forward_norm), layer.w_1).relu();
      x = x + linear(rounded(wide), layer.w_2);
    }
    return linear(normed(x, decoder_.after_norm), decoder_.output).log_softmax(-1);
  }
  // (rows, heads, head_size) of layer `layer`.
  const Tensor& newest_key(std::size_t layer) const { return newest_[layer].first; }
  const Tensor& newest_value(std::size_t layer) const { return newest_[layer].second; }

 private:
  static Tensor number(const Tensor& x) { return x.to(torch::kFloat32); }
  Tensor rounded(const Tensor& x) const { return x.to(type_).to(torch::kFloat32); }
  static Tensor linear(const Tensor& x, const StepLinear& of) {
    return torch::linear(x, number(of.weight), number(of.bias));
  }
  Tensor normed(const Tensor& x, const StepNorm& norm) const {
    return rounded(
        torch::layer_norm(x, {c_.size()}, number(norm.weight), number(norm.bias), norm.eps));
  }
  Tensor heads_of(const Tensor& x, const StepLinear& of) const {
    return rounded(linear(x, of)).view({c_.rows(), c_.heads, c_.head_size});
  }
  // q (N, H, d), keys and values (N, H, T, d).
  Tensor attend(const Tensor& q, const Tensor& keys, const Tensor& values,
                const Tensor& bias) const {
    Tensor scores = torch::matmul(keys, q.unsqueeze(3)).squeeze(3) /
                    std::sqrt(static_cast<double>(c_.head_size));
    if (bias.defined()) scores = scores + bias;
    return rounded(torch::matmul(scores.softmax(-1).unsqueeze(2), values).view({c_.rows(), -1}));
  }
  Tensor attend_past(const StepLayer& layer, std::int64_t index, const Tensor& x) {
    newest_.emplace_back(heads_of(x, layer.k), heads_of(x, layer.v));
    const auto with_past = [&](std::int64_t which, const Tensor& newest) {
      std::vector<Tensor> places;
      for (std::int64_t p = 0; p < c_.past; ++p)
        places.push_back(number(state_.self_kv[index][which].select(2, p).index_select(
            0, state_.ancestors.select(1, p).to(torch::kInt64))));
      places.push_back(newest);
      return torch::stack(places, 2);
    };
    return attend(heads_of(x, layer.q), with_past(0, newest_.back().first),
                  with_past(1, newest_.back().second), {});
  }
  Tensor attend_memory(const StepLayer& layer, std::int64_t index, const Tensor& x) const {
    const auto of_rows = [&](const Tensor& y) {
      return number(y).repeat_interleave(c_.beam, /*dim=*/0);
    };
    const Tensor bias =
        state_.memory_bias.defined() ? of_rows(state_.memory_bias).squeeze(2) : Tensor();
    return attend(heads_of(x, layer.memory_q), of_rows(state_.memory_kv[index][0]),
                  of_rows(state_.memory_kv[index][1]), bias);
  }

  const Case& c_;
  const StepDecoder& decoder_;
  const StepState& state_;
  torch::ScalarType type_;
  std::vector<std::pair<Tensor, Tensor>> newest_;
};

double distance(const Tensor& a, const Tensor& b) {
  return (a.to(torch::kFloat32) - b.to(torch::kFloat32)).abs().max().item<double>();
}

StepState copy_of(StepState state) {
  state.self_kv = state.self_kv.clone();
  state.ancestors = state.ancestors.clone();
  return state;
}

void check(const Case& c, torch::ScalarType type, StepJoins joins) {
  SCOPED_TRACE(fmt::format("{}: {} x {} rows, {} heads of {}, past {}, frames {}{}, joins {} {}",
                           toString(type), c.utterances, c.beam, c.heads, c.head_size, c.past,
                           c.frames, c.masked ? " masked" : "", joins.past, joins.memory));
  torch::manual_seed(17);
  const StepDecoder decoder = decoder_of(c, type);
  ASSERT_TRUE(gpu::can_step_few_rows(decoder));
  const StepState before = state_of(c, type), state = copy_of(before);
  Plain plain(c, decoder, before);
  const Tensor expected = plain.log_probs();
  // Some at once: what one leaves behind must not change the next.
  std::vector<Tensor> got;
  for (int i = 0; i < 8; ++i) got.push_back(gpu::step_few_rows(decoder, state, joins));
  EXPECT_LT(distance(got[0], expected), type == torch::kBFloat16 ? 0.12 : 0.03);
  for (const Tensor& again : got) EXPECT_TRUE(torch::equal(again, got[0]));

  for (std::size_t i = 0; i < kLayers; ++i) {
    const Tensor kv = state.self_kv[static_cast<std::int64_t>(i)].select(3, c.past);
    EXPECT_LT(distance(kv[0], plain.newest_key(i)), 0.12) << i;
    EXPECT_LT(distance(kv[1], plain.newest_value(i)), 0.12) << i;
  }
  EXPECT_TRUE(
      torch::equal(state.self_kv.narrow(4, 0, c.past), before.self_kv.narrow(4, 0, c.past)));
  const Tensor rows =
      torch::arange(c.rows(), torch::TensorOptions(torch::kCUDA).dtype(torch::kInt32));
  EXPECT_TRUE(torch::equal(state.ancestors.select(1, c.past), rows));
  EXPECT_TRUE(
      torch::equal(state.ancestors.narrow(1, 0, c.past), before.ancestors.narrow(1, 0, c.past)));
}

const std::vector<Case> kCases = {
    {1, 1, 4, 64, 0, 64, false},      {1, 1, 16, 64, 37, 384, true},
    {1, 1, 16, 64, 200, 1500, false}, {1, 3, 4, 64, 1, 384, true},
    {1, 5, 16, 64, 37, 384, true},    {1, 5, 4, 64, 200, 1500, true},
    {1, 16, 16, 64, 37, 64, false},   {3, 1, 4, 64, 37, 384, true},
    {3, 5, 12, 64, 37, 1500, true},   {4, 4, 4, 64, 200, 3001, true},
    {1, 1, 8, 32, 37, 384, false},    {1, 5, 16, 32, 200, 1500, true},
    {2, 8, 8, 32, 1, 64, true},       {1, 1, 4, 128, 37, 384, false},
    {1, 5, 8, 128, 200, 1500, true},  {2, 8, 2, 128, 0, 64, true},
};

TEST_F(SpeechStep, SeparateKernelsGiveWhatTheFormulaGives) {
  const torch::NoGradGuard no_grad;
  for (const auto type : {torch::kBFloat16, torch::kFloat16})
    for (const Case& c : kCases) check(c, type, {.past = false, .memory = false});
}

TEST_F(SpeechStep, AttentionToTheMemoryIsJoinedWithItsQueries) {
  const torch::NoGradGuard no_grad;
  for (const auto type : {torch::kBFloat16, torch::kFloat16})
    for (const Case& c : kCases) check(c, type, {.past = false, .memory = true});
}

TEST_F(SpeechStep, AttentionToThePastIsJoinedWithItsQueries) {
  const torch::NoGradGuard no_grad;
  for (const auto type : {torch::kBFloat16, torch::kFloat16})
    for (const Case& c : kCases) check(c, type, {.past = true, .memory = false});
}

TEST_F(SpeechStep, BothAreJoined) {
  const torch::NoGradGuard no_grad;
  for (const auto type : {torch::kBFloat16, torch::kFloat16})
    for (const Case& c : kCases) check(c, type, {});
}

TEST_F(SpeechStep, LogSoftmaxOfLongRowsIsTorchs) {
  if (!cuda::can_log_softmax_rows(1)) GTEST_SKIP() << "no clusters here";
  EXPECT_TRUE(cuda::can_log_softmax_rows(65536));
  EXPECT_FALSE(cuda::can_log_softmax_rows(65537));
  torch::manual_seed(3);
  for (const std::int64_t rows : {1, 5, 16})
    for (const std::int64_t columns : {1, 83, 5000, 50002, 65536}) {
      const Tensor x = 5 * torch::randn({rows, columns}, torch::kCUDA) + 30;
      const Tensor expected = x.log_softmax(-1);
      cuda::log_softmax_rows(x.data_ptr<float>(), rows, columns,
                             at::cuda::getCurrentCUDAStream().stream());
      EXPECT_LT(distance(x, expected), 1e-4) << rows << " " << columns;
    }
}

// Sizes that do not divide are served by separate kernels.
TEST_F(SpeechStep, SizesThatCannotBeJoinedAreServed) {
  const torch::NoGradGuard no_grad;
  check({1, 5, 6, 64, 37, 384, true}, torch::kBFloat16, {});
  EXPECT_FALSE(cuda::can_norm_attend_past(cuda::Number::kBFloat16, 384, 64));
  EXPECT_FALSE(cuda::can_norm_attend_memory(cuda::Number::kBFloat16, 1024, 256));
}

TEST_F(SpeechStep, GpusWithClustersJoin) {
  if (at::cuda::getCurrentDeviceProperties()->major < 9) GTEST_SKIP() << "no clusters here";
  for (const auto type : {cuda::Number::kHalf, cuda::Number::kBFloat16})
    for (const std::int64_t head_size : {32, 64, 128}) {
      EXPECT_TRUE(cuda::can_norm_attend_past(type, 1024, head_size)) << head_size;
      EXPECT_TRUE(cuda::can_norm_attend_memory(type, 1024, head_size)) << head_size;
    }
}

}  // namespace
}  // namespace tutti::speech
