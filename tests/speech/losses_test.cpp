#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "tests/speech/vectors.h"
#include "tutti/core/error.h"
#include "tutti/speech/losses/label_smoothing.h"
#include "tutti/speech/losses/transducer_lattice.h"
#include "tutti/speech/losses/transducer_loss.h"
#include "tutti/speech/models/modules.h"
#include "tutti/speech/models/transducer.h"
#include "tutti/speech/ops/cpu/first_conv.h"
#include "tutti/trainer/recompute.h"

namespace tutti::speech {
namespace {

// The sum over every alignment, one by one.
double all_alignments(const torch::Tensor& log_probs_TUV, const Lengths& text, std::int64_t frames,
                      std::int64_t t, std::int64_t u) {
  const auto tokens = static_cast<std::int64_t>(text.size());
  const auto score = [&](std::int64_t token) {
    return std::exp(log_probs_TUV[t][u][token].item<double>());
  };
  double sum = 0;
  if (t + 1 == frames && u == tokens) return score(0);
  if (t + 1 < frames) sum += score(0) * all_alignments(log_probs_TUV, text, frames, t + 1, u);
  if (u < tokens) sum += score(text[u]) * all_alignments(log_probs_TUV, text, frames, t, u + 1);
  return sum;
}

struct TransducerCase {
  torch::Tensor logits = torch::randn({3, 5, 4, 6}, torch::kFloat64);
  torch::Tensor texts = torch::tensor({{1, 2, 5}, {3, 3, -1}, {-1, -1, -1}}, torch::kInt64);
  Lengths frames = {5, 3, 2}, tokens = {3, 2, 0};
};

TEST(TransducerLoss, IsTheSumOverAllAlignments) {
  const TransducerCase c;
  const auto losses = transducer_loss(c.logits, c.texts, c.frames, c.tokens);
  const auto log_probs = torch::log_softmax(c.logits, -1);
  for (int b = 0; b < 3; ++b) {
    Lengths text;
    for (int u = 0; u < c.tokens[b]; ++u) text.push_back(c.texts[b][u].item<std::int64_t>());
    EXPECT_NEAR(losses[b].item<double>(),
                -std::log(all_alignments(log_probs[b], text, c.frames[b], 0, 0)), 1e-10);
  }
}

TEST(TransducerLoss, GradientsMatchFiniteDifferences) {
  TransducerCase c;
  c.logits.set_requires_grad(true);
  transducer_loss(c.logits, c.texts, c.frames, c.tokens).sum().backward();
  torch::NoGradGuard no_grad;
  const auto flat = c.logits.view({-1});
  const auto total = [&] {
    return transducer_loss(c.logits, c.texts, c.frames, c.tokens).sum().item<double>();
  };
  for (std::int64_t i = 0; i < flat.numel(); i += 7) {
    const double value = flat[i].item<double>(), step = 1e-5;
    flat[i].fill_(value + step);
    const double up = total();
    flat[i].fill_(value - step);
    const double down = total();
    flat[i].fill_(value);
    EXPECT_NEAR(c.logits.grad().view({-1})[i].item<double>(), (up - down) / (2 * step), 1e-8);
  }
}

TEST(TransducerLoss, FusedFormGivesTheSameLossAndGradientsInSlices) {
  const Lengths frames = {6, 4}, tokens = {3, 1};
  const auto texts = torch::tensor({{1, 2, 3}, {4, -1, -1}}, torch::kInt64);
  JointNetwork joint(Build{}, 7, 5, 4, JointSettings{.joint_space_size = 8});
  auto encoded = torch::randn({2, 6, 5}).requires_grad_(),
       predicted = torch::randn({2, 4, 4}).requires_grad_();
  const auto weights = torch::tensor({0.5, 2.0});
  const auto gradients = [&](const torch::Tensor& losses) {
    std::vector<torch::Tensor> inputs = joint->parameters();
    inputs.insert(inputs.end(), {encoded, predicted});
    return torch::autograd::grad({(losses * weights).sum()}, inputs);
  };
  const auto plain = transducer_loss(joint->forward(encoded.unsqueeze(2), predicted.unsqueeze(1)),
                                     texts, frames, tokens);
  const JointOutput output{joint->output_layer()->weight, joint->output_layer()->bias,
                           joint->activation()};
  const auto fused =
      fused_transducer_loss(joint->project_encoded(encoded), joint->project_predicted(predicted),
                            output, texts, frames, tokens, 0, /*slice_elements=*/7 * 5);
  EXPECT_TRUE(close(fused, plain, 1e-5));
  const auto want = gradients(plain), got = gradients(fused);
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(close(got[i], want[i], 1e-4)) << i;
}

TEST(TransducerLoss, DiagonalFormAgreesWithTheLoop) {
  const TransducerCase c;
  const auto log_probs = torch::log_softmax(c.logits, -1);
  const auto blank = log_probs.select(3, 0).contiguous();
  const auto index = c.texts.clamp_min(0).view({3, 1, 3, 1}).expand({3, 5, 3, 1});
  const auto token = log_probs.narrow(2, 0, 3).gather(3, index).squeeze(3).contiguous();
  const LatticeFlows loop = lattice_flows(blank, token, c.frames, c.tokens);
  const LatticeFlows diagonal = lattice_flows_by_diagonals(blank, token, c.frames, c.tokens);
  EXPECT_TRUE(close(diagonal.loss_B, loop.loss_B, 1e-10));
  EXPECT_TRUE(close(diagonal.blank_flow, loop.blank_flow, 1e-10));
  EXPECT_TRUE(close(diagonal.token_flow, loop.token_flow, 1e-10));
}

TEST(TransducerLoss, SaysWhichUtteranceHasImpossibleLengths) {
  const TransducerCase c;
  EXPECT_THROW(transducer_loss(c.logits, c.texts, {5, 9, 2}, c.tokens), DataError);
}

TEST(LabelSmoothing, IsTheDivergenceFromTheSmoothedDistribution) {
  const auto logits = torch::randn({2, 3, 5}, torch::kFloat64);
  const auto targets = torch::tensor({{1, 4, 2}, {3, 0, 0}}, torch::kInt64);
  const Lengths lengths = {3, 1};
  const auto log_probs = torch::log_softmax(logits, -1);
  double expected = 0;
  for (int b = 0; b < 2; ++b)
    for (int t = 0; t < lengths[b]; ++t)
      for (int v = 0; v < 5; ++v) {
        const double p = v == targets[b][t].item<int>() ? 0.9 : 0.1 / 4;
        expected += p * (std::log(p) - log_probs[b][t][v].item<double>());
      }
  EXPECT_NEAR(label_smoothing_loss(logits, targets, lengths, 0.1, false).loss.item<double>(),
              expected / 2, 1e-6);
  EXPECT_NEAR(label_smoothing_loss(logits, targets, lengths, 0.1, true).loss.item<double>(),
              expected / 4, 1e-6);
  EXPECT_GE(label_smoothing_loss(logits, targets, lengths, 0.0, false).loss.item<double>(), 0);
}

TEST(DepthwiseConv, AgreesWithTorchsConvolutionInBothDirections) {
  for (const int kernel : {1, 7, 31}) {
    auto x = torch::randn({2, 9, 70}).requires_grad_();
    auto weight = torch::randn({70, 1, kernel}).requires_grad_(),
         bias = torch::randn({70}).requires_grad_();
    const auto reference =
        torch::conv1d(x.transpose(1, 2), weight, bias, 1, kernel / 2, 1, 70).transpose(1, 2);
    const auto ours = depthwise_conv(x, weight, bias);
    EXPECT_TRUE(close(ours, reference, 1e-5)) << kernel;
    const auto seed = torch::randn_like(reference);
    const auto want = torch::autograd::grad({reference}, {x, weight, bias}, {seed});
    const auto got = torch::autograd::grad({ours}, {x, weight, bias}, {seed});
    for (int i = 0; i < 3; ++i)
      EXPECT_TRUE(close(got[i], want[i], 1e-5)) << kernel << " input " << i;
  }
}

TEST(FirstConv, AgreesWithTorchsConvolutionInBothDirections) {
  for (const int stride : {1, 2}) {
    for (const int channels : {1, 32, 45}) {
      const auto x = torch::randn({3, 12, 17});
      const auto weight = torch::randn({channels, 1, 3, 3}).requires_grad_(),
                 bias = torch::randn({channels}).requires_grad_();
      ASSERT_TRUE(has_first_conv(x, weight));
      const auto reference = torch::relu(torch::conv2d(x.unsqueeze(1), weight, bias, stride));
      const auto ours = first_conv_relu(x, weight, bias, stride);
      EXPECT_TRUE(close(ours, reference, 1e-5)) << stride << ' ' << channels;
      const auto seed = torch::randn_like(reference);
      const auto want = torch::autograd::grad({reference}, {weight, bias}, {seed});
      const auto got = torch::autograd::grad({ours}, {weight, bias}, {seed});
      for (int i = 0; i < 2; ++i)
        EXPECT_TRUE(close(got[i], want[i], 1e-4)) << stride << ' ' << channels << " input " << i;
    }
  }
}

TEST(FirstConv, PassesOnWhatIsNoNumber) {
  const auto weight = torch::randn({4, 1, 3, 3}), bias = torch::randn({4});
  auto x = torch::randn({1, 5, 5});
  x[0][0][0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(first_conv_relu(x, weight, bias, 2).isnan().any().item<bool>());
}

TEST(Checkpointing, GivesTheSameGradientsWithTheSameDropout) {
  Linear layer(Build{}, 6, 6);
  const auto block = [&](const torch::Tensor& x) {
    return torch::dropout(torch::tanh(layer(x)), 0.5, true);
  };
  for (const bool input_needs_gradient : {true, false}) {
    const auto x = torch::randn({4, 6}).requires_grad_(input_needs_gradient);
    torch::manual_seed(3);
    const auto plain = block(x);
    layer->zero_grad();
    plain.square().sum().backward();
    const auto want = layer->weight.grad().clone();
    const auto want_x = input_needs_gradient ? x.grad().clone() : torch::Tensor();
    layer->zero_grad();
    if (input_needs_gradient) x.mutable_grad().zero_();
    torch::manual_seed(3);
    const auto kept = trainer::checkpointed(block, x, layer->parameters());
    EXPECT_TRUE(torch::equal(kept, plain));
    const auto next_random = torch::rand({1});  // the recomputation must not disturb the sequence
    kept.square().sum().backward();
    EXPECT_TRUE(torch::equal(layer->weight.grad(), want));
    if (input_needs_gradient) {
      EXPECT_TRUE(torch::equal(x.grad(), want_x));
    }
    torch::manual_seed(3);
    block(x);
    EXPECT_TRUE(torch::equal(torch::rand({1}), next_random));
  }
}

}  // namespace
}  // namespace tutti::speech
