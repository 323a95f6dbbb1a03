// The GPU kernels of input layers and of CTC against torch in double precision.
#include <c10/cuda/CUDACachingAllocator.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>

#include "tests/speech/gpu_models.h"
#include "tests/speech/vectors.h"
#include "tutti/speech/ops/gpu/ctc.h"
#include "tutti/speech/ops/gpu/input_conv.h"
#include "tutti/trainer/precision.h"

namespace tutti::speech {
namespace {

class SpeechCudaInput : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    torch::manual_seed(3);
  }
};
using SpeechCudaCtc = SpeechCudaInput;

const auto kTypes = {torch::kFloat32, torch::kFloat16, torch::kBFloat16};

double type_tolerance(torch::ScalarType type) {
  return type == torch::kFloat32 ? 1e-5 : type == torch::kFloat16 ? 2e-3 : 1e-2;
}

torch::Tensor random_leaf(at::IntArrayRef shape, torch::ScalarType type, double scale = 1) {
  return (torch::randn(shape, torch::kCUDA) * scale).to(type).requires_grad_();
}

torch::Tensor double_leaf(const torch::Tensor& x) {
  return x.detach().to(torch::kFloat64).requires_grad_();
}

torch::Tensor in_double(const torch::Tensor& x) { return x.detach().to(torch::kFloat64); }

TEST_F(SpeechCudaInput, FirstConvolutionsEqualTorchsInEveryType) {
  struct Case {
    std::int64_t frames, bins, channels, stride;
  };
  // Frames around a tile of 16; channels that fill a pack, do not, and take several blocks.
  for (const auto& [frames, bins, channels, stride] :
       {Case{97, 20, 24, 2}, Case{37, 80, 256, 2}, Case{40, 20, 256, 1}, Case{34, 20, 27, 2},
        Case{3, 3, 8, 1}, Case{71, 83, 520, 2}})
    for (const auto type : kTypes) {
      SCOPED_TRACE(::testing::Message()
                   << frames << " " << bins << " " << channels << " " << stride << " " << type);
      // The second looks at one position only: what is asked is what becomes of the first.
      const std::vector<torch::Tensor> leaves = {
          random_leaf({3, frames, bins}, type), random_leaf({channels, 1, 3, 3}, type, 0.3),
          random_leaf({channels}, type), random_leaf({16, channels, 1, 1}, type, 0.1),
          random_leaf({16}, type)};
      ASSERT_TRUE(has_cuda_input(leaves[0], leaves[1], stride));
      const torch::Tensor y = cuda_first_convs_relu(leaves[0], {leaves[1], leaves[2], stride},
                                                    {leaves[3], leaves[4], 1});
      ASSERT_EQ(y.scalar_type(), type);
      EXPECT_TRUE(y.is_contiguous(at::MemoryFormat::ChannelsLast));
      const torch::Tensor g = torch::randn_like(y);
      const auto got = torch::autograd::grad({y}, leaves, {g});

      std::vector<torch::Tensor> exact;
      for (const torch::Tensor& leaf : leaves) exact.push_back(double_leaf(leaf));
      const torch::Tensor first =
          torch::relu(torch::conv2d(exact[0].unsqueeze(1), exact[1], exact[2], stride));
      const torch::Tensor rounded = first + (in_double(first.to(type)) - first).detach();
      const torch::Tensor sum = torch::conv2d(rounded, exact[3], exact[4]);
      const double tolerance = std::max(1e-4, 2 * type_tolerance(type));
      EXPECT_TRUE(close(y, torch::relu(sum), tolerance));
      // Where rounding decides the sign, the gradient follows y.
      const auto expected =
          torch::autograd::grad({sum}, exact, {in_double(g) * (in_double(y) > 0)});
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(close(got[i], expected[i], tolerance)) << i;
    }
}

TEST_F(SpeechCudaInput, WhatLiesBetweenTheFirstTwoIsNotKept) {
  const auto held = [] {
    return c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0].current;
  };
  const torch::Tensor x = torch::randn({8, 1000, 80}, torch::kCUDA);
  const InputConv first{random_leaf({64, 1, 3, 3}, torch::kFloat32),
                        random_leaf({64}, torch::kFloat32), 2},
      second{random_leaf({64, 64, 3, 3}, torch::kFloat32), random_leaf({64}, torch::kFloat32), 2};
  const auto before = held();
  const torch::Tensor y = cuda_first_convs_relu(x, first, second);
  EXPECT_TRUE(y.requires_grad());
  const std::int64_t between = std::int64_t{8} * 64 * 499 * 39 * 4;
  EXPECT_LT(held() - before, between / 2);
}

TEST_F(SpeechCudaInput, FollowingConvolutionEqualsTorchsInEveryType) {
  struct Case {
    std::int64_t frames, bins, channels, kernel, stride;
  };
  for (const auto& [frames, bins, channels, kernel, stride] :
       {Case{48, 9, 24, 3, 2}, Case{18, 39, 256, 3, 2}, Case{20, 11, 27, 5, 3},
        Case{3, 3, 8, 3, 1}})
    for (const auto type : kTypes) {
      SCOPED_TRACE(::testing::Message()
                   << frames << " " << bins << " " << channels << " " << kernel << " " << type);
      const torch::Tensor x = random_leaf({3, channels, frames, bins}, type),
                          w = random_leaf({channels, channels, kernel, kernel}, type, 0.05),
                          b = random_leaf({channels}, type);
      const torch::Tensor y = cuda_conv_relu(x, {w, b, stride});
      ASSERT_EQ(y.scalar_type(), type);
      const torch::Tensor g = torch::randn_like(y);
      const auto got = torch::autograd::grad({y}, {x, w, b}, {g});
      EXPECT_TRUE(got[1].is_contiguous());

      // cuDNN's ways to a product are not ours to choose: some are less exact.
      const double tolerance = std::max(1e-4, type_tolerance(type));
      const torch::Tensor xd = double_leaf(x), wd = double_leaf(w), bd = double_leaf(b);
      const torch::Tensor sum = torch::conv2d(xd, wd, bd, stride);
      EXPECT_TRUE(close(y, torch::relu(sum), tolerance));
      const auto expected =
          torch::autograd::grad({sum}, {xd, wd, bd}, {in_double(g) * (in_double(y) > 0)});
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(close(got[i], expected[i], tolerance)) << i;
    }
}

TEST_F(SpeechCudaInput, AutocastDecidesTheTypeOfActivationsNotOfGradients) {
  const torch::Tensor x = torch::randn({2, 60, 20}, torch::kCUDA);
  const std::vector<torch::Tensor> weights = {
      random_leaf({24, 1, 3, 3}, torch::kFloat32, 0.3), random_leaf({24}, torch::kFloat32),
      random_leaf({24, 24, 3, 3}, torch::kFloat32, 0.1), random_leaf({24}, torch::kFloat32)};
  torch::Tensor y;
  {
    const trainer::AutocastScope scope(at::kCUDA, torch::kBFloat16);
    y = cuda_first_convs_relu(x, {weights[0], weights[1], 2}, {weights[2], weights[3], 2});
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
  }
  const auto got = torch::autograd::grad({y.to(torch::kFloat32).sum()}, weights);
  std::vector<torch::Tensor> exact;
  for (const auto& weight : weights) exact.push_back(double_leaf(weight));
  const torch::Tensor first = torch::conv2d(in_double(x).unsqueeze(1), exact[0], exact[1], 2);
  const torch::Tensor expected_y =
      torch::relu(torch::conv2d(torch::relu(first), exact[2], exact[3], 2));
  EXPECT_TRUE(close(y, expected_y, 2e-2));
  const auto expected = torch::autograd::grad({expected_y.sum()}, exact);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(got[i].scalar_type(), torch::kFloat32) << i;
    EXPECT_TRUE(close(got[i], expected[i], 5e-2)) << i;
  }
}

TEST_F(SpeechCudaInput, WeightGradientsRepeatToTheLastBit) {
  const torch::Tensor x = random_leaf({8, 200, 80}, torch::kFloat32),
                      w = random_leaf({64, 1, 3, 3}, torch::kFloat32),
                      b = random_leaf({64}, torch::kFloat32);
  const torch::Tensor y = cuda_first_convs_relu(
      x, {w, b, 2},
      {torch::randn({16, 64, 1, 1}, torch::kCUDA), torch::zeros({16}, torch::kCUDA), 1});
  const torch::Tensor g = torch::randn_like(y);
  const auto once = torch::autograd::grad({y}, {w, b}, {g}, /*retain_graph=*/true);
  for (int i = 0; i < 3; ++i) {
    const auto again = torch::autograd::grad({y}, {w, b}, {g}, /*retain_graph=*/true);
    EXPECT_TRUE(torch::equal(once[0], again[0]));
    EXPECT_TRUE(torch::equal(once[1], again[1]));
  }
}

TEST_F(SpeechCudaInput, WhatIsNotANumberIsSeen) {
  torch::Tensor x = torch::zeros({1, 7, 7}, torch::kCUDA);
  x[0][3][3] = std::numeric_limits<float>::quiet_NaN();
  const torch::Tensor zeros = torch::zeros({8}, torch::kCUDA);
  const torch::Tensor y =
      cuda_first_convs_relu(x, {torch::ones({8, 1, 3, 3}, torch::kCUDA), zeros, 2},
                            {torch::ones({8, 8, 3, 3}, torch::kCUDA), zeros, 1});
  EXPECT_TRUE(y.isnan().all().item<bool>());
}

struct CtcCase {
  std::int64_t frames = 0, vocab = 0;
  Lengths frame_lengths;
  std::vector<std::vector<std::int64_t>> texts;
  Lengths text_lengths() const {
    Lengths lengths;
    for (const auto& text : texts) lengths.push_back(static_cast<std::int64_t>(text.size()));
    return lengths;
  }
  // Padded with something that is no token.
  torch::Tensor text() const {
    torch::Tensor all =
        torch::full({static_cast<std::int64_t>(texts.size()), max_length(text_lengths()) + 1}, -1,
                    torch::kInt64);
    for (std::size_t b = 0; b < texts.size(); ++b)
      for (std::size_t n = 0; n < texts[b].size(); ++n)
        all[static_cast<std::int64_t>(b)][static_cast<std::int64_t>(n)] = texts[b][n];
    return all;
  }
};

// Three frames are too few for the fourth's six labels; the last has no text.
CtcCase small_case(std::int64_t vocab) {
  return {.frames = 23,
          .vocab = vocab,
          .frame_lengths = {23, 17, 9, 3, 12},
          .texts = {{1, 2, 3, 2, 1, 2}, {4, 4, 4, 8, 8}, {5, 5, 6, 6}, {1, 2, 3, 4, 5, 6}, {}}};
}

CtcCase large_case() {
  CtcCase large{.frames = 450, .vocab = 5000, .frame_lengths = {450, 401, 370}, .texts = {}};
  for (const std::int64_t length : {200, 150, 37}) {
    auto& text = large.texts.emplace_back();
    for (std::int64_t n = 0; n < length; ++n)
      text.push_back(n % 5 == 0 && n > 0 ? text.back() : 1 + n * n * 7 % 53);
  }
  return large;
}

// torch's on the CPU: it is the same mathematics, and it knows empty texts in every version.
void expect_ctc_equals_torchs(const CtcCase& given, torch::ScalarType type) {
  SCOPED_TRACE(::testing::Message() << given.vocab << " " << type);
  const auto batch = static_cast<std::int64_t>(given.texts.size());
  const torch::Tensor logits = random_leaf({batch, given.frames, given.vocab}, type, 2);
  const torch::Tensor g = torch::rand({batch}) + 0.1;
  ASSERT_TRUE(has_cuda_ctc(logits, given.text_lengths()));
  const torch::Tensor losses =
      cuda_ctc_loss(logits, given.frame_lengths, given.text().to(torch::kCUDA),
                    given.text_lengths(), /*zero_infinity=*/true);
  ASSERT_EQ(losses.scalar_type(), torch::kFloat32);
  const torch::Tensor got = torch::autograd::grad({losses}, {logits}, {g.to(torch::kCUDA)})[0];
  ASSERT_EQ(got.scalar_type(), type);

  const torch::Tensor exact = double_leaf(logits.cpu());
  const torch::Tensor expected = torch::ctc_loss(
      torch::log_softmax(exact, -1).transpose(0, 1), given.text().clamp_min(0), given.frame_lengths,
      given.text_lengths(), /*blank=*/0, at::Reduction::None, /*zero_infinity=*/true);
  EXPECT_TRUE(close(losses.cpu(), expected, 1e-6));
  const torch::Tensor expected_grad =
      torch::autograd::grad({expected}, {exact}, {g.to(torch::kFloat64)})[0];
  EXPECT_TRUE(close(got.cpu(), expected_grad, type == torch::kFloat32 ? 5e-5 : 5e-3));
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t end = given.frame_lengths[static_cast<std::size_t>(b)];
    EXPECT_EQ(got[b].narrow(0, end, given.frames - end).abs().sum().item<double>(), 0);
  }
}

TEST_F(SpeechCudaCtc, LossAndGradientEqualTorchsInEveryType) {
  for (const auto type : kTypes) {
    for (const std::int64_t vocab : {9, 16, 1000})
      expect_ctc_equals_torchs(small_case(vocab), type);
    expect_ctc_equals_torchs(large_case(), type);
  }
}

TEST_F(SpeechCudaCtc, ManyMoreLabelsThanThreads) {
  CtcCase given{.frames = 2300, .vocab = 40, .frame_lengths = {2300, 1900}, .texts = {{}, {7}}};
  for (std::int64_t n = 0; n < 1100; ++n) given.texts[0].push_back(1 + n * 3 % 39);
  expect_ctc_equals_torchs(given, torch::kFloat32);
}

TEST_F(SpeechCudaCtc, ATextTooLongCostsNothingOrInfinity) {
  const CtcCase given = small_case(16);
  const torch::Tensor logits = random_leaf({5, given.frames, 16}, torch::kFloat32);
  for (const bool zero_infinity : {true, false}) {
    const torch::Tensor losses =
        cuda_ctc_loss(logits, given.frame_lengths, given.text().to(torch::kCUDA),
                      given.text_lengths(), zero_infinity);
    const double too_long = losses[3].item<double>();
    EXPECT_EQ(too_long, zero_infinity ? 0 : std::numeric_limits<double>::infinity());
    EXPECT_TRUE(
        torch::cat({losses.narrow(0, 0, 3), losses.narrow(0, 4, 1)}).isfinite().all().item<bool>());
    if (!zero_infinity) continue;
    const torch::Tensor grad = torch::autograd::grad({losses.sum()}, {logits})[0];
    EXPECT_EQ(grad[3].abs().max().item<double>(), 0);
  }
}

TEST_F(SpeechCudaCtc, OneBadFrameSpoilsItsUtteranceOnly) {
  const CtcCase given = small_case(16);
  torch::Tensor logits = torch::randn({5, given.frames, 16}, torch::kCUDA);
  logits[1][4][2] = std::numeric_limits<float>::quiet_NaN();
  const torch::Tensor losses =
      cuda_ctc_loss(logits, given.frame_lengths, given.text().to(torch::kCUDA),
                    given.text_lengths(), /*zero_infinity=*/true);
  EXPECT_TRUE(losses[1].isnan().item<bool>());
  EXPECT_EQ(losses.isnan().sum().item<std::int64_t>(), 1);
}

TEST_F(SpeechCudaCtc, GradientsRepeatToTheLastBit) {
  const CtcCase given = large_case();
  const torch::Tensor logits = random_leaf({3, given.frames, given.vocab}, torch::kBFloat16);
  const auto gradient = [&] {
    const torch::Tensor losses =
        cuda_ctc_loss(logits, given.frame_lengths, given.text().to(torch::kCUDA),
                      given.text_lengths(), /*zero_infinity=*/true);
    return torch::autograd::grad({losses.sum()}, {logits})[0];
  };
  const torch::Tensor once = gradient();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(torch::equal(once, gradient()));
}

}  // namespace
}  // namespace tutti::speech
