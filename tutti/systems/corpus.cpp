#include "tutti/systems/corpus.h"

#include <fmt/format.h>

#include "tutti/config/merge.h"
#include "tutti/core/error.h"
#include "tutti/core/text.h"
#include "tutti/core/users_code.h"
#include "tutti/systems/dataset_builder.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using config::Node;
using config::with_key;

// What an entry of a builder means: the manifest it left.
Node built_entry(const Node& config, const Node& entry, const fs::path& data_dir) {
  const Node args = entry["data_src_args"];
  const std::string split =
      args["split"].is_null() ? entry["name"].as<std::string>() : args["split"].as<std::string>();
  const fs::path path = manifest_path(data_dir, split);
  if (!fs::exists(path) && data_source_of(config, entry).empty())
    throw ConfigError(
        fmt::format("{}: {}: names no data: it has no data_src, and no folder of {} is named like "
                    "a builder ({})",
                    entry.mark().describe(), entry.path(),
                    config["recipe_dir"].is_scalar() ? config["recipe_dir"].raw() : "recipe_dir",
                    join(dataset_builder_names(), ", ")),
        "add data_src: NAME of a builder, or data_src_args: {manifest: FILE}");
  if (!fs::exists(path))
    throw DataError(path.string() + ": no such manifest", "run the create_dataset stage first");
  return with_key(with_key(entry, "data_src", "jsonl"), "data_src_args",
                  with_key(config::without_key(args, "split"), "manifest", path.string()));
}

// The entry with the data_src it means.
Node meant_entry(const Node& config, const Node& entry, const fs::path& data_dir) {
  if (is_built(entry)) return built_entry(config, entry, data_dir);
  return with_key(entry, "data_src", data::implied_source(entry));
}

data::Transform make_transform(const Node& node, config::Problems& problems) {
  const Node target = node.is_map() ? node["_target_"] : node;
  const auto* make = target.is_scalar() ? transform_registry().find(target.raw()) : nullptr;
  if (make) {
    const std::string who = "transform " + target.raw();
    const data::Transform change = users_code(who, [&] { return *(*make)(node); });
    return [who, change](data::Sample& sample) {
      users_code(sample.uid + ": " + who, [&] { change(sample); });
    };
  }
  problems.add(target.is_null() ? node : target,
               "got " + target.describe_value() + ", and this program has no such transform",
               "name the plugin that has it in plugins:");
  return {};
}

}  // namespace

TransformRegistry& transform_registry() {
  static TransformRegistry transforms("transform");
  return transforms;
}

std::vector<data::NamedDataset> open_parts(const Node& config, std::string_view split,
                                           const fs::path& data_dir, int sample_rate) {
  data::DatasetSources sources = data::DatasetSources::standard();
  sources.set_sample_rate(sample_rate);
  sources.set_transforms(make_transform);
  const Node entries = config["dataset"][split];
  std::vector<data::NamedDataset> parts;
  config::Problems problems;
  for (const Node& entry : entries.elements()) {
    const std::string name = entry["name"].value_or(fmt::format("{}{}", split, parts.size()));
    parts.push_back({name, sources.open(meant_entry(config, entry, data_dir), problems)});
  }
  problems.throw_if_any();
  if (parts.empty())
    throw ConfigError(fmt::format("dataset.{}: got {}, expected a list of entries", split,
                                  entries.describe_value()));
  return parts;
}

std::shared_ptr<const data::Dataset> open_corpus(const Node& config, std::string_view split,
                                                 const fs::path& data_dir, int sample_rate) {
  return data::combine(open_parts(config, split, data_dir, sample_rate));
}

int sample_rate_of(const Node& training) {
  const Node model = training["model"];
  if (!model["sample_rate"].is_null()) return model["sample_rate"].as<int>();
  return model["frontend_conf"]["fs"].value_or(16000);
}

}  // namespace tutti::systems
