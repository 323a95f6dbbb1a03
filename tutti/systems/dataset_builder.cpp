#include "tutti/systems/dataset_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "tutti/config/plugin.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/progress.h"
#include "tutti/core/text.h"
#include "tutti/core/threads.h"
#include "tutti/data/sources.h"

namespace tutti::systems {

DatasetBuilderRegistry& dataset_builder_registry() {
  static DatasetBuilderRegistry builders("dataset builder");
  return builders;
}

std::vector<std::string> dataset_builder_names() {
  std::vector<std::string> names = dataset_builder_registry().names();
  for (const auto& shipped : config::shipped_plugins()) names.push_back(shipped);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::unique_ptr<DatasetBuilder> make_dataset_builder(std::string_view data_src,
                                                     const config::Node& settings) {
  const std::string name(data_src.substr(0, data_src.find('/')));
  if (const auto* make = dataset_builder_registry().find(name)) return (*make)(settings);
  const auto names = dataset_builder_names();
  const std::string guess = closest_match(name, names);
  throw ConfigError(
      fmt::format("data_src: got '{}', expected one of {}", data_src, join(names, ", ")),
      guess.empty() ? "name a manifest in data_src_args instead"
                    : fmt::format("did you mean '{}'?", guess));
}

bool is_built(const config::Node& entry) {
  return !data::DatasetSources::standard().has(data::implied_source(entry));
}

std::string data_source_of(const config::Node& config, const config::Node& entry) {
  if (!is_built(entry)) return {};
  if (!entry["data_src"].is_null()) return entry["data_src"].as<std::string>();
  const config::Node recipe_dir = config["recipe_dir"];
  if (!recipe_dir.is_scalar()) return {};
  const auto known = dataset_builder_names();
  std::string source;
  for (const auto& part : std::filesystem::absolute(recipe_dir.raw()).lexically_normal())
    if (std::binary_search(known.begin(), known.end(), part.string())) source = part.string();
  return source;
}

std::vector<std::pair<std::string, config::Node>> corpora_of(const config::Node& config) {
  std::vector<std::pair<std::string, config::Node>> found;
  for (const char* split : {"train", "valid", "test"})
    for (const config::Node& entry : config["dataset"][split].elements()) {
      // One of another shape is the dataset schema's to report.
      if (!entry.is_map() || !(entry["data_src"].is_null() || entry["data_src"].is_scalar()))
        continue;
      const std::string source = data_source_of(config, entry);
      const std::string name = source.substr(0, source.find('/'));
      const auto same = [&](const auto& other) { return other.first == name; };
      if (!name.empty() && std::none_of(found.begin(), found.end(), same))
        found.emplace_back(name, entry);
    }
  return found;
}

std::filesystem::path manifest_path(const std::filesystem::path& data_dir, std::string_view split) {
  return data_dir / fmt::format("{}.jsonl", split);
}

void write_manifest(const std::filesystem::path& path, const std::vector<Json>& utterances) {
  std::string text;
  for (const auto& utterance : utterances) text += to_json_line(utterance) + "\n";
  write_file_atomic(path, text);
}

void for_each_parallel(std::string_view what, std::size_t count,
                       const std::function<void(std::size_t)>& work) {
  ProgressBar progress(std::string(what), count);
  in_threads(count, std::max(1U, std::thread::hardware_concurrency()), [&](std::size_t i) {
    work(i);
    progress.add();
  });
}

}  // namespace tutti::systems
