#include <fmt/format.h>
#include <torch/torch.h>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/data/io/npy.h"
#include "tutti/speech/espnet/transducer_config.h"
#include "tutti/speech/loading/state_dict.h"
#include "tutti/speech/models/asr_model.h"
#include "tutti/speech/models/model_config.h"
#include "tutti/systems/models/adapt_config.h"
#include "tutti/systems/models/model_info.h"
#include "tutti/systems/models/model_source.h"
#include "tutti/systems/models/task_settings.h"
#include "tutti/systems/pack.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokens = "tokens.txt";
constexpr const char* kStatistics = "feats_stats.npz";
constexpr const char* kBpe = "bpe.model";

data::Array doubles(const torch::Tensor& values) {
  const torch::Tensor flat = values.to(torch::kCPU, torch::kFloat64).contiguous();
  data::Array out = data::Array::make(data::DType::kFloat64, flat.sizes().vec());
  std::copy_n(flat.data_ptr<double>(), flat.numel(), static_cast<double*>(out.bytes.get()));
  return out;
}

// A pack names its statistics; those of a model that came without are in its weights.
void write_statistics(const fs::path& file, const speech::StateDict& weights) {
  const torch::Tensor mean = weights.at("normalize.mean").to(torch::kFloat64);
  const torch::Tensor std = weights.at("normalize.std").to(torch::kFloat64);
  data::write_npz(file, {{"count", doubles(torch::ones({}, torch::kFloat64))},
                         {"sum", doubles(mean)},
                         {"sum_square", doubles(std * std + mean * mean)}});
}

Json pack_config(const config::Node& training) {
  // The list goes into a file of its own: as JSON, a token like 1e3 would be a number.
  const auto json = [](const config::Node& block, const char* without) {
    Json out = Json::object();
    for (const auto& [key, node] : block.items())
      if (key != without) out[key] = config::to_json(node);
    return out;
  };
  Json model = json(training["model"], "token_list");
  model["token_list"] = kTokens;
  Json out = {{"task", training["task"].as<std::string>()}, {"model", std::move(model)}};
  Json& preprocessor = out["dataset"]["preprocessor"];
  preprocessor = json(training["dataset"]["preprocessor"], "token_list");
  if (preprocessor.contains("bpemodel")) preprocessor["bpemodel"] = kBpe;
  return out;
}

}  // namespace

void convert_model(const fs::path& folder, const fs::path& out, bool force) {
  if (fs::exists(out) && !(fs::is_directory(out) && fs::is_empty(out)) && !force)
    throw ConfigError(out.string() + " is there already", "give another folder, or --force");
  refuse_missing_model(folder, "folder");
  const speech::ModelFolder source = speech::open_model_folder(folder);
  const config::Node training = read_model_config(source);
  config::Problems problems;
  const speech::AsrSettings settings = speech::read_asr_settings(training, problems);
  problems.throw_if_any();
  speech::AsrModel model(speech::Build{}, settings);
  speech::load_published_weights(*model, speech::read_state_dict(source.weights),
                                 source.weights.string());
  make_folders(out);
  const speech::StateDict weights = speech::state_dict(*model);
  Json config = pack_config(training);
  if (settings.normalize.kind == speech::NormalizeKind::kGlobal) {
    write_statistics(out / kStatistics, weights);
    config["model"]["normalize_conf"]["stats_file"] = kStatistics;
  }
  if (const config::Node bpe = training["dataset"]["preprocessor"]["bpemodel"]; bpe.is_scalar())
    write_file_atomic(out / kBpe, read_file(bpe.raw()));
  write_file_atomic(out / kTokens, join(settings.token_list, "\n") + "\n");
  speech::write_state_dict(out / kPackedWeights, weights);
  write_file_atomic(
      out / "README.md",
      fmt::format("# {}\n\nConverted by Tutti from {}.\n\n```\ntutti infer --model . audio.wav...\n"
                  "```\n",
                  fs::absolute(out).filename().string(), source.weights.filename().string()));
  write_file_atomic(out / kPackedConfig, config::to_yaml(config::from_json(config)));
  if (is_transducer_task(training))  // a pack is of task asr, whose searches begin elsewhere
    write_file_atomic(out / kPackedDecoding,
                      config::to_yaml(config::from_json(speech::transducer_search_defaults())));
  if (const std::string adapt = adapt_config(config); !adapt.empty())
    write_file_atomic(out / kPackedAdapt, adapt);
  log::info("{} converted into {}", source.root.string(), out.string());
}

}  // namespace tutti::systems
