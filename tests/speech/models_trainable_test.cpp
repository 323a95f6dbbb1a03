// The model as the trainer sees it: it learns, and its checkpointed form learns the same.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/speech/vectors.h"
#include "tutti/config/load.h"
#include "tutti/speech/models/asr_trainable.h"
#include "tutti/speech/models/encoder_config.h"
#include "tutti/speech/models/model_config.h"
#include "tutti/trainer/precision.h"
#include "tutti/trainer/recompute.h"
#include "tutti/trainer/strategies/units.h"

namespace tutti::speech {
namespace {

constexpr const char* kModel = R"(
vocab_size: 8
encoder: %s
encoder_conf: {output_size: 16, attention_heads: 2, linear_units: 32, num_blocks: 2, dropout_rate: 0.1,
  gradient_checkpoint_layers: [%s]}
decoder: %s
model_conf: {ctc_weight: 0.3}
frontend_conf: {hop_length: 256, n_mels: 20}
specaug: specaug
specaug_conf: {freq_mask_width_range: [0, 4], time_mask_width_ratio_range: [0, 0.05]}
)";

AsrModel make_model(const std::string& encoder, const std::string& checkpoints,
                    const std::string& decoder) {
  char text[1024];
  std::snprintf(text, sizeof text, kModel, encoder.c_str(), checkpoints.c_str(), decoder.c_str());
  config::Problems problems;
  const AsrSettings settings =
      read_asr_model_block(config::parse_yaml(text, "model.yaml"), false, problems);
  EXPECT_EQ(problems.describe(), "");
  torch::manual_seed(4);
  return AsrModel(Build{}, settings);
}

trainer::Batch make_batch() {
  torch::manual_seed(9);
  trainer::Batch batch;
  batch.tensors["speech"] = torch::randn({3, 9000}) * 0.1;
  batch.tensors["speech_lengths"] = torch::tensor({9000, 8000, 7001}, torch::kInt64);
  batch.tensors["text"] = torch::tensor({{1, 2, 3}, {4, 5, -1}, {6, -1, -1}}, torch::kInt64);
  batch.tensors["text_lengths"] = torch::tensor({3, 2, 1}, torch::kInt64);
  return batch;
}

TEST(AsrTrainable, LearnsABatchByHeartWithEveryKindOfDecoder) {
  for (const std::string decoder : {"transformer", "transducer", "stateless"}) {
    AsrTrainable model(make_model("conformer", "", decoder));
    const trainer::Batch batch = make_batch();
    torch::optim::Adam optimizer(model.model()->parameters(), torch::optim::AdamOptions(5e-3));
    double first = 0, last = 0;
    model.set_training(true);
    for (int step = 0; step < 40; ++step) {
      optimizer.zero_grad();
      const trainer::StepOutput out = model.training_step(batch);
      EXPECT_EQ(out.weight, 3);
      out.loss.backward();
      optimizer.step();
      last = out.loss.item<double>();
      if (step == 0) first = last;
    }
    EXPECT_LT(last, 0.5 * first) << decoder;
    model.set_training(false);
    const trainer::StepOutput checked = model.validation_step(batch);
    EXPECT_TRUE(checked.stats.contains(decoder == "transformer" ? "acc" : "loss_transducer"));
    EXPECT_EQ(checked.ratios.at("cer_ctc").denominator, 6);
  }
}

TEST(AsrTrainable, TheCharacterErrorRateCountsCharacters) {
  AsrTrainable model(make_model("conformer", "", "transformer"),
                     {"<blank>", "\u2581one", "\u00e9t", "<space>", "a", "bc", "\u2581"});
  model.set_training(false);
  // {one, ét, <space>}, {a, bc}, {a word mark alone}
  EXPECT_EQ(model.validation_step(make_batch()).ratios.at("cer_ctc").denominator, 3 + 2 + 1 + 2);
}

TEST(AsrTrainable, CheckpointedLayersChangeNothingButMemory) {
  std::map<std::string, torch::Tensor> gradients[2];
  for (const bool checkpointed : {false, true}) {
    AsrTrainable model(make_model("e_branchformer", checkpointed ? "0, 1, 2" : "", "transformer"));
    model.set_training(true);
    const trainer::Batch batch = make_batch();
    torch::manual_seed(2);
    model.training_step(batch).loss.backward();
    for (const auto& item : model.model()->named_parameters())
      gradients[checkpointed][item.key()] = item.value().grad();
  }
  for (const auto& [name, gradient] : gradients[0]) {
    ASSERT_TRUE(gradients[1][name].defined()) << name;
    // The gradient of a key's bias is zero but for rounding, which no tolerance can compare.
    if (name.ends_with("linear_k.bias")) continue;
    EXPECT_TRUE(close(gradients[1][name], gradient, 1e-5)) << name;
  }
}

TEST(AsrTrainable, MixedPrecisionIsCloseToFullPrecisionAndGivesFloatGradients) {
  for (const std::string encoder : {"transformer", "conformer", "e_branchformer"}) {
    for (const std::string decoder : {"transformer", "transducer"}) {
      AsrTrainable model(make_model(encoder, "1", decoder));
      model.set_training(true);
      const trainer::Batch batch = make_batch();
      torch::manual_seed(2);
      const double full = model.training_step(batch).loss.item<double>();
      torch::manual_seed(2);
      torch::Tensor loss;
      {
        const trainer::AutocastScope mixed(torch::kCPU, torch::kBFloat16);
        loss = model.training_step(batch).loss;
      }
      EXPECT_EQ(loss.scalar_type(), torch::kFloat32);
      EXPECT_NEAR(loss.item<double>(), full, 0.2 * full) << encoder << " " << decoder;
      loss.backward();
      for (const auto& item : model.model()->named_parameters()) {
        ASSERT_TRUE(item.value().grad().defined()) << encoder << " " << item.key();
        EXPECT_EQ(item.value().grad().scalar_type(), torch::kFloat32);
        EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>())
            << encoder << " " << item.key();
      }
    }
  }
}

TEST(AsrTrainable, AModelCastToBf16EncodesAndDecodes) {
  torch::NoGradGuard no_grad;
  for (const std::string encoder : {"transformer", "conformer", "e_branchformer"}) {
    AsrModel model = make_model(encoder, "", "transformer");
    model->eval();
    const trainer::Batch batch = make_batch();
    const Lengths lengths = {9000, 8000, 7001};
    const auto full = model->encode(batch["speech"], lengths);
    model->to(torch::kBFloat16);
    const auto low = model->encode(batch["speech"], lengths);
    EXPECT_EQ(low.out.scalar_type(), torch::kBFloat16);
    EXPECT_TRUE(close(low.out[0], full.out[0], 0.1)) << encoder;
    DecoderCache cache = model->decoder->start(low.out, low.lengths, 2);
    const auto scores = model->decoder->step(torch::full({6}, 7, torch::kInt64), cache);
    EXPECT_EQ(scores.scalar_type(), torch::kFloat32);
    EXPECT_TRUE(scores.isfinite().all().item<bool>());
  }
}

TEST(Dropout, DropsTheRightShareAndLetsGradientsThroughTheRest) {
  torch::manual_seed(7);
  auto x = torch::ones({500, 400}).requires_grad_();
  const auto y = apply_dropout(x, 0.3, true);
  const auto kept = y > 0;
  EXPECT_NEAR(kept.to(torch::kFloat64).mean().item<double>(), 0.7, 0.005);
  EXPECT_NEAR(y.mean().item<double>(), 1.0, 0.01);
  // No row or column is favoured.
  EXPECT_NEAR(kept.to(torch::kFloat64).mean(0).min().item<double>(), 0.7, 0.12);
  EXPECT_NEAR(kept.to(torch::kFloat64).mean(1).max().item<double>(), 0.7, 0.12);
  y.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), y.detach()));
  EXPECT_FALSE(torch::equal(apply_dropout(x, 0.3, true), y));
  torch::manual_seed(7);
  EXPECT_TRUE(torch::equal(apply_dropout(x, 0.3, true), y));
  EXPECT_TRUE(apply_dropout(x, 0.3, false).is_same(x));
}

// What `config check` says of a model without building it.
TEST(AsrTrainable, LayersHaveTheClassesThatTheCheckKnows) {
  for (const std::string encoder : {"transformer", "conformer", "e_branchformer"})
    for (const std::string decoder : {"transformer", "transducer"}) {
      const AsrModel model = make_model(encoder, "", decoder);
      std::set<std::string> built;
      for (const auto& module : model->modules())
        if (dynamic_cast<trainer::Recomputable*>(module.get()))
          built.insert(trainer::module_class(*module));
      const auto known = layer_classes(model->settings());
      EXPECT_EQ(built, std::set<std::string>(known.begin(), known.end())) << encoder << decoder;
    }
}

TEST(AsrTrainable, InitialisesByName) {
  AsrModel model = make_model("e_branchformer", "", "transformer");
  initialize(*model, "xavier_uniform");
  const auto parameters = model->named_parameters();
  EXPECT_EQ(parameters["ctc.ctc_lo.bias"].abs().max().item<float>(), 0);
  EXPECT_EQ(parameters["encoder.encoders.0.cgmlp.csgu.conv.bias"].min().item<float>(), 1);
  EXPECT_LT(parameters["encoder.encoders.0.cgmlp.csgu.conv.weight"].abs().max().item<float>(),
            1e-4);
  EXPECT_EQ(parameters["encoder.after_norm.weight"].min().item<float>(), 1);
  const auto& weight = parameters["encoder.embed.out.weight"];
  const double bound = std::sqrt(6.0 / static_cast<double>(weight.size(0) + weight.size(1)));
  EXPECT_LE(weight.abs().max().item<double>(), bound);
  EXPECT_GT(weight.abs().max().item<double>(), 0.9 * bound);
}

}  // namespace
}  // namespace tutti::speech
