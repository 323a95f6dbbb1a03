#include "tutti/speech/loading/state_dict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/speech/vectors.h"
#include "tutti/config/load.h"
#include "tutti/core/error.h"
#include "tutti/speech/models/asr_model.h"
#include "tutti/speech/models/model_config.h"

namespace tutti::speech {
namespace {

using ::testing::HasSubstr;

AsrModel small_model() {
  config::Problems problems;
  AsrSettings settings = read_asr_model_block(
      config::parse_yaml(read_file(vectors_folder() / "conformer_latest.yaml"), "m"), false,
      problems);
  settings.normalize.kind = NormalizeKind::kNone;
  return AsrModel(Build{}, settings);
}

StateDict espnet_weights() {
  StateDict weights;
  for (const auto& [name, tensor] : read_vectors("conformer_latest"))
    if (name.starts_with("w.")) weights[name.substr(2)] = tensor;
  return weights;
}

TEST(StateDict, HasEspnetsNamesAndShapesAndGoesBothWays) {
  AsrModel model = small_model();
  const StateDict weights = espnet_weights();
  EXPECT_EQ(describe_difference(state_dict(*model), weights), "");
  load_state_dict(*model, weights, "w.pth");
  for (const auto& [name, tensor] : state_dict(*model))
    EXPECT_TRUE(torch::equal(tensor, weights.at(name))) << name;
}

TEST(StateDict, TravelsThroughPthAndSafetensorsFiles) {
  const TempFolder folder;
  AsrModel model = small_model();
  const StateDict weights = state_dict(*model);
  for (const char* name : {"m.pth", "m.safetensors"}) {
    write_state_dict(folder.path() / name, weights);
    AsrModel other = small_model();
    load_state_dict(*other, read_state_dict(folder.path() / name), name);
    for (const auto& [key, tensor] : state_dict(*other))
      EXPECT_TRUE(torch::equal(tensor, weights.at(key))) << name << " " << key;
  }
}

TEST(StateDict, OldNamesAndWrappersPrefixesAreUnderstood) {
  AsrModel model = small_model();
  StateDict old;
  for (const auto& [name, tensor] : espnet_weights()) {
    std::string key = name;
    if (key.starts_with("encoder.embed.out."))
      key.insert(std::string("encoder.embed.out.").size(), "0.");
    old["module." + key] = tensor;
  }
  old["module.encoder.embed.out.1.pe"] = torch::zeros({1, 4, 8});
  load_state_dict(*model, old, "old.pth");
  EXPECT_TRUE(torch::equal(state_dict(*model).at("encoder.embed.out.bias"),
                           espnet_weights().at("encoder.embed.out.bias")));
}

TEST(StateDict, AFileThatDoesNotFitIsExplainedAndChangesNothing) {
  AsrModel model = small_model();
  const auto before = model->named_parameters()["ctc.ctc_lo.bias"].clone();
  StateDict weights = espnet_weights();
  weights["ctc.ctc_lo.bias"] = torch::zeros({9});
  weights["decoder.after_norm.gain"] = weights.at("decoder.after_norm.weight");
  weights.erase("decoder.after_norm.weight");
  try {
    load_state_dict(*model, weights, "other.pth");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("other.pth: the weights do not fit"));
    EXPECT_THAT(error.what(),
                HasSubstr("missing in the file (1):\n    decoder.after_norm.weight (8)"));
    EXPECT_THAT(error.what(),
                HasSubstr("unknown to the model (1):\n    decoder.after_norm.gain (8)"));
    EXPECT_THAT(error.what(), HasSubstr("ctc.ctc_lo.bias: (9) in the file, (7) in the model"));
  }
  EXPECT_TRUE(torch::equal(model->named_parameters()["ctc.ctc_lo.bias"], before));
  EXPECT_THROW(load_state_dict(*model, {}, "empty.pth"), DataError);
}

}  // namespace
}  // namespace tutti::speech
