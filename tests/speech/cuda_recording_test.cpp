// Training steps that are launched as one (trainer.cuda_graphs): the same losses, gradients and dropped
// elements as layer by layer.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <tuple>

#include "tests/speech/gpu_models.h"
#include "tests/speech/vectors.h"
#include "tutti/speech/models/asr_trainable.h"
#include "tutti/speech/ops/gpu/recorded_stack.h"
#include "tutti/trainer/loop.h"
#include "tutti/trainer/precision.h"
#include "tutti/trainer/world.h"

namespace tutti::speech {
namespace {

using SpeechRecording = GpuTest;

AsrModel make_model(const std::string& encoder, double dropout, const std::string& extra = "") {
  return model_from(fmt::format(
      "vocab_size: 17\nencoder: {}\nencoder_conf: {{output_size: 128, attention_heads: 4, "
      "linear_units: 256, num_blocks: 2, dropout_rate: {}, positional_dropout_rate: {}, "
      "attention_dropout_rate: {}{}{}}}\ndecoder: transformer\ndecoder_conf: {{dropout_rate: {}, "
      "positional_dropout_rate: {}}}\n"
      "model_conf: {{ctc_weight: 0.3}}\nfrontend_conf: {{n_mels: 40}}\n",
      encoder, dropout, dropout, dropout,
      encoder == "e_branchformer" ? ", cgmlp_linear_units: 512, macaron_ffn: true, use_ffn: true"
                                  : "",
      extra, dropout, dropout));
}

trainer::Batch random_batch(const Lengths& samples) {
  const auto size = static_cast<std::int64_t>(samples.size());
  trainer::Batch batch;
  batch.tensors["speech"] = 0.1 * torch::randn({size, max_length(samples)});
  batch.tensors["speech_lengths"] = torch::tensor(samples);
  batch.tensors["text"] = torch::randint(1, 16, {size, 5}, torch::kInt64);
  batch.tensors["text_lengths"] = torch::full({size}, 5, torch::kInt64);
  batch.utt_ids.assign(samples.size(), "random");
  return batch;
}

// Of one shape after the other; some need no padding to be recorded, others do.
std::vector<trainer::Batch> random_batches() {
  torch::manual_seed(21);
  return {random_batch({33000, 33000, 33000, 33000}), random_batch({20000, 17000}),
          random_batch({30000, 29000, 16000}), random_batch({33000, 31000, 20000, 17000})};
}

struct Trained {
  std::vector<double> losses;  // of every step
  std::map<std::string, torch::Tensor> weights;
  std::int64_t recorded = 0;
};

// Notes every loss on the way.
class Watched final : public trainer::ModuleModel {
 public:
  explicit Watched(const AsrModel& model) : ModuleModel(model.ptr()), model_(model) {}
  trainer::StepOutput training_step(const trainer::Batch& batch) override {
    trainer::StepOutput output = model_.training_step(batch);
    losses.push_back(output.loss.detach());
    return output;
  }
  std::vector<torch::Tensor> losses;

 private:
  AsrTrainable model_;
};

Trained train(AsrModel model, const std::string& graphs, trainer::LoopSettings settings,
              const trainer::OptimizerOptions& optimizer = {.lr = 1e-4},
              const std::string& strategy_name = "single") {
  Watched watched(model);
  trainer::MemorySource source(random_batches(), 0, 1);
  trainer::World world = trainer::join_world({}, {.device = "cuda:0"});  // of one rank
  const auto strategy = strategy_name == "single"
                            ? trainer::make_single_strategy()
                            : trainer::make_ddp_strategy(*world.collectives, *world.control,
                                                         {.find_unused = strategy_name != "ddp"});
  settings.cuda_graphs = graphs;
  settings.device = "cuda:0";
  settings.show_progress = false;
  settings.num_sanity_val_steps = 0;
  settings.gradient_clip_val = 1;
  settings.seed = 6;
  trainer::OptimizerSpec spec;
  spec.options = optimizer;
  trainer::FitInputs inputs{.model = watched,
                            .train = source,
                            .strategy = *strategy,
                            .control = *world.control,
                            .settings = settings,
                            .optimizers = {spec}};
  trainer::fit(inputs);
  Trained result;
  for (const torch::Tensor& loss : watched.losses) result.losses.push_back(loss.item<double>());
  for (const auto& item : model->named_parameters())
    result.weights[item.key()] = item.value().detach().cpu();
  result.recorded = model->num_recorded_passes();
  return result;
}

// Attention's backward pass on a GPU adds in any order, and Adam makes a step of a rounding error
// where a gradient is nearly zero: runs drift apart, whether recorded or not.
void expect_same(const Trained& got, const Trained& expected, double at_first, double later) {
  ASSERT_EQ(got.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < got.losses.size(); ++i)
    EXPECT_NEAR(got.losses[i] / expected.losses[i], 1, i < 20 ? at_first : later) << i;
  EXPECT_LT(got.losses.back(), got.losses.front());
  EXPECT_EQ(expected.recorded, 0);
}

// Without dropout: other elements would drop of batches that are padded.
TEST_F(SpeechRecording, TwoHundredStepsGiveTheSameLosses) {
  const std::tuple<std::string, trainer::PrecisionMode, double> cases[] = {
      {"e_branchformer", trainer::PrecisionMode::k32, 1e-3},
      {"e_branchformer", trainer::PrecisionMode::kBf16Mixed, 2e-2},
      {"transformer", trainer::PrecisionMode::k16Mixed, 2e-2}};
  for (const auto& [encoder, precision, at_first] : cases) {
    SCOPED_TRACE(encoder + " " + to_string(precision));
    trainer::LoopSettings settings;
    settings.max_steps = 200;
    settings.precision = precision;
    const Trained expected = train(make_model(encoder, 0.0), "false", settings);
    const Trained got = train(make_model(encoder, 0.0), "auto", settings);
    EXPECT_GT(got.recorded, 180);
    expect_same(got, expected, at_first, 5e-2);
  }
}

TEST_F(SpeechRecording, AccumulatedGradientsAreSums) {
  trainer::LoopSettings settings;
  settings.max_steps = 40;
  settings.accumulate_grad_batches = 3;  // of four batches: three, then one
  const trainer::OptimizerOptions sgd{.kind = trainer::OptimizerKind::kSgd, .lr = 0.02};
  const Trained expected = train(make_model("e_branchformer", 0.0), "false", settings, sgd);
  const Trained got = train(make_model("e_branchformer", 0.0), "auto", settings, sgd);
  EXPECT_GT(got.recorded, 70);
  expect_same(got, expected, 1e-3, 1e-3);
  for (const auto& [name, weight] : expected.weights)
    EXPECT_TRUE(close(got.weights.at(name), weight, 2e-3)) << name;
}

// Gradients go from the recording into DDP's buckets, after one batch and after several.
TEST_F(SpeechRecording, WithDdpGradientsAreTheSame) {
  for (const int batches : {1, 3}) {
    trainer::LoopSettings settings;
    settings.max_steps = 40;
    settings.accumulate_grad_batches = batches;
    const trainer::OptimizerOptions sgd{.kind = trainer::OptimizerKind::kSgd, .lr = 0.02};
    const Trained expected = train(make_model("e_branchformer", 0.0), "false", settings, sgd);
    const Trained got = train(make_model("e_branchformer", 0.0), "auto", settings, sgd, "ddp");
    EXPECT_GT(got.recorded, 30 * batches - 20);
    expect_same(got, expected, 1e-3, 1e-3);
    for (const auto& [name, weight] : expected.weights)
      EXPECT_TRUE(close(got.weights.at(name), weight, 2e-3)) << name;
  }
}

TEST_F(SpeechRecording, WhatCannotBeRecordedTrainsAsBefore) {
  trainer::LoopSettings settings;
  settings.max_steps = 8;
  EXPECT_EQ(train(make_model("conformer", 0.1), "auto", settings).recorded, 0);
  EXPECT_EQ(
      train(make_model("e_branchformer", 0.1, ", layer_drop_rate: 0.1"), "auto", settings).recorded,
      0);
  EXPECT_EQ(train(make_model("e_branchformer", 0.1, ", gradient_checkpoint_layers: [1]"), "auto",
                  settings)
                .recorded,
            0);
  EXPECT_EQ(train(make_model("e_branchformer", 0.1), "auto", settings, {.lr = 1e-4},
                  "ddp_find_unused_parameters_true")
                .recorded,
            0);
  settings.deterministic = true;
  settings.deterministic.warn_only = true;
  EXPECT_EQ(train(make_model("e_branchformer", 0.1), "auto", settings).recorded, 0);
  at::globalContext().setDeterministicAlgorithms(false, false);
}

// The same random numbers are drawn, on the host and on the device, and the same elements drop.
TEST_F(SpeechRecording, DropsTheSameElements) {
  for (const bool autocast : {false, true}) {
    AsrModel model = make_model("e_branchformer", 0.3);
    model->to(torch::kCUDA);
    AsrBatch batch;
    // 128 frames after subsampling, 4 rows, 16 tokens with <eos>: nothing to pad.
    const std::int64_t samples = 128 * 514;
    batch.speech = (0.1 * torch::randn({4, samples})).to(torch::kCUDA);
    batch.speech_lengths = {samples, samples - 9000, samples - 20000, samples};
    batch.text = torch::randint(1, 16, {4, 15}, torch::kInt64).to(torch::kCUDA);
    batch.text_lengths = {15, 5, 11, 1};
    const auto step = [&] {
      std::unique_ptr<trainer::AutocastScope> scope;
      if (autocast)
        scope = std::make_unique<trainer::AutocastScope>(torch::kCUDA, torch::kBFloat16);
      const torch::Tensor loss = model->forward(batch).loss;
      scope.reset();
      model->zero_grad();
      loss.backward();
      Gradients result{{"loss", loss.detach().cpu()}};
      for (const auto& item : model->named_parameters())
        result[item.key()] = item.value().grad().cpu();
      return result;
    };
    std::vector<Gradients> expected, got;
    torch::manual_seed(31);
    for (int i = 0; i < 4; ++i) expected.push_back(step());
    model->set_recording(true);
    torch::manual_seed(31);
    for (int i = 0; i < 4; ++i) got.push_back(step());
    EXPECT_EQ(model->num_recorded_passes(), 3);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(close(got[i].at("loss"), expected[i].at("loss"), autocast ? 1e-3 : 1e-5)) << i;
      EXPECT_LT(distance(got[i], expected[i]), autocast ? 1e-2 : 1e-4) << i;
    }
    EXPECT_FALSE(close(expected[0].at("loss"), expected[1].at("loss"), 1e-5));
  }
}

// Another pass while one waits for its backward pass: it is computed layer by layer.
TEST_F(SpeechRecording, APassUnderWayIsNotDisturbed) {
  const auto options = torch::TensorOptions(torch::kCUDA);
  torch::manual_seed(8);
  const torch::Tensor w = torch::randn({16, 16}, options).requires_grad_();
  RecordedStack stack;
  stack.set_on(true);
  const auto layers = [&](const RecordedStack::Inputs& in) {
    return torch::tanh(torch::matmul(in.x, w)).mul(in.others[0]);
  };
  const auto input = [&](double scale) -> RecordedStack::Inputs {
    return {torch::randn({8, 16}, options).requires_grad_(), {torch::full({8, 1}, scale, options)}};
  };
  for (int turn = 0; turn < 4; ++turn) {
    const RecordedStack::Inputs a = input(1.0 + turn), b = input(3.0);
    const torch::Tensor ya = stack.run(a, {w}, layers), yb = stack.run(b, {w}, layers);
    const auto got = torch::autograd::grad({(ya * ya).sum() + yb.sum()}, {a.x, b.x, w});
    const torch::Tensor za = layers(a), zb = layers(b);
    const auto expected = torch::autograd::grad({(za * za).sum() + zb.sum()}, {a.x, b.x, w});
    EXPECT_TRUE(close(ya, za, 1e-6));
    EXPECT_TRUE(close(yb, zb, 1e-6));
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(close(got[i], expected[i], 1e-5)) << i;
  }
  EXPECT_GT(stack.num_replays(), 0);
  // Without a backward pass, the pass ends with its results.
  const std::int64_t before = stack.num_replays();
  for (int turn = 0; turn < 2; ++turn) stack.run(input(1.0), {w}, layers);
  EXPECT_EQ(stack.num_replays(), before + 2);
  // Weights that have moved are found where they are.
  w.set_data(torch::randn({16, 16}, options));
  for (int turn = 0; turn < 4; ++turn) {
    const RecordedStack::Inputs a = input(1.0);
    EXPECT_TRUE(close(stack.run(a, {w}, layers), layers(a), 1e-6));
  }
}

}  // namespace
}  // namespace tutti::speech
