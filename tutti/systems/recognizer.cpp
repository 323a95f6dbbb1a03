#include "tutti/systems/recognizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/config/load.h"
#include "tutti/config/schema.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/text.h"
#include "tutti/data/io/audio.h"
#include "tutti/speech/loading/state_dict.h"
#include "tutti/speech/models/model_config.h"
#include "tutti/systems/pack.h"
#include "tutti/systems/preprocess.h"
#include "tutti/trainer/checkpoint/pth.h"
#include "tutti/trainer/checkpoint/safetensors.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

struct RecognizerSettings {
  std::string asr_train_config;
  std::string asr_model_file;
  std::string device = "cpu";
  std::string dtype = "float32";
  std::int64_t beam_size = 20;
  double ctc_weight = 0.5;
  double penalty = 0;
  double maxlenratio = 0;
  double minlenratio = 0;
  bool normalize_length = false;
  std::int64_t nbest = 1;
  bool token_times = false;
  double batch_seconds = 0;
};

config::Schema<RecognizerSettings> recognizer_schema() {
  using S = RecognizerSettings;
  config::Schema<S> s("Speech2Text", "A trained recogniser.");
  s.field("asr_train_config", &S::asr_train_config, "config.yaml of the training run",
          {.required = true});
  s.field("asr_model_file", &S::asr_model_file, "weights: .safetensors, .pth or .ckpt",
          {.required = true});
  s.field("device", &S::device, "cpu, cuda or cuda:N");
  s.field("dtype", &S::dtype, "number format of the model",
          {.one_of = {"float32", "bfloat16", "float16", "float64"}});
  s.field("beam_size", &S::beam_size, "hypotheses kept", {.min = 1});
  s.field("ctc_weight", &S::ctc_weight, "of CTC against the decoder", {.min = 0, .max = 1});
  s.field("penalty", &S::penalty, "added per token");
  s.field("maxlenratio", &S::maxlenratio, "0: encoder frames; negative: that many tokens");
  s.field("minlenratio", &S::minlenratio, "as maxlenratio, for the shortest");
  s.field("normalize_length", &S::normalize_length, "compare scores per token");
  s.field("nbest", &S::nbest, "alternatives to return", {.min = 1});
  s.field("token_times", &S::token_times, "begin and end of every token");
  s.field("batch_seconds", &S::batch_seconds, "padded audio per batch; 0: no limit",
          {.min = 0, .unit = "seconds"});
  return s;
}

speech::StateDict read_weights(const fs::path& path) {
  return path.extension() == ".safetensors" ? trainer::read_safetensors(path)
                                            : trainer::read_pth(path);
}

// ESPnet3 leaves weights in exp_dir, we in exp_dir/checkpoints; its files name a .pth or .ckpt
// where ours are .safetensors; and "ave_10best" is the average of fewer when fewer were kept. A
// config that names any of these means the one that is there.
fs::path find_weights(const fs::path& asked) {
  if (fs::exists(asked)) return asked;
  const fs::path folder = asked.parent_path();
  const std::string stem = asked.stem().string();
  const auto average = stem.find(".ave_");
  std::vector<std::string> there;
  fs::path found;
  for (const fs::path& place : {folder, folder / "checkpoints"}) {
    if (!fs::is_directory(place)) continue;
    for (const auto& entry : fs::directory_iterator(place)) {
      if (entry.path().extension() != ".safetensors") continue;
      const std::string other = entry.path().stem().string();
      there.push_back(entry.path().filename().string());
      const bool fits = other == stem || (average != std::string::npos &&
                                          other.compare(0, average + 5, stem, 0, average + 5) == 0);
      if (fits && (found.empty() || other == stem)) found = entry.path();
    }
  }
  if (!found.empty()) return found;
  std::sort(there.begin(), there.end());
  throw DataError(fmt::format("model.asr_model_file: {}: no such file", asked.string()),
                  there.empty() ? "run the train stage first" : "there are " + join(there, ", "));
}

RecognizerSettings read_settings(const config::Node& model) {
  config::Problems problems;
  auto settings = recognizer_schema().parse(model, problems);
  problems.throw_if_any();
  settings.asr_model_file = find_weights(settings.asr_model_file).string();
  return settings;
}

// `training` is a resolved training config of ours, or ESPnet's flat config.yaml.
Recognizer build(const config::Node& training, const RecognizerSettings& s,
                 std::size_t batch_size) {
  config::Problems problems;
  const bool is_ours = training["model"].is_map();
  const speech::AsrSettings asr = is_ours ? speech::read_asr_settings(training, problems)
                                          : speech::read_espnet_config(training, problems);
  problems.throw_if_any();
  speech::AsrModel network(speech::Build{}, asr);
  speech::load_state_dict(*network, read_weights(s.asr_model_file), s.asr_model_file);
  speech::Speech2TextOptions options;
  options.device = s.device;
  options.dtype = s.dtype;
  options.batch_size = batch_size;
  options.batch_seconds = s.batch_seconds;
  options.beam_size = s.beam_size;
  options.ctc_weight = s.ctc_weight;
  options.penalty = s.penalty;
  options.maxlenratio = s.maxlenratio;
  options.minlenratio = s.minlenratio;
  options.normalize_length = s.normalize_length;
  options.nbest = s.nbest;
  options.token_times = s.token_times;
  Recognizer out;
  out.sample_rate = asr.frontend.fs;
  out.speech2text = std::make_shared<speech::Speech2Text>(network, make_codec(training), options);
  return out;
}

}  // namespace

Recognizer load_recognizer(const config::Node& model, std::size_t batch_size) {
  const RecognizerSettings s = read_settings(model);
  return build(config::parse_yaml(read_file(s.asr_train_config), s.asr_train_config), s,
               batch_size);
}

Recognizer load_packed_recognizer(const fs::path& folder, const config::Node& options,
                                  std::size_t batch_size) {
  if (!fs::exists(folder / kPackedConfig))
    throw DataError(folder.string() + ": not a packed model", "make one with the pack_model stage");
  Json training = config::to_json(
      config::parse_yaml(read_file(folder / kPackedConfig), (folder / kPackedConfig).string()));
  for (const auto& pointer : packed_paths()) {
    const Json::json_pointer where(pointer);
    if (training.contains(where) && training[where].is_string())
      training[where] = (folder / training[where].get<std::string>()).string();
  }
  Json model = config::to_json(options);
  if (!model.is_object()) model = Json::object();
  model["asr_train_config"] = (folder / kPackedConfig).string();
  model["asr_model_file"] = (folder / kPackedWeights).string();
  return build(config::from_json(training), read_settings(config::from_json(model)), batch_size);
}

void recognise_files(const fs::path& pack, const std::vector<std::string>& files, bool as_json) {
  if (files.empty())
    throw ConfigError("no audio files given", "tutti infer --model PACK audio.wav...");
  const Recognizer recognizer = load_packed_recognizer(pack, {}, 1);
  for (const auto& file : files) {
    const auto audio = data::read_audio(file, {.sample_rate = recognizer.sample_rate});
    const auto best = recognizer.speech2text->decode({audio.samples})[0].nbest.at(0);
    if (as_json)
      fmt::print("{}\n",
                 to_json_line({{"file", file}, {"text", best.text}, {"score", best.score}}));
    else
      fmt::print("{} {}\n", file, best.text);
  }
}

std::vector<std::string> recognizer_files(const config::Node& model) {
  const RecognizerSettings s = read_settings(model);
  return {s.asr_train_config, s.asr_model_file};
}

}  // namespace tutti::systems
