// The `dataset:` block of a config as datasets: the one reader of every stage.
//
// An entry names a builder of ours (`data_src: digits/asr`, `data_src_args: {split: train}`) whose
// manifests are in data_dir, or files of the user's (data/sources.h): `data_src_args: {manifest:
// a.jsonl}`, Kaldi's `{wav_scp: ..., text: ...}`, or `{archive: a.tta}`, which need no data_src. All
// take sample_rate, channel and root, and an entry may have a transform.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/config/factory.h"
#include "tutti/config/plugin_kind.h"
#include "tutti/data/dataset.h"
#include "tutti/data/sources.h"

namespace tutti::systems {

// What `transform: {_target_: NAME, ...}` of an entry may name; all are plugins':
//
//   registry.add<data::Transform>(gain_schema(), [](const GainSettings& s) -> data::Transform {
//     return [s](data::Sample& sample) { for (float& x : sample.speech) x *= s.factor; };
//   });
using TransformRegistry = config::Factory<data::Transform>;
TransformRegistry& transform_registry();

// The entries of dataset.SPLIT ("train", "valid", "test"), in order, at `sample_rate` (0: each
// file's own). Throws ConfigError for what the config got wrong, DataError with the fix "run
// create_dataset" when a manifest of a builder is absent.
std::vector<data::NamedDataset> open_parts(const config::Node& config, std::string_view split,
                                           const std::filesystem::path& data_dir, int sample_rate);
// All of them as one dataset.
std::shared_ptr<const data::Dataset> open_corpus(const config::Node& config, std::string_view split,
                                                 const std::filesystem::path& data_dir,
                                                 int sample_rate);

// What the model wants, in Hz: model.frontend_conf.fs, or model.sample_rate of a model that has no
// frontend of ours; 16000 where neither is given.
int sample_rate_of(const config::Node& training);

}  // namespace tutti::systems

template <>
struct tutti::config::PluginKind<tutti::data::Transform> {
  using Registry = systems::TransformRegistry;
  static constexpr const char* kGroup = "transform";
};
