// One experiment's names in all its files: exp_tag and exp_dir go from training to inference, metrics and demo,
// data_dir from training to inference, inference_dir from inference to metrics.
//
//   ExperimentFiles files{.training = read_config_files(FileKind::kTraining, ..), .inference = ..};
//   ExperimentConfigs configs = resolve_together(files, resolvers, problems);
//
// The stages and `config show --training_config` both resolve through here.
#pragma once

#include "tutti/config/config_files.h"

namespace tutti::config {

struct ExperimentFiles {
  ConfigFiles training, inference, metrics, demo;  // those that were not given are undefined

  std::vector<ConfigFiles*> all() { return {&training, &inference, &metrics, &demo}; }
};

struct ExperimentConfigs {
  Node training, inference, metrics, demo;
};

// Warns where a name that flows changes what a file says.
ExperimentConfigs resolve_together(ExperimentFiles& files, const Resolvers& resolvers,
                                   Problems& problems);

// Whether the file leaves open which experiment is meant, as no other one says so.
bool lacks_experiment(const ConfigFiles& files);

}  // namespace tutti::config
