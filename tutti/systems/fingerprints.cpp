#include "tutti/systems/fingerprints.h"

#include <algorithm>
#include <set>

#include "tutti/config/schemas/types.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"
#include "tutti/systems/corpus.h"
#include "tutti/systems/dataset_builder.h"
#include "tutti/systems/preprocess.h"
#include "tutti/systems/training/kept_tokens.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using config::Node;

// Keys of data_src_args that name lists. An archive's index has a checksum of every record.
constexpr const char* kLists[] = {"manifest", "wav_scp",         "text",     "utt2spk",
                                  "segments", "utt2num_samples", "feats_scp"};

fs::path built_manifest(const Node& entry, const fs::path& data_dir) {
  const Node split = entry["data_src_args"]["split"];
  return manifest_path(data_dir, split.is_null() ? entry["name"].value_or<std::string>("")
                                                 : split.as<std::string>());
}

Json entry_inputs(const Node& config, const Node& entry, const fs::path& data_dir) {
  const Node args = entry["data_src_args"];
  Fingerprint inputs;
  Json kept = config::to_json(entry);
  kept.erase("name");
  for (const char* key : kLists) {
    if (!args[key].is_scalar()) continue;
    inputs.add_file(key, args[key].raw());
    kept["data_src_args"].erase(key);
  }
  if (args["archive"].is_scalar()) {
    inputs.add_file("archive", args["archive"].raw() + ".idx");
    kept["data_src_args"].erase("archive");
  }
  if (is_built(entry)) inputs.add_file("manifest", built_manifest(entry, data_dir));
  return inputs.add("entry", kept, places_of(config)).json();
}

void add_token_files(const Node& training, Fingerprint& inputs) {
  const Node block = training["dataset"]["preprocessor"];
  for (const Node& list : {block["token_list"], training["model"]["token_list"]}) {
    if (list.is_null()) continue;
    if (list.is_list())
      inputs.add("tokens", config::to_json(list));
    else
      inputs.add_file("tokens", list.raw());
    break;
  }
  if (block["bpemodel"].is_scalar()) inputs.add_file("bpemodel", block["bpemodel"].raw());
}

}  // namespace

Places places_of(const Node& config) {
  Places places;
  for (const char* key : {"recipe_dir", "data_dir", "exp_dir", "stats_dir"})
    if (config[key].is_scalar()) places.emplace_back(key, config[key].raw());
  return places;
}

Json data_inputs(const Node& config, std::string_view split, const fs::path& data_dir) {
  Json inputs = Json::array();
  for (const Node& entry : config["dataset"][split].elements())
    inputs.push_back(entry_inputs(config, entry, data_dir));
  return inputs;
}

Fingerprint create_dataset_inputs(const StageContext& context) {
  std::set<std::string> sources;
  for (const char* split : {"train", "valid", "test"})
    for (const Node& entry : context.training["dataset"][split].elements())
      if (is_built(entry)) sources.insert(data_source_of(context.training, entry));
  return Fingerprint()
      .add("sources", Json(sources))
      .add("create_dataset", config::to_json(context.training["create_dataset"]),
           places_of(context.training));
}

std::vector<fs::path> dataset_outputs(const StageContext& context) {
  std::vector<fs::path> files;
  for (const char* split : {"train", "valid", "test"})
    for (const Node& entry : context.training["dataset"][split].elements())
      if (is_built(entry)) files.push_back(built_manifest(entry, context.folder("data_dir")));
  return files;
}

std::vector<fs::path> tokenizer_outputs(const StageContext& context) {
  const Node tokenizer = context.training["tokenizer"];
  if (tokenizer.is_null()) return {};
  const fs::path folder = tokenizer["save_path"].as<std::string>();
  const std::string type = tokenizer["model_type"].value_or<std::string>("bpe");
  std::vector<fs::path> files = {folder / "tokens.txt"};
  if (type != "char" && type != "word") files.push_back(folder / (type + ".model"));
  return files;
}

std::vector<fs::path> statistics_outputs(const StageContext& context) {
  std::vector<fs::path> files;
  for (const char* split : {"train", "valid"})
    for (const char* name : {"speech_shape", "text_shape", "feats_stats.npz", "feats_shape"})
      files.push_back(context.folder("stats_dir") / split / name);
  return files;
}

std::vector<CheckedSet> checked_sets(const StageContext& context) {
  const fs::path data_dir = context.folder("data_dir");
  std::vector<CheckedSet> sets;
  Json known = Json::array();  // entries of the training config
  for (const std::string split : {"train", "valid", "test"}) {
    Json inputs = data_inputs(context.training, split, data_dir);
    if (inputs.empty()) continue;
    known.insert(known.end(), inputs.begin(), inputs.end());
    sets.push_back({split, std::move(inputs), [config = context.training, split, data_dir] {
                      return open_corpus(config, split, data_dir, 0);
                    }});
  }
  const auto entries = context.inference["dataset"]["test"].elements();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    Json inputs = entry_inputs(context.inference, entries[i], data_dir);
    if (std::find(known.begin(), known.end(), inputs) != known.end()) continue;
    std::string name = entries[i]["name"].value_or("test" + std::to_string(i));
    if (context.training["dataset"][name].size() > 0) name += " of the inference config";
    // One by one, as sets to decode may share utterances.
    sets.push_back({name, std::move(inputs),
                    [config = context.inference, i, data_dir] {
                      return open_parts(config, "test", data_dir, 0).at(i).dataset;
                    },
                    false});
  }
  return sets;
}

Fingerprint validate_dataset_inputs(const StageContext& context) {
  Fingerprint inputs;
  for (const CheckedSet& set : checked_sets(context)) {
    inputs.add(set.name, set.inputs);
    // Files by number and size, as times change with every copy.
    data::FilesSeen seen;
    try {
      set.open()->count_files(seen);
    } catch (const Error&) {
      continue;  // the stage itself will say it better
    }
    inputs.add(set.name + " files",
               {{"files", seen.files}, {"missing", seen.missing}, {"bytes", seen.bytes}});
  }
  return inputs.add("validate_dataset", config::to_json(context.training["validate_dataset"]))
      .add("sample_rate", sample_rate_of(context.training));
}

Fingerprint tokenizer_inputs(const StageContext& context) {
  const Node tokenizer = context.training["tokenizer"];
  Fingerprint inputs;
  inputs.add("tokenizer", config::to_json(tokenizer), places_of(context.training));
  if (tokenizer["train_file"].is_scalar())
    return inputs.add_file("train_file", tokenizer["train_file"].raw());
  return inputs.add("train", data_inputs(context.training, "train", context.folder("data_dir")));
}

Fingerprint statistics_inputs(const StageContext& context, std::string_view split) {
  Fingerprint inputs;
  inputs.add("data", data_inputs(context.training, split, context.folder("data_dir")));
  const Node model = context.training["model"];
  inputs.add("frontend", config::to_json(model["frontend"]))
      .add("frontend_conf", config::to_json(model["frontend_conf"]))
      .add("sample_rate", sample_rate_of(context.training))
      .add("preprocessing", decisive_preprocessing(context.training));
  add_token_files(context.training, inputs);
  return inputs;
}

Fingerprint statistics_inputs(const StageContext& context) {
  Fingerprint inputs;
  for (const char* split : {"train", "valid"})
    inputs.add(split, statistics_inputs(context, split).json());
  return inputs;
}

Fingerprint training_inputs(const StageContext& context) {
  // Keeps nothing, so that there is nothing to be up to date.
  if (context.training["trainer"]["fast_dev_run"].value_or(config::DevRun()).batches > 0) return {};
  Json config = config::to_json(context.training);
  config.erase("parallel");  // who computes does not change what is computed
  for (const char* place : {"recipe_dir", "data_dir", "exp_dir", "stats_dir"}) config.erase(place);
  Fingerprint inputs;
  inputs.add("config", config, places_of(context.training));
  for (const char* split : {"train", "valid"})
    inputs.add(split, data_inputs(context.training, split, context.folder("data_dir")));
  for (const TokenFile& file : token_files(context.training)) inputs.add_file(file.key, file.file);
  return inputs;
}

namespace {

// What the statistics in stats_dir were made from; empty: nobody knows.
Json recorded_statistics(const StageContext& context) {
  const fs::path record = context.folder("stats_dir") / ".stages" / "collect_stats.json";
  if (!fs::exists(record)) return {};
  return parse_json(read_file(record), record.string()).value("inputs", Json::object());
}

// The part that decides what a feature is, without the utterances.
Fingerprint features_of(const Json& inputs) {
  Fingerprint features;
  const Json train = inputs.value("train", Json::object());
  for (const char* key : {"frontend", "frontend_conf", "sample_rate"})
    if (train.contains(key)) features.add(key, train[key]);
  return features;
}

}  // namespace

std::string other_statistics(const StageContext& context) {
  const Json inputs = recorded_statistics(context);
  if (inputs.is_null()) return {};
  return join(statistics_inputs(context).changes_since(Fingerprint(inputs), 3), "; ");
}

std::string other_features(const StageContext& context) {
  const Json inputs = recorded_statistics(context);
  if (inputs.is_null()) return {};
  const Fingerprint now = features_of(statistics_inputs(context).json());
  return join(now.changes_since(features_of(inputs), 3), "; ");
}

}  // namespace tutti::systems
