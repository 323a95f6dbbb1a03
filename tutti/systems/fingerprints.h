// What decides the output of each stage (core/fingerprint.h): contents and relative paths only.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/config/node.h"
#include "tutti/core/fingerprint.h"
#include "tutti/data/dataset.h"
#include "tutti/systems/stage.h"

namespace tutti::systems {

// The folders of a config, so that paths below them are kept relative to them.
Places places_of(const config::Node& config);

// The utterances of dataset.SPLIT: each entry's keys, and the lists it names by content.
Json data_inputs(const config::Node& config, std::string_view split,
                 const std::filesystem::path& data_dir);

Fingerprint create_dataset_inputs(const StageContext& context);
// What validate_dataset looks at: the sets of the training config, and test sets that only an inference
// config given with it names. Those may have no transcript: nothing is learnt from them.
struct CheckedSet {
  std::string name;  // "train", "valid", "test", or that of an entry of the inference config
  Json inputs;       // data_inputs of it
  std::function<std::shared_ptr<const data::Dataset>()> open;
  bool needs_text = true;
};
// What create_dataset, train_tokenizer and collect_stats leave for later stages.
std::vector<std::filesystem::path> dataset_outputs(const StageContext& context);
std::vector<std::filesystem::path> tokenizer_outputs(const StageContext& context);
std::vector<std::filesystem::path> statistics_outputs(const StageContext& context);
std::vector<CheckedSet> checked_sets(const StageContext& context);
Fingerprint validate_dataset_inputs(const StageContext& context);
Fingerprint tokenizer_inputs(const StageContext& context);
Fingerprint statistics_inputs(const StageContext& context);
// Of one split, for its run folder.
Fingerprint statistics_inputs(const StageContext& context, std::string_view split);
Fingerprint training_inputs(const StageContext& context);

// What is in stats_dir, when it was collected from other data or with another frontend than this
// config's: "train.frontend_conf.hop_length: was 160, is 200". Empty: it fits, or nobody knows.
std::string other_statistics(const StageContext& context);
// The same of the features alone: statistics of others would normalise by wrong numbers.
std::string other_features(const StageContext& context);

}  // namespace tutti::systems
