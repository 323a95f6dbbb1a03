// Layers fused for GPUs: the same results, gradients and dropped elements as on the CPU.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/speech/gpu_models.h"
#include "tests/speech/vectors.h"
#include "tutti/speech/frontend/spec_augment.h"
#include "tutti/speech/ops/fused.h"
#include "tutti/speech/ops/gpu/fused.h"
#include "tutti/trainer/precision.h"

namespace tutti::speech {
namespace {

using SpeechFused = GpuTest;

using Tensors = std::vector<torch::Tensor>;

Tensors random_tensors(const std::vector<std::vector<std::int64_t>>& shapes) {
  torch::manual_seed(3);
  Tensors all;
  for (const auto& shape : shapes) all.push_back(torch::randn(shape));
  return all;
}

Tensors on(torch::Device device, const Tensors& all) {
  Tensors moved;
  for (const auto& x : all) moved.push_back(x.detach().to(device).requires_grad_());
  return moved;
}

// Results and gradients of `layer` on a device, with the same random numbers for dropout.
template <class Layer>
Tensors run_on(torch::Device device, const Tensors& inputs, Layer layer) {
  const Tensors x = on(device, inputs);
  torch::manual_seed(11);
  Tensors results = layer(x);
  torch::manual_seed(12);
  torch::Tensor loss = torch::zeros({}, device);
  for (const auto& y : results) loss = loss + (y * torch::randn(y.sizes()).to(device)).sum();
  for (const auto& g : torch::autograd::grad({loss}, x)) results.push_back(g);
  for (auto& y : results) y = y.detach().cpu().to(torch::kFloat32);
  return results;
}

template <class Layer>
void expect_same_on_both(const Tensors& inputs, Layer layer) {
  const Tensors expected = run_on(torch::kCPU, inputs, layer);
  const Tensors got = run_on(torch::kCUDA, inputs, layer);
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(close(got[i], expected[i], 2e-5)) << i;
}

LayerNorm norm_with(const torch::Tensor& weight, const torch::Tensor& bias) {
  LayerNorm norm(Build{.device = torch::kMeta}, weight.size(0));
  norm->weight = weight;
  norm->bias = bias;
  return norm;
}

TEST_F(SpeechFused, SumsAndNormsEqualTheCpus) {
  for (const std::int64_t width : {128, 256, 384, 512, 768, 1024}) {
    SCOPED_TRACE(width);
    const Tensors inputs =
        random_tensors({{3, 37, width}, {3, 37, width}, {width}, {width}, {width}, {width}});
    expect_same_on_both(inputs, [](const Tensors& x) -> Tensors {
      EXPECT_EQ(gpu::can_fuse_norm(x[0], *norm_with(x[2], x[3])), x[0].is_cuda());
      const auto two =
          add_and_norm(x[0], x[1], 0.5, 0.3, norm_with(x[2], x[3]), norm_with(x[4], x[5]));
      const auto one = add_and_norm(two.sum, two.first, 2.0, 0.1, norm_with(x[4], x[3]));
      const auto passed = with_norms(two.sum, norm_with(x[2], x[3]), norm_with(x[4], x[5]));
      // The sum of `one` is not used: its gradient is undefined.
      return {passed.sum,   two.second,    one.first,
              passed.first, passed.second, norm_of(two.sum, norm_with(x[2], x[5]))};
    });
  }
}

// Sums over more rows than blocks walk at a time.
TEST_F(SpeechFused, SumsOverManyRowsEqualTheCpus) {
  const torch::Tensor valid =
      torch::arange(901).unsqueeze(0) < torch::tensor({901, 500, 7, 901, 850}).unsqueeze(1);
  expect_same_on_both(
      random_tensors(
          {{5, 901, 256}, {5, 901, 256}, {256}, {256}, {256}, {256}, {256, 1, 31}, {256}}),
      [&](const Tensors& x) -> Tensors {
        const auto mask = valid.to(x[0].device());
        const auto sum =
            add_and_norm(x[0], x[1], 0.5, 0.3, norm_with(x[2], x[3]), norm_with(x[4], x[5]));
        return {sum.first, sum.second, join_dropped(x[0], x[1], mask, 0.4),
                depthwise_conv(x[1], x[6], x[7], /*residual=*/true)};
      });
}

// A model in bf16: everything of one type, as when decoding.
TEST_F(SpeechFused, HalfPrecisionModelsAreNearTheExactOnes) {
  const Tensors inputs = random_tensors(
      {{2, 149, 256}, {2, 149, 256}, {256}, {256}, {2, 149, 512}, {256, 1, 31}, {256}});
  const auto layer = [](const Tensors& x) -> Tensors {
    Conv1d conv(Build{.device = torch::kMeta},
                ConvShape{.in = 256, .out = 256, .kernel = 31, .groups = 256});
    conv->weight = x[5];
    conv->bias = x[6];
    const LayerNorm norm = norm_with(x[2], x[3]);
    EXPECT_EQ(gpu::can_fuse_norm(x[0], *norm), x[0].is_cuda());
    EXPECT_EQ(gpu::can_fuse_gate(x[4], *norm, *conv), x[4].is_cuda());
    const auto sum = add_and_norm(x[0], x[1], 0.5, 0.0, norm, norm_with(x[3], x[2]));
    return {sum.sum, sum.first, sum.second, gated_convolution(x[4], norm, conv, {}, 0.0)};
  };
  Tensors halves, exact;
  for (const auto& x : inputs) {
    halves.push_back(x.to(torch::kBFloat16));
    exact.push_back(halves.back().to(torch::kFloat64));
  }
  const Tensors expected = run_on(torch::kCPU, exact, layer);
  const Tensors got = run_on(torch::kCUDA, halves, layer);
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(close(got[i], expected[i], 3e-2)) << i;
}

TEST_F(SpeechFused, GatedConvolutionEqualsTheCpus) {
  const torch::Tensor valid =
      torch::arange(150).unsqueeze(0) < torch::tensor({150, 31, 2}).unsqueeze(1);
  for (const bool padded : {false, true})
    for (const int kernel : {31, 15, 3}) {
      const Tensors inputs = random_tensors({{3, 150, 512}, {256}, {256}, {256, 1, kernel}, {256}});
      expect_same_on_both(inputs, [&](const Tensors& x) -> Tensors {
        Conv1d conv(Build{.device = torch::kMeta},
                    ConvShape{.in = 256, .out = 256, .kernel = kernel, .groups = 256});
        conv->weight = x[3];
        conv->bias = x[4];
        const auto mask = padded ? valid.to(x[0].device()) : torch::Tensor();
        return {gated_convolution(x[0], norm_with(x[1], x[2]), conv, mask, 0.2)};
      });
    }
}

TEST_F(SpeechFused, JoinQueriesAndDropoutEqualTheCpus) {
  const torch::Tensor valid = torch::arange(21).unsqueeze(0) < torch::tensor({21, 9}).unsqueeze(1);
  expect_same_on_both(
      random_tensors({{2, 21, 64}, {2, 21, 64}, {4, 16}, {4, 16}, {64, 1, 31}, {64}}),
      [&](const Tensors& x) -> Tensors {
        const auto mask = valid.to(x[0].device());
        const auto q = position_queries(x[0], x[2], x[3], 0.25);
        return {join_dropped(x[0], x[1], mask, 0.4),
                join_dropped(x[0], x[1], {}, 0.0),
                q.with_u_BTHd,
                q.with_v_HMd,
                apply_dropout(x[0], 0.5, true),
                depthwise_conv(x[0], x[4], x[5], /*residual=*/true)};
      });
}

// Under autocast, against float64 on the CPU.
TEST_F(SpeechFused, ProductsUnderAutocastAreNearTheExactOnes) {
  const Tensors inputs = random_tensors({{5, 33, 64}, {96, 64}, {96}, {64, 96}, {64}});
  const auto layer = [](const Tensors& x) -> Tensors {
    const auto linear = [](const torch::Tensor& weight, const torch::Tensor& bias) {
      Linear result(Build{.device = torch::kMeta}, weight.size(1), weight.size(0));
      result->weight = weight;
      result->bias = bias;
      return result;
    };
    const Linear w1 = linear(x[1], x[2]), w2 = linear(x[3], x[4]);
    const auto three = products(x[0], w1, w1, w1);
    return {feed_forward(x[0], w1, w2, Activation::kSwish, 0), product(x[0], x[1], {}),
            three.first + three.second * three.third,
            feed_forward(x[0], w1, w2, Activation::kRelu, 0)};
  };
  Tensors exact;
  for (const auto& x : inputs) exact.push_back(x.to(torch::kFloat64));
  const Tensors expected = run_on(torch::kCPU, exact, layer);
  for (const auto type : {torch::kBFloat16, torch::kFloat16}) {
    const trainer::AutocastScope scope(torch::kCUDA, type);
    const Tensors got = run_on(torch::kCUDA, inputs, layer);
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(close(got[i], expected[i], type == torch::kFloat16 ? 1e-2 : 8e-2)) << i;
  }
}

// The gradient of a product's bias may be made by the layer behind it; not where the product's result
// goes two ways.
TEST_F(SpeechFused, BiasGradientsAreSumsOverAllRows) {
  const Tensors inputs = random_tensors({{7, 301, 128}, {128, 128}, {128}, {128}, {128}});
  const auto layer = [](const Tensors& x) -> Tensors {
    const LayerNorm norm = norm_with(x[3], x[4]);
    const auto y = [&] { return product(x[0], x[1], x[2]); };
    const torch::Tensor twice = y();
    return {add_and_norm(x[0], y(), 0.5, 0, norm).first,
            add_and_norm(x[0], twice, 2.0, 0, norm).first + twice, join_dropped(y(), y(), {}, 0)};
  };
  Tensors exact;
  for (const auto& x : inputs) exact.push_back(x.to(torch::kFloat64));
  const Tensors expected = run_on(torch::kCPU, exact, layer);
  const trainer::AutocastScope scope(torch::kCUDA, torch::kBFloat16);
  const Tensors got = run_on(torch::kCUDA, inputs, layer);
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(close(got[i], expected[i], 5e-2)) << i;
}

TEST_F(SpeechFused, SpecAugmentHidesAndWarpsTheSame) {
  SpecAugmentSettings settings;
  settings.time_mask_width_ratio_range = std::pair{0.0, 0.1};
  settings.num_time_mask = 5;
  for (const bool with_zero : {true, false}) {
    settings.replace_with_zero = with_zero;
    const Features features{torch::randn({4, 211, 80}), {211, 190, 60, 9}};
    const auto augmented = [&](torch::Device device) {
      torch::manual_seed(5);
      return spec_augment({features.values.to(device), features.lengths}, settings).values.cpu();
    };
    const torch::Tensor expected = augmented(torch::kCPU);
    EXPECT_TRUE(close(augmented(torch::kCUDA), expected, 1e-5));
    EXPECT_FALSE(close(expected, features.values, 0.1));
  }
}

AsrModel make_model(const std::string& encoder, const std::string& extra) {
  return model_from(
      "vocab_size: 17\nencoder: " + encoder +
      "\nencoder_conf: {output_size: 128, attention_heads: 4, linear_units: 256, num_blocks: 2, "
      "dropout_rate: 0.2, positional_dropout_rate: 0.1, attention_dropout_rate: 0" +
      extra +
      "}\ndecoder: transformer\ndecoder_conf: {dropout_rate: 0.1, positional_dropout_rate: 0.1, "
      "self_attention_dropout_rate: 0, src_attention_dropout_rate: 0}\n"
      "model_conf: {ctc_weight: 0.3}\nfrontend_conf: {n_mels: 40}\n");
}

TEST_F(SpeechFused, TrainingDropsTheSameElementsAsTheCpu) {
  for (const std::string encoder : {"transformer", "conformer", "e_branchformer"}) {
    SCOPED_TRACE(encoder);
    const std::string extra = encoder == "e_branchformer"
                                  ? ", cgmlp_linear_units: 512, macaron_ffn: true, use_ffn: true"
                                  : (encoder == "conformer" ? ", macaron_style: true" : "");
    const Gradients expected = loss_and_gradients(make_model(encoder, extra), torch::kCPU);
    const Gradients got = loss_and_gradients(make_model(encoder, extra), torch::kCUDA);
    EXPECT_TRUE(close(got.at("loss"), expected.at("loss"), 1e-4));
    EXPECT_LT(distance(got, expected), 1e-3);

    // Again with bf16 products, and with layers that are computed twice: the same drops.
    const trainer::AutocastScope scope(torch::kCUDA, torch::kBFloat16);
    const Gradients mixed = loss_and_gradients(make_model(encoder, extra), torch::kCUDA);
    EXPECT_LT(distance(mixed, expected), 0.05);
    EXPECT_TRUE(close(mixed.at("loss"), expected.at("loss"), 0.02));
    if (encoder == "e_branchformer") {
      const Gradients twice = loss_and_gradients(
          make_model(encoder, extra + ", gradient_checkpoint_layers: [1, 2]"), torch::kCUDA);
      // Products may be done in another way then, with other roundings; other drops would be far
      // off.
      EXPECT_LT(distance(twice, mixed), 1e-2);
    }
  }
}

// How to multiply is asked once for about as many rows.
TEST_F(SpeechFused, ProductsInHalfPrecisionAreTorchsForAnyNumberOfRows) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(3);
  for (const auto type : {torch::kBFloat16, torch::kFloat16}) {
    const auto like = torch::TensorOptions(torch::kCUDA).dtype(type);
    const torch::Tensor weight = 0.1 * torch::randn({96, 64}, like),
                        bias = torch::randn({96}, like);
    for (const std::int64_t rows : {1, 5, 160, 300, 384, 385, 500, 511, 2999, 3001, 3072}) {
      const torch::Tensor x = torch::randn({rows, 64}, like);
      for (const torch::Tensor& added : {bias, torch::Tensor()}) {
        const torch::Tensor expected =
            torch::linear(x.to(torch::kFloat64), weight.to(torch::kFloat64),
                          added.defined() ? added.to(torch::kFloat64) : added);
        EXPECT_TRUE(close(product(x, weight, added).to(torch::kFloat64), expected, 0.01)) << rows;
      }
    }
  }
}

}  // namespace
}  // namespace tutti::speech
