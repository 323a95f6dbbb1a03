// What decides the output of each stage (core/fingerprint.h): contents and relative paths only.
#pragma once

#include <filesystem>
#include <string_view>

#include "tutti/config/node.h"
#include "tutti/core/fingerprint.h"
#include "tutti/systems/stage.h"

namespace tutti::systems {

// The folders of a config, so that paths below them are kept relative to them.
Places places_of(const config::Node& config);

// The utterances of dataset.SPLIT: each entry's keys, and the lists it names by content.
Json data_inputs(const config::Node& config, std::string_view split,
                 const std::filesystem::path& data_dir);

Fingerprint create_dataset_inputs(const StageContext& context);
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
