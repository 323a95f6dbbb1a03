// A trained model as others hand it over: a folder or archive of ESPnet's model zoo, a snapshot of a
// model hub, an experiment folder, or a pack of our own.
//
//   ModelFolder model = open_model_folder("asr_train_conformer.zip");
//   config::Node training = read_training_config(model);   // flat_config.h
//
// Nothing in the folder is changed. An archive is unpacked once into the cache folder
// ($TUTTI_CACHE, else $XDG_CACHE_HOME/tutti, else ~/.cache/tutti).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tutti::speech {

struct ModelFolder {
  std::filesystem::path root;     // where relative paths inside the config start
  std::filesystem::path config;   // config.yaml of the training run
  std::filesystem::path weights;  // .pth, .ckpt or .safetensors
  std::string task;  // asr, s2t, ... by the key names of meta.yaml; "" when nothing says it
  std::filesystem::path bpemodel;    // instead of what the config names; empty: that one
  std::vector<std::string> missing;  // files that meta.yaml names and that are not there
  std::filesystem::path lm_config;   // a language model that came with it; empty: none
  std::filesystem::path lm_weights;
};

// Throws DataError that says what was looked for, or IoError.
ModelFolder open_model_folder(const std::filesystem::path& folder_or_archive);

// The same for a config.yaml and weights named one by one, as inference files do. `task` as above.
ModelFolder model_folder_of(const std::filesystem::path& config,
                            const std::filesystem::path& weights, const std::string& task);

bool is_model_archive(const std::filesystem::path& path);

// Where a file that the config names lies: paths start at the folder's root, or are absolute paths
// of the machine where ESPnet unpacked it, of which the end still holds. Empty: it is not there.
std::filesystem::path find_in_folder(const ModelFolder& model, const std::filesystem::path& named);

}  // namespace tutti::speech
