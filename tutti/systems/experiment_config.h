// config.yaml of an experiment, wherever its folder is now.
#pragma once

#include <filesystem>

#include "tutti/config/node.h"

namespace tutti::systems {

// The resolved training config that `train` left in an experiment's folder, or ESPnet's config.yaml.
// Ours names files by whole paths; when the folder was moved or copied with its recipe, those that
// are found at the new place are taken from there.
config::Node read_experiment_config(const std::filesystem::path& file);

}  // namespace tutti::systems
