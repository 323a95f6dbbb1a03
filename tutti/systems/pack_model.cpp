#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/fingerprint.h"
#include "tutti/core/log.h"
#include "tutti/systems/pack.h"
#include "tutti/systems/stages.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

// The averaged weights of the first criterion.
fs::path best_weights(const StageContext& context, const fs::path& exp_dir) {
  const fs::path folder = exp_dir / "checkpoints";
  std::string metric = context.training["best_model_criterion"][0][0].value_or<std::string>("");
  std::replace(metric.begin(), metric.end(), '/', '.');
  if (fs::is_directory(folder)) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (name.rfind(metric + ".ave_", 0) == 0 && entry.path().extension() == ".safetensors")
        return entry.path();
    }
  }
  throw DataError(folder.string() + ": no averaged weights",
                  "run the train stage to its end first");
}

std::string readme(const StageContext& context, const fs::path& inference_dir,
                   const fs::path& weights) {
  std::string text = fmt::format(
      "# {}\n\nA recogniser packed by Tutti.\n\n```\ntutti infer --model . audio.wav...\n```\n",
      context.folder("exp_dir").filename().string());
  const fs::path metrics = inference_dir / "metrics.json";
  if (!fs::exists(metrics)) return text;
  const fs::path marks = inference_dir / kMeasuredWeights;
  const Json measured =
      fs::exists(marks) ? parse_json(read_file(marks), marks.string()) : Json::object();
  const Json packed = content_mark(weights);
  std::string rows;
  std::set<std::string> of_others;
  const Json results = parse_json(read_file(metrics), metrics.string());
  for (const auto& [metric, sets] : results.items())
    for (const auto& [set, values] : sets.items())
      if (measured.value(set, packed) == packed)
        rows += fmt::format("| {} | {} | {} |\n", metric.substr(metric.rfind('.') + 1), set,
                            values.begin().value().dump());
      else
        of_others.insert(set);
  for (const std::string& set : of_others)
    log::warning(
        "{}: its error rates came from other weights than those packed and are left out of the "
        "README; run infer, measure and pack_model",
        set);
  if (rows.empty()) return text;
  return text + "\n## Results\n\n| metric | test set | error rate (%) |\n|---|---|---|\n" + rows;
}

// The search settings behind the error rates: what `tutti infer --model` begins with.
void copy_decoding(const fs::path& inference_dir, const fs::path& folder) {
  const fs::path from = inference_dir / kPackedDecoding;
  std::error_code absent;
  if (fs::exists(from))
    write_file_atomic(folder / kPackedDecoding, read_file(from));
  else
    fs::remove(folder / kPackedDecoding, absent);
}

}  // namespace

void pack_model(const StageContext& context) {
  const fs::path exp_dir = context.folder("exp_dir");
  const fs::path weights = best_weights(context, exp_dir);
  const fs::path folder = exp_dir / "model_pack";
  make_folders(folder);
  Json config = config::to_json(context.training);
  for (const auto& pointer : packed_paths()) {
    const Json::json_pointer where(pointer);
    if (!config.contains(where) || !config[where].is_string()) continue;
    const fs::path file = config[where].get<std::string>();
    write_file_atomic(folder / file.filename(), read_file(file));
    config[where] = file.filename().string();
  }
  for (const char* key :
       {"recipe_dir", "data_dir", "exp_dir", "stats_dir", "create_dataset", "parallel"})
    config.erase(key);
  write_file_atomic(folder / kPackedWeights, read_file(weights));
  const fs::path inference_dir =
      context.inference.defined() ? context.folder("inference_dir") : exp_dir / "inference";
  copy_decoding(inference_dir, folder);
  write_file_atomic(folder / "README.md", readme(context, inference_dir, weights));
  write_file_atomic(folder / kPackedConfig, config::to_yaml(config::from_json(config)));
  log::info("{} packed into {}", weights.filename().string(), folder.string());
}

}  // namespace tutti::systems
