// The GPU kernels at both ends of a model, features and the attention loss, against the CPU's.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "tests/speech/gpu_models.h"
#include "tests/speech/vectors.h"
#include "tutti/speech/frontend/log_mel.h"
#include "tutti/speech/frontend/spec_augment.h"
#include "tutti/speech/losses/label_smoothing.h"
#include "tutti/speech/ops/gpu/log_mel.h"
#include "tutti/speech/ops/gpu/smoothed_loss.h"

namespace tutti::speech {
namespace {

using SpeechCudaSignal = GpuTest;

TEST_F(SpeechCudaSignal, FeaturesEqualTheCpus) {
  torch::manual_seed(5);
  std::vector<LogMelSettings> cases(5);
  cases[0].win_length = 400;
  cases[0].hop_length = 160;
  cases[1].n_mels = 128;
  cases[2].center = false;
  cases[2].hop_length = 100;
  cases[3].normalized = true;
  cases[3].htk = true;
  cases[3].fmin = 40;
  cases[4].n_fft = 1024;  // torch's operations
  for (const LogMelSettings& settings : cases) {
    SCOPED_TRACE(::testing::Message() << settings.n_fft << " " << settings.hop_length);
    LogMel on_cpu(Build{}, settings), on_gpu(Build{torch::kCUDA}, settings);
    on_cpu->eval();
    on_gpu->eval();
    // With a silent stretch, the shortest that can be mirrored, and more columns than samples.
    torch::Tensor speech = 0.3 * torch::randn({4, 20000});
    speech[1].narrow(0, 3000, 4000).zero_();
    const Lengths lengths{19000, 16001, 1030, 7777};
    const Features expected = on_cpu->forward(speech, lengths),
                   got = on_gpu->forward(speech.to(torch::kCUDA), lengths);
    EXPECT_EQ(got.lengths, expected.lengths);
    ASSERT_EQ(got.values.sizes(), expected.values.sizes());
    // Logarithms: what matters is the difference itself.
    EXPECT_LT((got.values.cpu() - expected.values).abs().max().item<double>(), 2e-3);
    EXPECT_LT((got.values.cpu() - expected.values).abs().mean().item<double>(), 1e-5);
  }
}

TEST_F(SpeechCudaSignal, FeaturesFollowFiltersThatAreLoaded) {
  LogMel frontend(Build{torch::kCUDA}, LogMelSettings{});
  frontend->eval();
  const torch::Tensor speech = 0.1 * torch::randn({1, 8000}, torch::kCUDA);
  const torch::Tensor before = frontend->forward(speech, {8000}).values;
  torch::NoGradGuard no_grad;
  for (auto& buffer : frontend->buffers()) buffer.mul_(2);
  const torch::Tensor after = frontend->forward(speech, {8000}).values;
  EXPECT_LT((after - before - std::log(2.0)).abs().max().item<double>(), 1e-4);
}

TEST_F(SpeechCudaSignal, AttentionLossEqualsTheCpusInEveryType) {
  torch::manual_seed(7);
  struct Case {
    std::int64_t classes;
    double smoothing;
    bool by_tokens, with_prompt;
  };
  for (const auto& [classes, smoothing, by_tokens, with_prompt] :
       {Case{5000, 0.1, false, false}, Case{37, 0.1, true, true}, Case{64, 0.0, false, true}})
    for (const auto type : {torch::kFloat32, torch::kFloat16, torch::kBFloat16}) {
      SCOPED_TRACE(::testing::Message() << classes << " " << type);
      const torch::Tensor logits =
          (3 * torch::randn({3, 9, classes})).to(type).to(torch::kCUDA).requires_grad_();
      ASSERT_TRUE(gpu::can_fuse_smoothed_loss(logits));
      torch::Tensor targets = torch::randint(0, classes, {3, 9}, torch::kInt64);
      targets[0] = logits.detach()[0].argmax(-1).cpu();  // some are right
      const Lengths lengths{9, 1, 5}, begins = with_prompt ? Lengths{2, 0, 4} : Lengths{};
      const AttentionLoss got = label_smoothing_loss(logits, targets.to(torch::kCUDA), lengths,
                                                     smoothing, by_tokens, begins);
      const torch::Tensor wide = logits.detach().cpu().to(torch::kFloat64).requires_grad_();
      const AttentionLoss expected =
          label_smoothing_loss(wide, targets, lengths, smoothing, by_tokens, begins);
      EXPECT_NEAR(got.loss.item<double>() / expected.loss.item<double>(), 1, 1e-5);
      EXPECT_NEAR(got.accuracy.item<double>(), expected.accuracy.item<double>(), 1e-6);
      (2.5 * got.loss).backward();
      (2.5 * expected.loss).backward();
      EXPECT_TRUE(close(logits.grad().cpu(), wide.grad(),
                        type == torch::kFloat32   ? 1e-5
                        : type == torch::kFloat16 ? 2e-3
                                                  : 1e-2));
    }
}

TEST_F(SpeechCudaSignal, AttentionLossOfNoTokenIsNothing) {
  const torch::Tensor logits = torch::randn({2, 4, 40}, torch::kCUDA).requires_grad_();
  const auto on_gpu = torch::TensorOptions(torch::kCUDA);
  const AttentionLoss loss = gpu::fused_smoothed_loss(
      logits, torch::zeros({2, 4}, on_gpu.dtype(torch::kInt64)),
      torch::zeros({2}, on_gpu.dtype(torch::kInt64)), {}, torch::ones({1}, on_gpu), 0.1);
  EXPECT_EQ(loss.loss.item<float>(), 0);
  EXPECT_EQ(loss.accuracy.item<float>(), 0);
  loss.loss.backward();
  EXPECT_EQ(logits.grad().abs().max().item<float>(), 0);
}

}  // namespace
}  // namespace tutti::speech
