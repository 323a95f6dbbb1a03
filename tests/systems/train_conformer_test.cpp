// A small conformer by command line: its batch norms over ranks, its blocks computed again, with
// every strategy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/systems/toy_recipe.h"
#include "tutti/core/random.h"
#include "tutti/trainer/checkpoint/weights.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// Sixteen utterances of noise, in the order of the list, in batches of four in all.
class ConformerRecipe : public ToyRecipe {
 public:
  ConformerRecipe() {
    for (int i = 0; i < 24; ++i) {
      Random random({7, static_cast<std::uint64_t>(i)});
      std::vector<float> samples(static_cast<std::size_t>(3200 + 400 * (i % 5)));
      for (float& x : samples) x = static_cast<float>(random.uniform() - 0.5) * 0.2F;
      data::write_wav(path() / "data" / ("utt" + std::to_string(i) + ".wav"),
                      {.samples = samples, .sample_rate = 16000});
    }
    write_file_atomic(path() / "train.yaml", "task: espnet3.systems.asr.task.ASRTask\n" +
                                                 std::string(kToyPlaces) + R"(model:
  token_list: data/tokens.txt
  frontend: default
  frontend_conf: {fs: 16000, n_fft: 256, hop_length: 80, n_mels: 8}
  encoder: conformer
  encoder_conf: {output_size: 8, attention_heads: 2, linear_units: 8, num_blocks: 2, dropout_rate: 0.0, positional_dropout_rate: 0.0, attention_dropout_rate: 0.0, input_layer: conv2d, cnn_module_kernel: 3, rel_pos_type: latest, pos_enc_layer_type: rel_pos, selfattention_layer_type: rel_selfattn}
  model_conf: {ctc_weight: 1.0}
optimizer: {_target_: torch.optim.Adam, lr: 0.002}
best_model_criterion: [[valid/loss, 1, min]]
dataloader:
  train: {iter_factory: null, batch_size: 4, shuffle: false}
  valid: {iter_factory: null, batch_size: 4}
trainer: {accelerator: cpu, devices: "${num_device}", precision: 64-true, max_epochs: 2, gradient_clip_val: 1.0, logger: false}
)");
  }

  // The weights and running statistics that a training leaves.
  trainer::TensorMap trained(const std::vector<std::string>& overrides) const {
    std::vector<std::string> words = overrides;
    words.push_back("--force");
    const auto result = train(words);
    EXPECT_TRUE(result.ok()) << result.describe();
    trainer::TensorMap out;
    const auto source = trainer::open_weights(path() / "exp/checkpoints");
    for (const auto& [name, spec] : source->specs()) out[name] = source->read(name);
    return out;
  }
};

double largest_difference(const trainer::TensorMap& a, const trainer::TensorMap& b) {
  double largest = 0;
  for (const auto& [name, tensor] : a)
    largest = std::max(largest, (tensor - b.at(name)).abs().max().item<double>());
  return largest;
}

const std::vector<std::string> kTwoRanks = {"num_device=2", "dataloader.train.batch_size=2"};

std::vector<std::string> two_ranks(const std::vector<std::string>& more) {
  std::vector<std::string> words = kTwoRanks;
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Some weights have no gradient but rounding (the bias of keys), which Adam makes steps of.
constexpr double kSame = 1e-7;

// So a recipe with its noises can be copied to another place.
TEST(TrainConformer, NoisesAreFoundBesideTheirList) {
  const ConformerRecipe recipe;
  fs::create_directories(recipe.path() / "noises/wav");
  fs::copy_file(recipe.path() / "data/utt0.wav", recipe.path() / "noises/wav/hum.wav");
  write_file_atomic(recipe.path() / "noises/noise.scp", "hum wav/hum.wav\n");
  const std::vector<std::string> noisy = {"dataset.preprocessor.noise_scp=noises/noise.scp",
                                          "dataset.preprocessor.noise_apply_prob=1.0"};
  EXPECT_GT(largest_difference(recipe.trained({}), recipe.trained(noisy)), 1e-4);
}

TEST(TrainConformer, BatchNormsOfAllRanksTrainAsOneProcess) {
  const ConformerRecipe recipe;
  const auto alone = recipe.trained({});
  ASSERT_TRUE(alone.count("encoder.encoders.1.conv_module.norm.running_var"));
  const std::string sync = "++trainer.sync_batchnorm=true";
  EXPECT_GT(largest_difference(alone, recipe.trained(two_ranks({}))), 1e-5);
  EXPECT_LT(largest_difference(alone, recipe.trained(two_ranks({sync}))), kSame);
  EXPECT_LT(largest_difference(alone, recipe.trained(two_ranks({sync, "++trainer.strategy=fsdp"}))),
            kSame);
}

TEST(TrainConformer, BlocksThatAreComputedAgainGiveTheSameWeights) {
  const ConformerRecipe recipe;
  const auto alone = recipe.trained({});
  const std::string again = "++trainer.activation_checkpointing=[ConformerBlock]";
  const std::string sync = "++trainer.sync_batchnorm=true";
  EXPECT_LT(largest_difference(alone, recipe.trained({again})), 1e-12);
  EXPECT_LT(largest_difference(alone, recipe.trained(two_ranks({again, sync}))), kSame);
  EXPECT_LT(largest_difference(alone,
                               recipe.trained(two_ranks({again, sync, "++trainer.strategy=fsdp"}))),
            kSame);
  const auto typo = recipe.train({"++trainer.activation_checkpointing=[ConformerBlok]", "--force"});
  EXPECT_EQ(typo.exit_code, 2);
  EXPECT_THAT(typo.err, HasSubstr("did you mean 'ConformerBlock'?"));
}

TEST(TrainConformer, SharedNormsAreRefusedWhereThereAreNone) {
  const ToyRecipe script;
  const ConformerRecipe recipe;
  const std::string sync = "++trainer.sync_batchnorm=true";
  for (const auto& result : {script.train({sync}), recipe.train({sync, "model.encoder=transformer",
                                                                 "model.encoder_conf={}"})}) {
    EXPECT_EQ(result.exit_code, 2) << result.describe();
    EXPECT_THAT(result.err, HasSubstr("trainer.sync_batchnorm: got true, but"));
  }
}

}  // namespace
}  // namespace tutti::systems
