#include "tutti/systems/models/model_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "tutti/config/load.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/speech/espnet/flat_config.h"
#include "tutti/speech/espnet/transducer_config.h"
#include "tutti/systems/experiment_config.h"
#include "tutti/systems/input_files.h"
#include "tutti/systems/models/task_settings.h"
#include "tutti/systems/pack.h"
#include "tutti/trainer/checkpoint/averages.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

// The way as it was given up to its first part that is missing, and the names that are there instead.
std::pair<fs::path, std::vector<std::string>> names_around(const fs::path& asked) {
  fs::path folder, missing;
  for (const fs::path& part : asked) {
    missing = folder / part;
    if (!fs::exists(missing)) break;
    folder = missing;
  }
  std::vector<std::string> names;
  std::error_code unreadable;
  for (const auto& entry :
       fs::directory_iterator(folder.empty() ? fs::path(".") : folder, unreadable))
    if (entry.is_directory() || speech::is_model_archive(entry.path()))
      names.push_back(entry.path().filename().string());
  return {missing, names};
}

// Beside the weights, or where a training of ours writes it: its weights are one folder further down.
fs::path config_of(const fs::path& weights) {
  const fs::path beside = weights.parent_path() / "config.yaml",
                 above = weights.parent_path().parent_path() / "config.yaml";
  return !fs::exists(beside) && fs::exists(above) ? above : beside;
}

}  // namespace

void refuse_missing_model(const fs::path& asked, const std::string& key) {
  if (fs::exists(asked)) return;
  const auto [missing, names] = names_around(asked);
  const std::string guess = closest_match(missing.filename().string(), names);
  const fs::path rest = asked.lexically_relative(missing);
  fs::path meant = missing.parent_path() / guess;
  if (rest != ".") meant /= rest;
  throw ConfigError(
      fmt::format("{}: got '{}', but no such file, folder or pack is there", key, asked.string()),
      guess.empty() ? "nothing is downloaded here: fetch it with git or huggingface-cli first"
                    : fmt::format("did you mean '{}'?", meant.string()));
}

fs::path find_weights(const fs::path& asked) {
  if (fs::exists(asked)) return asked;
  const fs::path folder = asked.parent_path();
  const std::string stem = asked.stem().string(), metric = averaged_metric(asked);
  std::vector<std::string> there;
  fs::path found;
  int largest = -1;
  for (const fs::path& place : {folder, folder / "checkpoints"}) {
    if (!fs::is_directory(place)) continue;
    for (const auto& entry : fs::directory_iterator(place)) {
      if (entry.path().extension() != ".safetensors") continue;
      const std::string other = entry.path().stem().string();
      there.push_back(entry.path().filename().string());
      if (other != stem && (metric.empty() || averaged_metric(entry.path()) != metric)) continue;
      // Of several averages that of the most; an exact name before all.
      const int size = other == stem ? INT_MAX : std::atoi(other.c_str() + metric.size() + 5);
      if (size > largest) {
        largest = size;
        found = entry.path();
      }
    }
  }
  if (!found.empty()) return found;
  std::sort(there.begin(), there.end());
  std::string fix = "run the train stage first";
  if (!there.empty()) {
    fix = "there are " + join(there, ", ");
  } else if (const fs::path last = folder / "checkpoints" / "last"; fs::exists(last)) {
    // It ended, or was stopped, inside its first epoch.
    fix =
        "no validation was made yet, so none is the best: train on, or validate earlier "
        "(trainer.val_check_interval)";
    if (fs::exists(last / "model.safetensors"))
      fix += "; the newest weights are " + (last / "model.safetensors").string();
  }
  throw DataError(fmt::format("model.asr_model_file: {}: no such file", asked.string()), fix);
}

void renew_average(const fs::path& asked) {
  if (asked.filename().string().find(".ave_") == std::string::npos) return;
  for (const fs::path& place : {asked.parent_path(), asked.parent_path() / "checkpoints"})
    trainer::renew_averages(place);
}

bool is_pack(const fs::path& folder) {
  return fs::exists(folder / kPackedConfig) && fs::exists(folder / kPackedWeights) &&
         !fs::exists(folder / "meta.yaml");
}

speech::ModelFolder named_model(const speech::Speech2TextOptions& options) {
  const bool is_s2t = !options.s2t_train_config.empty() || !options.s2t_model_file.empty();
  const bool is_asr = !options.asr_train_config.empty() || !options.asr_model_file.empty();
  if (is_s2t + is_asr + !options.model_tag.empty() != 1)
    throw ConfigError("model: expected one of asr_model_file, s2t_model_file and model_tag",
                      "set asr_train_config and asr_model_file");
  speech::ModelFolder out;
  if (!options.model_tag.empty()) {
    refuse_missing_model(options.model_tag, "model_tag");
    out = speech::open_model_folder(options.model_tag);
  } else {
    const std::string prefix = is_s2t ? "s2t" : "asr";
    const fs::path weights = is_s2t ? options.s2t_model_file : options.asr_model_file;
    if (weights.empty())
      throw ConfigError(fmt::format("model.{}_model_file: got nothing, expected weights", prefix));
    fs::path config = is_s2t ? options.s2t_train_config : options.asr_train_config;
    if (config.empty()) config = config_of(weights);
    out = speech::model_folder_of(config, weights, prefix);
  }
  out.bpemodel = options.bpemodel;
  name_language_model(options, out);
  return out;
}

void name_language_model(const speech::Speech2TextOptions& options, speech::ModelFolder& model) {
  if (options.lm_file.empty()) {
    if (!options.lm_train_config.empty())
      throw ConfigError("lm_train_config: got a config without lm_file, the weights",
                        "set lm_file too");
    return;
  }
  model.lm_weights = options.lm_file;
  model.lm_config = options.lm_train_config.empty() ? model.lm_weights.parent_path() / "config.yaml"
                                                    : fs::path(options.lm_train_config);
}

config::Node read_model_config(const speech::ModelFolder& model) {
  for (const std::string& file : model.missing)
    throw DataError(
        fmt::format("{}: meta.yaml names {}, which is not there", model.root.string(), file),
        "fetch the whole folder (git lfs pull, where it was cloned)");
  const config::Node config = config::parse_yaml(read_file(model.config), model.config.string());
  if (!speech::is_flat_config(config) && !fs::exists(model.root / "meta.yaml") &&
      !is_pack(model.config.parent_path()))
    return read_experiment_config(model.config);
  config::Problems problems;
  const config::Node training = speech::read_training_config(model, problems);
  for (const auto& warning : problems.sorted_warnings()) log::warning("{}", warning.describe());
  problems.throw_if_any();
  return training;
}

void complete_options(const config::Node& training, const config::Node& asked,
                      speech::Speech2TextOptions& options) {
  const auto is_set = [&](const char* key) { return asked.is_map() && !asked[key].is_null(); };
  if (is_set("beam_search_config")) {
    speech::TransducerConf& conf = options.transducer_conf;
    conf = options.beam_search_config;
    if (conf.search_type == "default") conf.search_type = "beam";
    conf.score_norm = conf.score_norm.value_or(false);
  }
  if (is_transducer_task(training)) {
    const Json there = speech::transducer_search_defaults();
    if (!is_set("beam_size")) options.beam_size = there["beam_size"];
    if (!is_set("beam_search_config") && !is_set("transducer_conf")) {
      options.transducer_conf.search_type = there["transducer_conf"]["search_type"];
      options.transducer_conf.score_norm = there["transducer_conf"]["score_norm"].get<bool>();
    }
  }
  if (is_s2t_ctc(training)) {
    const std::string target = asked.is_map() ? asked["_target_"].value_or<std::string>("") : "";
    const bool is_search = target.ends_with(".Speech2Text") ||
                           (target.empty() && asked.is_map() && !asked["beam_size"].is_null());
    if (!is_search) options.ctc_greedy = true;
    if (options.lang_sym.empty())
      options.lang_sym =
          training["dataset"]["preprocessor"]["nolang_symbol"].value_or<std::string>("<nolang>");
    options.owsm = owsm_symbols(training);
    return;
  }
  if (!is_s2t(training)) return;
  if (!is_set("beam_size")) options.beam_size = 5;
  if (!is_set("ctc_weight")) options.ctc_weight = 0.0;
  if (options.lang_sym.empty()) options.lang_sym = "<eng>";
  options.owsm = owsm_symbols(training);
}

}  // namespace tutti::systems
