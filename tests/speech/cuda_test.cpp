// Models on a GPU: the same losses and gradients as on the CPU, with our kernels and with torch's.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>

#include "tests/speech/gpu_models.h"
#include "tests/speech/vectors.h"
#include "tutti/speech/decoding/asr_search.h"
#include "tutti/speech/ops/gpu/cuda_ops.h"

namespace tutti::speech {
namespace {

using SpeechCuda = GpuTest;

AsrModel make_model(const std::string& encoder, const std::string& decoder) {
  return model_from("vocab_size: 9\nencoder: " + encoder +
                    "\nencoder_conf: {output_size: 24, attention_heads: 2, linear_units: 40, "
                    "num_blocks: 2, dropout_rate: 0, positional_dropout_rate: 0, "
                    "attention_dropout_rate: 0}\ndecoder: " +
                    decoder +
                    (decoder == "transformer"
                         ? "\ndecoder_conf: {dropout_rate: 0, positional_dropout_rate: 0}"
                         : "") +
                    "\nmodel_conf: {ctc_weight: 0.3}\nfrontend_conf: {n_mels: 20}\n");
}

TEST_F(SpeechCuda, LossesAndGradientsEqualTheCpus) {
  for (const std::string encoder : {"transformer", "conformer", "e_branchformer"})
    for (const std::string decoder : {"transformer", "transducer"})
      for (const bool deterministic : {false, true}) {
        SCOPED_TRACE(encoder + " " + decoder + (deterministic ? " deterministic" : ""));
        at::globalContext().setDeterministicAlgorithms(deterministic, /*warn_only=*/true);
        const Gradients expected = loss_and_gradients(make_model(encoder, decoder), torch::kCPU);
        const Gradients got = loss_and_gradients(make_model(encoder, decoder), torch::kCUDA);
        EXPECT_TRUE(close(got.at("loss"), expected.at("loss"), 1e-4));
        EXPECT_LT(distance(got, expected), 1e-3);
      }
  at::globalContext().setDeterministicAlgorithms(false, false);
}

TEST_F(SpeechCuda, DepthwiseConvolutionEqualsTorchsInEveryType) {
  // Also: blocks with several parts of the batch, the last with fewer; channels that cannot be read 16
  // bytes at a time, an odd number of them; shorter than the kernel.
  using Case = std::array<std::int64_t, 4>;
  for (const auto& [batch, channels, frames, kernel] :
       {Case{3, 512, 371, 31}, Case{3, 70, 5, 3}, Case{3, 64, 64, 15}, Case{13, 512, 371, 31},
        Case{67, 512, 40, 31}, Case{67, 512, 40, 15}, Case{67, 512, 40, 3}, Case{30, 515, 90, 31},
        Case{30, 518, 65, 15}, Case{1, 70, 200, 31}, Case{1, 3, 1, 31}, Case{1, 256, 129, 63}}) {
    for (const auto type : {torch::kFloat32, torch::kFloat16, torch::kBFloat16}) {
      const auto options = torch::TensorOptions(torch::kCUDA);
      torch::Tensor x = torch::randn({batch, frames, channels}, options).to(type).requires_grad_();
      torch::Tensor w = torch::randn({channels, 1, kernel}, options).to(type).requires_grad_();
      torch::Tensor b = torch::randn({channels}, options).to(type).requires_grad_();
      const torch::Tensor g = torch::randn({batch, frames, channels}, options).to(type);
      ASSERT_TRUE(has_cuda_ops(x));
      const torch::Tensor y = cuda_depthwise_conv(x, w, b);
      const auto got = torch::autograd::grad({y}, {x, w, b}, {g});
      const auto as_double = [](const torch::Tensor& t) {
        return t.detach().to(torch::kFloat64).requires_grad_();
      };
      const torch::Tensor xd = as_double(x), wd = as_double(w), bd = as_double(b);
      const torch::Tensor yd =
          torch::conv1d(xd.transpose(1, 2), wd, bd, 1, (kernel - 1) / 2, 1, channels)
              .transpose(1, 2);
      const auto expected = torch::autograd::grad({yd}, {xd, wd, bd}, {g.to(torch::kFloat64)});
      const double tolerance = type == torch::kFloat32 ? 1e-5 : 1e-2;
      EXPECT_TRUE(close(y, yd, tolerance));
      for (std::size_t i = 0; i < 3; ++i)
        EXPECT_TRUE(close(got[i], expected[i], tolerance))
            << i << " " << type << " " << batch << " x " << frames << " x " << channels << ", "
            << kernel;
    }
  }
}

TEST_F(SpeechCuda, RelativeShiftPicksTheRightColumns) {
  const std::int64_t heads = 2, batch = 3, frames = 13, columns = 32;
  const auto options = torch::TensorOptions(torch::kCUDA);
  torch::Tensor scores = torch::randn({heads, batch, frames, columns}, options).requires_grad_();
  const torch::Tensor key_bias = torch::randn({batch, 1, 1, frames}, options);
  const torch::Tensor out = cuda_relative_shift(scores, key_bias);
  torch::Tensor expected = scores.view({heads, batch, frames * columns})
                               .narrow(2, frames - 1, frames * (columns - 1))
                               .view({heads, batch, frames, columns - 1})
                               .narrow(3, 0, frames)
                               .transpose(0, 1) +
                           key_bias;
  EXPECT_TRUE(close(out, expected, 1e-6));
  const torch::Tensor g = torch::randn_like(expected);
  EXPECT_TRUE(close(torch::autograd::grad({out}, {scores}, {g})[0],
                    torch::autograd::grad({expected}, {scores}, {g})[0], 1e-6));
}

AsrModel make_search_model() {
  const std::string text =
      "vocab_size: 40\nencoder: transformer\nencoder_conf: {output_size: 32, attention_heads: 2, "
      "linear_units: 40, num_blocks: 1, input_layer: conv2d}\ndecoder: transformer\n"
      "decoder_conf: {attention_heads: 2, linear_units: 40, num_blocks: 2}\n"
      "model_conf: {ctc_weight: 0.3}\nfrontend_conf: {n_mels: 20}\n";
  config::Problems problems;
  const AsrSettings settings =
      read_asr_model_block(config::parse_yaml(text, "model.yaml"), false, problems);
  EXPECT_EQ(problems.describe(), "");
  torch::manual_seed(5);
  AsrModel model(Build{}, settings);
  model->eval();
  torch::NoGradGuard no_grad;
  // Sharper choices, so that the order of the hypotheses does not hang on rounding.
  for (auto& item : model->decoder->named_parameters())
    if (item.key().find("output_layer.weight") != std::string::npos) item.value().mul_(12);
  return model;
}

torch::Tensor seeded_memory() {
  torch::manual_seed(3);
  return torch::randn({6, 60, 32});
}

// Hypotheses longer than the first room of the cache, utterances that leave the batch on the way.
TEST_F(SpeechCuda, RecordedStepsFindTheHypothesesOfTheCpu) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor memory = seeded_memory();
  const Lengths lengths = {60, 20, 9, 31, 12, 44};
  for (const std::int64_t beam : {1, 4})
    for (const double ctc : {0.0, 0.3})
      for (const std::vector<std::int64_t>& prompt :
           {std::vector<std::int64_t>{}, std::vector<std::int64_t>{39, 7, 3}}) {
        SCOPED_TRACE(fmt::format("beam {} ctc {} prompt {}", beam, ctc, prompt.size()));
        const auto search = [&](torch::Device device) {
          AsrModel model = make_search_model();
          model->to(device);
          return BeamSearch(search_model(model), {.beam_size = beam,
                                                  .ctc_weight = ctc,
                                                  .penalty = 1.5,
                                                  .maxlenratio = 2.0,
                                                  .nbest = beam,
                                                  .prompt = prompt})
              .decode(memory.to(device), lengths);
        };
        const auto expected = search(torch::kCPU), got = search(torch::kCUDA);
        for (std::size_t u = 0; u < expected.size(); ++u) {
          ASSERT_EQ(got[u].nbest.size(), expected[u].nbest.size()) << u;
          ASSERT_FALSE(expected[u].nbest.empty()) << u;
          EXPECT_EQ(got[u].nbest[0].tokens, expected[u].nbest[0].tokens) << u;
          for (std::size_t i = 0; i < expected[u].nbest.size(); ++i)
            EXPECT_NEAR(got[u].nbest[i].score, expected[u].nbest[i].score, 1e-2) << u << " " << i;
        }
        // CTC allows no more tokens than frames.
        EXPECT_GT(expected[0].nbest[0].tokens.size(), ctc == 0 ? 64U : 0U);
      }
}

// One model decodes batch after batch: steps that were recorded for one serve the next, which is
// shorter, of one length, or longer than all before.
TEST_F(SpeechCuda, RecordedStepsServeBatchesOfOtherLengths) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor memory = torch::randn({6, 200, 32});
  AsrModel on_cpu = make_search_model(), on_gpu = make_search_model();
  on_gpu->to(torch::kCUDA);
  const BeamSearchOptions options{
      .beam_size = 4, .ctc_weight = 0, .penalty = 1.5, .maxlenratio = -20};
  for (const Lengths& lengths :
       {Lengths{120, 80, 44, 90, 99, 100}, Lengths{100, 99, 98, 97, 96, 30},
        Lengths{97, 97, 97, 97, 97, 97}, Lengths{70, 60, 50, 65, 66, 67},
        Lengths{200, 60, 50, 65, 66, 67}, Lengths{100, 1, 98, 2, 96, 30}}) {
    SCOPED_TRACE(lengths[0]);
    const torch::Tensor frames = memory.narrow(1, 0, lengths[0]);
    const auto expected = BeamSearch(search_model(on_cpu), options).decode(frames, lengths),
               got = BeamSearch(search_model(on_gpu), options)
                         .decode(frames.to(torch::kCUDA), lengths);
    for (std::size_t u = 0; u < expected.size(); ++u) {
      EXPECT_EQ(got[u].nbest.at(0).tokens, expected[u].nbest.at(0).tokens) << u;
      EXPECT_NEAR(got[u].nbest[0].score, expected[u].nbest[0].score, 1e-2) << u;
    }
  }
}

}  // namespace
}  // namespace tutti::speech
