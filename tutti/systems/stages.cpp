#include "tutti/systems/stages.h"

#include "tutti/systems/fingerprints.h"

namespace tutti::systems {

std::vector<Stage> builtin_stages() {
  return {
      {1, "create_dataset", "build the corpus and its manifests", Needs::kTraining, "data_dir",
       create_dataset_inputs, create_dataset, nullptr, "", false, dataset_outputs},
      {2, "validate_dataset", "check every file and transcript", Needs::kTraining, "data_dir",
       validate_dataset_inputs, validate_dataset, nullptr, "", /*only_checks=*/true},
      {3, "train_tokenizer", "make the token list", Needs::kTraining, "data_dir", tokenizer_inputs,
       train_tokenizer, nullptr, "", false, tokenizer_outputs},
      {4, "collect_stats", "shapes and feature statistics", Needs::kTraining, "stats_dir",
       [](const StageContext& c) { return statistics_inputs(c); }, collect_stats, nullptr, "",
       false, statistics_outputs},
      {5, "train", "train the model", Needs::kTraining, "exp_dir", training_inputs, train,
       refuse_training},
      // Resumes item by item and knows better than we whether there is work left.
      {6, "infer", "decode the test sets", Needs::kInference, "inference_dir", {}, infer},
      {7, "measure", "score the results", Needs::kMetrics, "inference_dir", measure_inputs,
       measure},
      {8, "pack_model", "one folder with everything decoding needs", Needs::kTraining, "exp_dir",
       pack_inputs, pack_model},
      {9, "demo", "a page to talk to", Needs::kDemo, "exp_dir", {}, demo},
  };
}

}  // namespace tutti::systems
