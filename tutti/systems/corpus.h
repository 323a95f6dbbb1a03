// The `dataset:` block of a config as manifests and datasets.
//
// An entry names a builder of ours (`data_src: digits/asr`, `data_src_args: {split: train}`) whose
// manifests are in data_dir, or a manifest of the user's: `data_src_args: {manifest: a.jsonl}`, or
// Kaldi files `{wav_scp: ..., text: ..., utt2spk: ..., segments: ...}`.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/config/node.h"
#include "tutti/data/dataset.h"
#include "tutti/data/manifest.h"

namespace tutti::systems {

struct NamedManifest {
  std::string name;
  data::Manifest manifest;
};

// The entries of dataset.SPLIT ("train", "valid", "test"), in order. Throws ConfigError for an
// entry that names nothing, DataError with the fix "run create_dataset" when a manifest is absent.
std::vector<NamedManifest> corpus_manifests(const config::Node& config, std::string_view split,
                                            const std::filesystem::path& data_dir);

// What the model wants, in Hz: model.frontend_conf.fs, or model.sample_rate of a model that has no
// frontend of ours; 16000 where neither is given.
int sample_rate_of(const config::Node& training);

// All entries of a split as one dataset, at the frontend's sample rate.
std::shared_ptr<const data::Dataset> open_corpus(const config::Node& config, std::string_view split,
                                                 const std::filesystem::path& data_dir,
                                                 int sample_rate);

}  // namespace tutti::systems
