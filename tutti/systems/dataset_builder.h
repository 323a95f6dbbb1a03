// Where a corpus comes from: recipes name a builder, `create_dataset` runs it once, and the rest of
// the pipeline reads the manifests it left.
//
// ```text
// training.yaml:   dataset: {train: [{data_src: digits/asr, data_src_args: {split: train}}], ...}
// disk:            DATA_DIR/train.jsonl, DATA_DIR/valid.jsonl, DATA_DIR/test_*.jsonl
// ```
//
// A builder has the settings of the `create_dataset:` block; where it works is in the BuildContext. It may use
// several threads of its own. It must leave either a whole manifest or none (write_file_atomic), so
// that an interrupted build is simply run again.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/config/factory.h"
#include "tutti/config/plugin_kind.h"
#include "tutti/core/json.h"

namespace tutti::systems {

struct BuildContext {
  std::filesystem::path recipe_dir;
  std::filesystem::path data_dir;  // where manifests and made audio go
};

class DatasetBuilder {
 public:
  virtual ~DatasetBuilder() = default;
  // The manifests a whole build leaves in data_dir ("train", "valid", "test_voices").
  virtual std::vector<std::string> splits() const = 0;
  // Throws DataError when the source is absent or wrong, IoError when it cannot write.
  virtual void build(const BuildContext& context) const = 0;
};

// Builders by name. All are plugins: those of the recipes that come with Tutti (recipes/NAME/builder.cpp) are loaded
// when a config names them, others by `plugins:`.
//
//   TUTTI_PLUGIN(registry) {
//     registry.add<systems::DatasetBuilder>(my_corpus_schema(), [](const MyCorpusSettings& s) {
//       return std::make_unique<MyCorpus>(s);
//     });
//   }
using DatasetBuilderRegistry = config::Factory<DatasetBuilder>;
DatasetBuilderRegistry& dataset_builder_registry();

// "digits/asr" and "digits" mean the same; `settings` is the `create_dataset:` block. Throws ConfigError with the known
// names for an unknown one.
std::unique_ptr<DatasetBuilder> make_dataset_builder(std::string_view data_src,
                                                     const config::Node& settings);
// Whether an entry of `dataset:` means what a builder left, and not files of the user's.
bool is_built(const config::Node& entry);
// The builder an entry of `dataset:` means: its data_src, or, as in ESPnet3, the recipe's own where
// it names none: the last folder on recipe_dir's path that has a builder's name
// (recipes/mini_an4, egs3/mini_an4/asr). Empty for an entry that names files of the user's.
std::string data_source_of(const config::Node& config, const config::Node& entry);
std::vector<std::string> dataset_builder_names();  // loaded or not
// The builders (without "/asr") that the entries of `dataset:` mean, each with the first entry that does.
std::vector<std::pair<std::string, config::Node>> corpora_of(const config::Node& config);

std::filesystem::path manifest_path(const std::filesystem::path& data_dir, std::string_view split);
// One line per utterance: {"id", "audio", "text", "speaker"}; audio paths relative to the manifest.
void write_manifest(const std::filesystem::path& path, const std::vector<Json>& utterances);

// Runs `work(i)` for 0 <= i < count on as many threads as there are cores; the first exception ends
// it and is thrown here. `what` names the progress line.
void for_each_parallel(std::string_view what, std::size_t count,
                       const std::function<void(std::size_t)>& work);

}  // namespace tutti::systems

template <>
struct tutti::config::PluginKind<tutti::systems::DatasetBuilder> {
  using Registry = systems::DatasetBuilderRegistry;
  static constexpr const char* kGroup = "dataset builder";
};
