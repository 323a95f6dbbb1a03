#include "tutti/systems/stages.h"

#include <fmt/format.h>

#include "tutti/systems/dataset_builder.h"

namespace tutti::systems {
namespace {

Json manifests_identity(const StageContext& context) {
  Json files = Json::array();
  for (const char* split : {"train", "valid", "test"})
    for (const auto& entry : context.training["dataset"][split].elements()) {
      const config::Node args = entry["data_src_args"];
      const config::Node name = args["split"].is_null() ? entry["name"] : args["split"];
      if (args["manifest"].is_scalar())
        files.push_back(file_identity(args["manifest"].raw()));
      else if (name.is_scalar())
        files.push_back(file_identity(manifest_path(context.folder("data_dir"), name.raw())));
    }
  return files;
}

Json blocks(const config::Node& node, std::initializer_list<const char*> keys) {
  Json out = Json::object();
  for (const char* key : keys) out[key] = config::to_json(node[key]);
  return out;
}

Json dataset_inputs(const StageContext& c) {
  Json inputs = blocks(c.training, {"dataset", "create_dataset"});
  inputs["data_dir"] = c.folder("data_dir").string();
  return inputs;
}

Json training_inputs(const StageContext& c) {
  Json inputs = config::to_json(c.training);
  inputs.erase("parallel");  // who computes does not change what is computed
  inputs["manifests"] = manifests_identity(c);
  return inputs;
}

Json tokenizer_inputs(const StageContext& c) {
  Json inputs = blocks(c.training, {"tokenizer"});
  inputs["manifests"] = manifests_identity(c);
  return inputs;
}

Json statistics_inputs(const StageContext& c) {
  Json inputs = blocks(c.training, {"dataset", "model", "stats_dir"});
  inputs["manifests"] = manifests_identity(c);
  return inputs;
}

Json no_inputs(const StageContext&) { return Json::object(); }

}  // namespace

std::vector<Stage> builtin_stages() {
  return {
      {1, "create_dataset", "build the corpus and its manifests", Needs::kTraining, "data_dir",
       dataset_inputs, create_dataset},
      {2, "validate_dataset", "check every file and transcript", Needs::kTraining, "data_dir",
       manifests_identity, validate_dataset},
      {3, "train_tokenizer", "make the token list", Needs::kTraining, "data_dir", tokenizer_inputs,
       train_tokenizer},
      {4, "collect_stats", "shapes and feature statistics", Needs::kTraining, "stats_dir",
       statistics_inputs, collect_stats},
      {5, "train", "train the model", Needs::kTraining, "exp_dir", training_inputs, train},
      // These resume item by item or take seconds, and know better than we whether there is work
      // left.
      {6, "infer", "decode the test sets", Needs::kInference, "inference_dir", no_inputs, infer},
      {7, "measure", "score the results", Needs::kMetrics, "inference_dir", no_inputs, measure},
      {8, "pack_model", "one folder with everything decoding needs", Needs::kTraining, "exp_dir",
       no_inputs, pack_model},
      {9, "demo", "a page to talk to", Needs::kDemo, "exp_dir", no_inputs, demo},
  };
}

}  // namespace tutti::systems
