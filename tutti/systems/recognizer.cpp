#include "tutti/systems/recognizer.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <future>

#include "tutti/config/load.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/speech/loading/state_dict.h"
#include "tutti/speech/models/asr_model.h"
#include "tutti/speech/models/language_model.h"
#include "tutti/speech/models/model_config.h"
#include "tutti/systems/fingerprints.h"
#include "tutti/systems/models/model_source.h"
#include "tutti/systems/models/task_settings.h"
#include "tutti/systems/pack.h"
#include "tutti/systems/preprocess.h"
#include "tutti/trainer/checkpoint/pth.h"
#include "tutti/trainer/checkpoint/safetensors.h"
#include "tutti/trainer/cpu/processor.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

constexpr int kFilesTogether = 8;  // where neither the pack nor the user says how many

speech::StateDict read_weights(const fs::path& path) {
  return path.extension() == ".safetensors" ? trainer::read_safetensors(path)
                                            : trainer::read_pth(path);
}

speech::Speech2TextOptions read_search(const config::Node& model) {
  config::Problems problems;
  auto options = speech::speech2text_schema().parse(model, problems);
  problems.throw_if_any();
  return options;
}

// The language model named beside a recogniser, or that came with it; null when it weighs nothing.
speech::LanguageModel load_language_model(const speech::ModelFolder& source,
                                          const speech::AsrSettings& asr,
                                          const speech::Speech2TextOptions& options) {
  const double weight = options.lm_weight.value_or(options.lang_sym.empty() ? 1.0 : 0.0);
  if (source.lm_weights.empty() || weight == 0) return nullptr;
  for (const fs::path& file : {source.lm_weights, source.lm_config})
    if (!fs::exists(file))
      throw DataError(fmt::format("language model: {}: no such file", file.string()),
                      "check lm_file and lm_train_config, or set lm_weight: 0");
  const std::string name = source.lm_config.string();
  config::Problems problems;
  const auto settings =
      speech::read_lm_settings(config::parse_yaml(read_file(source.lm_config), name), problems);
  problems.throw_if_any();
  if (settings.token_list != asr.token_list)
    throw DataError(fmt::format("{}: {} tokens, which are not the {} of the recogniser in the same "
                                "order",
                                name, settings.token_list.size(), asr.token_list.size()),
                    "a language model must be trained with the recogniser's token list");
  auto lm = speech::make_language_model(speech::Build{.initialise = false}, settings);
  speech::load_published_weights(*lm, read_weights(source.lm_weights), source.lm_weights.string());
  log::info("language model {} with weight {}", source.lm_weights.string(), weight);
  return lm;
}

// The first batch on a GPU loads libraries and kernels, which takes a second: a model of one block and
// few tokens, but of the same widths, has them loaded while the weights are read.
void warm_up(speech::AsrSettings asr, const speech::Speech2TextOptions& options) {
  try {
    const torch::Device device = speech::parse_device(options.device);
    if (!device.is_cuda() || asr.prompt_encoder) return;
    const torch::NoGradGuard no_grad;
    const torch::ScalarType type = speech::parse_dtype(options.dtype);
    asr.encoder.num_blocks = asr.decoder.num_blocks = 1;
    asr.encoder.interctc_layer_idx.clear();
    asr.vocab_size = 64;
    asr.sos_id = asr.eos_id = asr.vocab_size - 1;
    speech::AsrModel model(speech::Build{device}, asr);
    model->eval();
    model->encoder->to(type);
    const std::int64_t samples = 2 * asr.frontend.fs;
    const speech::Encoded encoded =
        model->encode(model->frontend.is_empty()
                          ? torch::zeros({1, 200, asr.input_size}, torch::TensorOptions(device))
                          : torch::zeros({1, samples}, torch::TensorOptions(device)),
                      {model->frontend.is_empty() ? 200 : samples});
    if (!model->decoder.is_empty()) {
      model->decoder->to(type);
      speech::DecoderCache cache =
          model->decoder->start(encoded.out, encoded.lengths, options.beam_size);
      model->decoder
          ->step(
              torch::zeros({options.beam_size}, torch::TensorOptions(device).dtype(torch::kInt64)),
              cache)
          .topk(1, 1);
    }
    torch::cuda::synchronize(device.index());
  } catch (const std::exception& error) {  // the real model's to tell
    log::debug("nothing was loaded ahead: {}", error.what());
  }
}

// `training` is a resolved training config of ours, or what became of ESPnet's (model_source.h).
Recognizer build(const config::Node& training, const speech::ModelFolder& source,
                 speech::Speech2TextOptions options, const config::Node& asked) {
  const fs::path& weights = source.weights;
  config::Problems problems;
  const speech::AsrSettings asr = speech::read_asr_settings(training, problems);
  problems.throw_if_any();
  complete_options(training, asked, options);
  speech::check_effects(asked,
                        {.is_owsm = is_s2t(training) || is_s2t_ctc(training),
                         .is_owsm_ctc = is_s2t_ctc(training),
                         .is_transducer = asr.decoder_kind == speech::AsrDecoderKind::kTransducer,
                         .is_greedy = options.ctc_greedy,
                         .has_lm = !source.lm_weights.empty()},
                        problems);
  for (const auto& warning : problems.sorted_warnings()) log::warning("{}", warning.describe());
  problems.throw_if_any();
  // Made where it will work, and without first weights: drawing a billion of them takes ten seconds.
  const auto warmed = std::async(std::launch::async, [&] { warm_up(asr, options); });
  speech::AsrModel network(speech::Build{speech::parse_device(options.device), false}, asr);
  speech::load_published_weights(*network, read_weights(weights), weights.string());
  Recognizer out;
  out.sample_rate = asr.frontend.fs;
  out.speech2text = std::make_shared<speech::Speech2Text>(
      network, make_codec(training), options, load_language_model(source, asr, options));
  out.prepare = make_inference_prepare(training);
  if (network->parameters().front().device().is_cpu()) trainer::keep_freed_memory();
  return out;
}

}  // namespace

Recognizer load_recognizer(const config::Node& model, std::size_t batch_size) {
  auto options = read_search(model);
  options.batch_size = batch_size;
  speech::ModelFolder source = named_model(options);
  source.weights = find_weights(source.weights);
  return build(read_model_config(source), source, options, model);
}

Recognizer load_packed_recognizer(const fs::path& folder, const config::Node& options,
                                  std::size_t batch_size) {
  if (!is_pack(folder)) {
    auto published = read_search(options);
    published.model_tag = folder.string();
    if (batch_size > 0)
      published.batch_size = batch_size;
    else if (options["batch_size"].is_null())
      published.batch_size = kFilesTogether;
    const speech::ModelFolder source = named_model(published);
    return build(read_model_config(source), source, published, options);
  }
  Json training = config::to_json(
      config::parse_yaml(read_file(folder / kPackedConfig), (folder / kPackedConfig).string()));
  for (const auto& pointer : packed_paths()) {
    const Json::json_pointer where(pointer);
    if (training.contains(where) && training[where].is_string())
      training[where] = (folder / training[where].get<std::string>()).string();
  }
  // The settings its error rates came from, under those asked for now.
  Json model = Json::object();
  if (fs::exists(folder / kPackedDecoding))
    model = config::to_json(config::parse_yaml(read_file(folder / kPackedDecoding),
                                               (folder / kPackedDecoding).string()));
  if (const Json asked = config::to_json(options); asked.is_object()) model.update(asked);
  if (!model.contains("batch_size")) model["batch_size"] = kFilesTogether;
  auto merged = read_search(config::from_json(model));
  if (batch_size > 0) merged.batch_size = batch_size;
  speech::ModelFolder source;
  source.weights = folder / kPackedWeights;
  name_language_model(merged, source);
  return build(config::from_json(training), source, merged, config::from_json(model));
}

Fingerprint recognizer_inputs(const config::Node& model) {
  auto options = read_search(model);
  Fingerprint inputs;
  Json search = config::to_json(model);
  for (const char* key :
       {"asr_train_config", "asr_model_file", "s2t_train_config", "s2t_model_file", "model_tag",
        "lm_train_config", "lm_file", "bpemodel", "device", "batch_size", "batch_seconds"})
    search.erase(key);  // by content, below; or where, not what
  inputs.add("model", search);
  const speech::ModelFolder source = named_model(options);
  inputs.add_file("asr_model_file", find_weights(source.weights));
  if (!source.lm_weights.empty()) {
    inputs.add_file("lm_train_config", source.lm_config);
    inputs.add_file("lm_file", source.lm_weights);
  }
  const config::Node training = read_model_config(source);
  Json trained = {
      {"model", config::to_json(training["model"])},
      {"dataset", {{"preprocessor", config::to_json(training["dataset"]["preprocessor"])}}}};
  for (const auto& pointer : packed_paths()) {
    const Json::json_pointer where(pointer);
    if (!trained.contains(where) || !trained[where].is_string()) continue;
    inputs.add_file("trained" + pointer, trained[where].get<std::string>());
    trained[where] = nullptr;  // a model that was moved is the same
  }
  const Places places = places_of(training);
  inputs.add("trained.model", trained["model"], places);
  inputs.add("trained.preprocessor", trained["dataset"]["preprocessor"], places);
  return inputs;
}

}  // namespace tutti::systems
