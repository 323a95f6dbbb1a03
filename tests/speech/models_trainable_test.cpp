// The model as the trainer sees it: it learns, and its checkpointed form learns the same.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/speech/vectors.h"
#include "tutti/config/load.h"
#include "tutti/speech/models/asr_trainable.h"
#include "tutti/speech/models/model_config.h"

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
    EXPECT_TRUE(close(gradients[1][name], gradient, 1e-5)) << name;
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
