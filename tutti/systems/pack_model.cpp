#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include <map>
#include <set>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/fingerprint.h"
#include "tutti/core/log.h"
#include "tutti/core/path_inside.h"
#include "tutti/core/progress.h"
#include "tutti/core/status.h"
#include "tutti/systems/experiment_config.h"
#include "tutti/systems/fingerprints.h"
#include "tutti/systems/item_model.h"
#include "tutti/systems/models/adapt_config.h"
#include "tutti/systems/models/model_source.h"
#include "tutti/systems/pack.h"
#include "tutti/systems/stages.h"
#include "tutti/trainer/checkpoint/best_lists.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

// What the weights were trained with, whatever the config in the command says by now.
config::Node trained_config(const StageContext& context, const fs::path& exp_dir) {
  const fs::path noted = exp_dir / "config.yaml";
  return fs::exists(noted) ? read_experiment_config(noted) : context.training;
}

// The weights that infer takes, where it decodes this experiment; else the average of the first criterion.
fs::path best_weights(const StageContext& context, const config::Node& trained,
                      const fs::path& exp_dir) {
  const config::Node named = context.inference["model"]["asr_model_file"];
  if (named.is_scalar()) {
    const fs::path file = fs::absolute(named.raw()).lexically_normal();
    const fs::path home = fs::absolute(exp_dir).lexically_normal();
    if (file.parent_path() == home || file.parent_path() == home / "checkpoints") {
      renew_average(file);
      return find_weights(file);
    }
  }
  const config::Node criterion = trained["best_model_criterion"][0];
  const std::string metric =
      trainer::metric_file_name(criterion[0].value_or<std::string>("valid/loss"));
  const fs::path average =
      exp_dir / fmt::format("{}.ave_{}best.safetensors", metric, criterion[1].value_or(1));
  renew_average(average);
  return find_weights(average);
}

fs::path inference_folder(const StageContext& context, const fs::path& exp_dir) {
  return context.inference.defined() ? context.folder("inference_dir") : exp_dir / "inference";
}

// Provenance without places: what lies in the recipe is named from there, other files by their names.
void forget_places(Json& value, const fs::path& recipe_dir) {
  if (value.is_structured()) {
    for (auto& child : value) forget_places(child, recipe_dir);
  } else if (value.is_string()) {
    const fs::path path = value.get<std::string>();
    if (!path.is_absolute()) return;
    const fs::path inside = path_inside(path, recipe_dir);
    value = (inside.empty() ? path.filename() : inside).string();
  }
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
  std::map<std::string, std::string> undecoded;  // test set -> what its rates do not count
  std::set<std::string> of_others;
  const Json results = parse_json(read_file(metrics), metrics.string());
  for (const auto& [metric, sets] : results.items())
    for (const auto& [set, values] : sets.items()) {
      if (measured.value(set, packed) != packed) {
        of_others.insert(set);
        continue;
      }
      rows += fmt::format("| {} | {} | {} |\n", metric.substr(metric.rfind('.') + 1), set,
                          values.begin().value().dump());
      const auto left_out = values.value("utterances_not_decoded", std::size_t{0});
      if (left_out > 0)
        undecoded[set] =
            fmt::format("\n{}: {} of {} utterances could not be decoded and are not counted.\n",
                        set, left_out, left_out + values.value("utterances", std::size_t{0}));
    }
  for (const std::string& set : of_others)
    log::warning(
        "{}: its error rates came from other weights than those packed and are left out of the "
        "README; run infer, measure and pack_model",
        set);
  if (rows.empty()) return text;
  text += "\n## Results\n\n| metric | test set | error rate (%) |\n|---|---|---|\n" + rows;
  for (const auto& [set, line] : undecoded) text += line;
  return text;
}

// The search settings behind the error rates: what `tutti infer --model` begins with. A model that was adapted and not
// decoded yet is searched as the pack it began with.
fs::path decoding_of(const fs::path& inference_dir, const config::Node& trained) {
  const fs::path own = inference_dir / kPackedDecoding;
  const config::Node begin = trained["init_param"];
  const config::Node first = begin.is_scalar() ? begin : begin[0];
  if (fs::exists(own) || !first.is_scalar()) return own;
  const fs::path source = first.raw();
  return is_pack(source) ? source / kPackedDecoding : own;
}

// What a pack's config says; places and who computed are left behind.
Json packed_config(const config::Node& trained) {
  Json config = config::to_json(trained);
  for (const char* key :
       {"recipe_dir", "data_dir", "exp_dir", "stats_dir", "create_dataset", "parallel", "plugins"})
    config.erase(key);
  return config;
}

// They may be gigabytes: not through memory, and with a bar.
void copy_weights(const fs::path& from, const fs::path& to) {
  constexpr std::size_t kMiB = 1 << 20;
  const UniqueFd source(::open(from.c_str(), O_RDONLY | O_CLOEXEC));
  if (!source) throw_errno("cannot open " + from.string(), errno);
  ProgressBar progress("packing weights, MiB", (fs::file_size(from) + kMiB - 1) / kMiB);
  write_file_atomic(to, [&](int fd) {
    std::string piece(kMiB, '\0');
    while (true) {
      const ssize_t n = ::read(source.get(), piece.data(), piece.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw_errno("cannot read " + from.string(), errno);
      if (n == 0) return;
      write_all(fd, std::string_view(piece).substr(0, static_cast<std::size_t>(n)), to);
      progress.add();
    }
  });
}

// Of models that plugins or TorchScript files bring, the pack is a record alone.
void try_pack(const fs::path& folder, const config::Node& trained) {
  if (!trained["model"]["_target_"].is_null()) return;
  log::status("loading the new pack once, to see that it works");
  try {
    try_packed_recognizer(folder);
  } catch (const Error&) {
    log::error("the new pack cannot be loaded and is left in {}; an older one stays as it is",
               shown_path(folder));
    throw;
  }
  log::status("");
}

void replace_folder(const fs::path& made, const fs::path& folder) {
  const fs::path old = folder.string() + ".old";
  fs::remove_all(old);
  if (fs::exists(folder)) fs::rename(folder, old);
  fs::rename(made, folder);
  fs::remove_all(old);
}

}  // namespace

Fingerprint pack_inputs(const StageContext& context) {
  const fs::path exp_dir = context.folder("exp_dir");
  for (const char* file : {kPackedConfig, kPackedWeights, "README.md"})
    if (!fs::exists(exp_dir / "model_pack" / file)) return {};  // pack, whatever the record says
  const config::Node trained = trained_config(context, exp_dir);
  const Json config = packed_config(trained);
  Fingerprint inputs;
  inputs.add("config", config, places_of(trained));
  inputs.add_file("weights", best_weights(context, trained, exp_dir));
  for (const auto& pointer : packed_paths()) {
    const Json::json_pointer where(pointer);
    if (config.contains(where) && config[where].is_string())
      inputs.add_file(pointer, config[where].get<std::string>());
  }
  const fs::path inference_dir = inference_folder(context, exp_dir);
  inputs.add_file(kPackedDecoding, decoding_of(inference_dir, trained));
  for (const char* file : {"metrics.json", kMeasuredWeights})
    inputs.add_file(file, inference_dir / file);
  return inputs;
}

void pack_model(const StageContext& context) {
  const fs::path exp_dir = context.folder("exp_dir");
  const config::Node trained = trained_config(context, exp_dir);
  const fs::path weights = best_weights(context, trained, exp_dir);
  const fs::path folder = exp_dir / "model_pack";
  // The old pack stays until the new one is whole and can be loaded.
  const fs::path made = exp_dir / "model_pack.new";
  fs::remove_all(made);
  make_folders(made);
  Json config = packed_config(trained);
  for (const auto& pointer : packed_paths()) {
    const Json::json_pointer where(pointer);
    if (!config.contains(where) || !config[where].is_string()) continue;
    const fs::path file = config[where].get<std::string>();
    write_file_atomic(made / file.filename(), read_file(file));
    config[where] = file.filename().string();
  }
  forget_places(config, fs::absolute(context.folder("recipe_dir")).lexically_normal());
  copy_weights(weights, made / kPackedWeights);
  const fs::path inference_dir = inference_folder(context, exp_dir);
  if (const fs::path from = decoding_of(inference_dir, trained); fs::exists(from))
    write_file_atomic(made / kPackedDecoding, read_file(from));
  write_file_atomic(made / "README.md", readme(context, inference_dir, weights));
  write_file_atomic(made / kPackedConfig, config::to_yaml(config::from_json(config)));
  if (const std::string adapt = adapt_config(config); !adapt.empty())
    write_file_atomic(made / kPackedAdapt, adapt);
  try_pack(made, trained);
  replace_folder(made, folder);
  log::info("{} packed into {}", weights.filename().string(), shown_path(folder));
}

}  // namespace tutti::systems
