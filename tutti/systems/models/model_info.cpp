#include "tutti/systems/models/model_info.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "tutti/core/error.h"
#include "tutti/core/path_inside.h"
#include "tutti/core/text.h"
#include "tutti/speech/decoding/owsm.h"
#include "tutti/speech/espnet/flat_config.h"
#include "tutti/speech/loading/state_dict.h"
#include "tutti/speech/models/asr_model.h"
#include "tutti/speech/models/model_config.h"
#include "tutti/systems/models/model_source.h"
#include "tutti/systems/models/task_settings.h"
#include "tutti/trainer/checkpoint/weights.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

std::string encoder_text(const config::Node& model, const speech::EncoderSettings& s) {
  return fmt::format("{}, {} blocks of {}, {} heads, {}",
                     model["encoder"].value_or<std::string>("?"), s.num_blocks, s.output_size,
                     s.attention_heads, s.input_layer);
}

std::string decoder_text(const config::Node& model, const speech::AsrSettings& s) {
  const bool has_ctc = s.ctc_weight > 0;
  const std::string name = model["decoder"].value_or<std::string>("");
  if (s.decoder_kind == speech::AsrDecoderKind::kTransducer)
    return name + (has_ctc ? " and ctc" : "");
  if (name.empty()) return "ctc";
  return fmt::format("{}, {} blocks{}", name, s.decoder.num_blocks, has_ctc ? " and ctc" : "");
}

// The names and shapes of the weights against those of the model; no data is read.
std::string misfit(const speech::AsrSettings& settings, const trainer::WeightsSource& weights) {
  speech::AsrSettings bare = settings;
  bare.normalize.stats_file.clear();
  const speech::AsrModel model(speech::Build{.device = torch::kMeta}, bare);
  const auto meta = [](const std::vector<std::int64_t>& shape) {
    return torch::empty(shape, torch::TensorOptions().device(torch::kMeta));
  };
  speech::StateDict mine, theirs;
  for (const auto& item : model->named_parameters()) mine[item.key()] = item.value();
  for (const auto& item : model->named_buffers()) mine[item.key()] = item.value();
  for (const auto& [name, spec] : weights.specs()) theirs[name] = meta(spec.shape);
  theirs = speech::modern_names(theirs);
  const bool has_statistics = !settings.normalize.stats_file.empty();
  for (const char* name : {"normalize.mean", "normalize.std"})
    if (has_statistics && mine.contains(name) && !theirs.contains(name)) theirs[name] = mine[name];
  if (mine.contains("frontend.logmel.melmat") && !theirs.contains("frontend.logmel.melmat"))
    theirs["frontend.logmel.melmat"] = mine["frontend.logmel.melmat"];
  return speech::describe_difference(mine, theirs);
}

void describe_network(const speech::ModelFolder& folder, const config::Node& training,
                      const speech::AsrSettings& s, Json& info) {
  info["encoder"] = encoder_text(training["model"], s.encoder);
  info["decoder"] = decoder_text(training["model"], s);
  info["parameters"] = speech::count_parameters(s);
  info["tokens"] = s.vocab_size;
  info["token_type"] =
      training["dataset"]["preprocessor"]["token_type"].value_or<std::string>("bpe");
  info["sample_rate"] = s.frontend.fs;
  if (is_s2t(training) || is_s2t_ctc(training)) {
    const speech::OwsmSymbols symbols = owsm_symbols(training);
    const speech::TokenList list(s.token_list);
    if (is_s2t(training)) const speech::OwsmTokens tried(list, symbols);  // OWSM-CTC has no times
    info["languages"] = speech::owsm_languages(list);
    info["window"] = symbols.window;
  }
  if (!fs::exists(folder.weights)) return;
  const auto weights = trainer::open_weights(folder.weights);
  std::uint64_t num_bytes = 0;
  for (const auto& [name, spec] : weights->specs()) num_bytes += spec.num_bytes();
  info["bytes"] = num_bytes;
  if (const std::string difference = misfit(s, *weights); !difference.empty())
    info["problems"].push_back("the weights do not fit the config:" + difference);
}

// The folder that was asked for: the root, from which names are found, can be the recipe above it.
// Of an archive, where it was unpacked.
fs::path shown_folder(const fs::path& given, const speech::ModelFolder& folder) {
  // Without the slash that the path may end with.
  const auto plain = [](const fs::path& path) {
    const fs::path whole = fs::absolute(path).lexically_normal();
    return whole.has_filename() ? whole : whole.parent_path();
  };
  const fs::path root = plain(folder.root);
  return fs::is_directory(given) && !path_inside(plain(given), root).empty() ? plain(given) : root;
}

// 93722 as "93.7 thousand"; a small model has no millions.
std::string scaled(double value, const char* millions, const char* thousands) {
  return value < 999'950 ? fmt::format("{:.1f}{}", value / 1e3, thousands)
                         : fmt::format("{:.1f}{}", value / 1e6, millions);
}

}  // namespace

Json describe_model(const fs::path& path) {
  refuse_missing_model(path, "folder");
  const speech::ModelFolder folder = speech::open_model_folder(path);
  const fs::path shown = shown_folder(path, folder);
  const auto inside = [&](const fs::path& file) {
    const fs::path way = path_inside(file, shown);
    return (way.empty() ? file : way).string();
  };
  Json info = {{"folder", shown.string()},          {"config", inside(folder.config)},
               {"weights", inside(folder.weights)}, {"missing", folder.missing},
               {"problems", Json::array()},         {"warnings", Json::array()}};
  if (!folder.lm_weights.empty()) info["language_model"] = inside(folder.lm_weights);
  if (!fs::exists(folder.config)) return info;
  config::Problems problems;
  const config::Node training = speech::read_training_config(folder, problems);
  if (problems.empty()) {
    info["task"] = is_s2t(training)               ? "s2t"
                   : is_s2t_ctc(training)         ? "s2t_ctc"
                   : is_transducer_task(training) ? "asr_transducer"
                                                  : "asr";
    speech::AsrSettings settings = speech::read_asr_settings(training, problems);
    if (problems.empty()) describe_network(folder, training, settings, info);
  }
  for (const auto& problem : problems.sorted()) info["problems"].push_back(problem.describe());
  for (const auto& warning : problems.sorted_warnings())
    info["warnings"].push_back(warning.describe());
  return info;
}

std::string model_text(const Json& info) {
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    if (!value.empty()) text += fmt::format("{:<12}{}\n", name, value);
  };
  const auto words = [](const Json& list) {
    return join(list.get<std::vector<std::string>>(), ", ");
  };
  for (const char* key : {"folder", "task", "config", "weights", "encoder", "decoder"})
    line(key, info.value(key, ""));
  if (info.contains("parameters"))
    line("parameters",
         fmt::format("{}, {}B", scaled(info["parameters"].get<double>(), " million", " thousand"),
                     scaled(info.value("bytes", 0.0), " M", " k")));
  if (info.contains("tokens"))
    line("tokens", fmt::format("{}, {}", info["tokens"].get<std::int64_t>(),
                               info["token_type"].get<std::string>()));
  if (info.contains("sample_rate"))
    line("sample rate", fmt::format("{} Hz", info["sample_rate"].get<int>()));
  if (info.contains("languages"))
    line("languages", fmt::format("{}: {}", info["languages"].size(), words(info["languages"])));
  if (info.contains("window")) line("window", fmt::format("{} s", info["window"].get<double>()));
  line("lm", info.value("language_model", ""));
  line("missing", words(info["missing"]));
  for (const Json& problem : info["problems"]) line("problem", problem.get<std::string>());
  for (const Json& warning : info["warnings"]) line("warning", warning.get<std::string>());
  if (info["missing"].empty() && info["problems"].empty()) line("ready", "yes");
  return text;
}

}  // namespace tutti::systems
