#include "tutti/systems/corpus.h"

#include <fmt/format.h>

#include "tutti/core/error.h"
#include "tutti/systems/dataset_builder.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

data::Manifest read_manifest_file(const fs::path& path) {
  return path.extension() == ".tsv" ? data::read_tsv_manifest(path)
                                    : data::read_jsonl_manifest(path);
}

data::Manifest read_entry(const config::Node& config, const config::Node& entry,
                          const fs::path& data_dir) {
  const config::Node args = entry["data_src_args"];
  if (!args["manifest"].is_null()) return read_manifest_file(args["manifest"].as<std::string>());
  if (!args["wav_scp"].is_null())
    return data::read_kaldi_manifest({.wav_scp = args["wav_scp"].as<std::string>(),
                                      .text = args["text"].value_or<std::string>(""),
                                      .utt2spk = args["utt2spk"].value_or<std::string>(""),
                                      .segments = args["segments"].value_or<std::string>("")});
  const std::string source = data_source_of(config, entry);
  if (source.empty())
    throw ConfigError(fmt::format("{}: {}: names no data", entry.mark().describe(), entry.path()),
                      "add data_src: NAME of a builder, or data_src_args: {manifest: FILE}");
  make_dataset_builder(source);  // refuses an unknown name, with a suggestion
  const std::string split =
      args["split"].is_null() ? entry["name"].as<std::string>() : args["split"].as<std::string>();
  const fs::path path = manifest_path(data_dir, split);
  if (!fs::exists(path))
    throw DataError(path.string() + ": no such manifest", "run the create_dataset stage first");
  return read_manifest_file(path);
}

}  // namespace

std::vector<NamedManifest> corpus_manifests(const config::Node& config, std::string_view split,
                                            const fs::path& data_dir) {
  std::vector<NamedManifest> out;
  const config::Node entries = config["dataset"][split];
  for (const auto& entry : entries.elements())
    out.push_back({entry["name"].value_or(fmt::format("{}{}", split, out.size())),
                   read_entry(config, entry, data_dir)});
  if (out.empty())
    throw ConfigError(fmt::format("dataset.{}: got {}, expected a list of entries", split,
                                  entries.describe_value()));
  return out;
}

int sample_rate_of(const config::Node& training) {
  const config::Node model = training["model"];
  if (!model["sample_rate"].is_null()) return model["sample_rate"].as<int>();
  return model["frontend_conf"]["fs"].value_or(16000);
}

std::shared_ptr<const data::Dataset> open_corpus(const config::Node& config, std::string_view split,
                                                 const fs::path& data_dir, int sample_rate) {
  std::vector<data::NamedDataset> parts;
  for (auto& part : corpus_manifests(config, split, data_dir))
    parts.push_back(
        {part.name, data::open_manifest(std::move(part.manifest), {.sample_rate = sample_rate})});
  if (parts.size() == 1) return parts[0].dataset;
  return data::combine(std::move(parts));
}

}  // namespace tutti::systems
