// Files that a config names and that nobody makes later must be there before anything starts.
//
//   check_input_files(FileKind::kTraining, root, problems);
//
// What an earlier stage of the same recipe makes is left out: the data of a builder, the tokenizer, statistics,
// the experiment.
#pragma once

#include <filesystem>
#include <string>

#include "tutti/config/check.h"

namespace tutti::systems {

// What is needed: a model may be made after its tokenizer, so the stages before training ask for data alone.
enum class InputFiles { kData, kAll };

// Looks at names only; what is in the files is the stages' business.
void check_input_files(config::FileKind kind, const config::Node& root, config::Problems& problems,
                       InputFiles needed = InputFiles::kAll);

// "valid.acc" of valid.acc.ave_10best.pth; empty: the name says nothing of this kind.
std::string averaged_metric(const std::filesystem::path& file);

// An average of the experiment (METRIC.ave_Nbest) that is not there, and that this training never writes, as no
// criterion of it watches the metric.
void check_average_name(const config::Node& training, const config::Node& inference,
                        config::Problems& problems);

}  // namespace tutti::systems
