#include "tutti/systems/input_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tutti/config/schemas/files.h"
#include "tutti/core/path_inside.h"
#include "tutti/core/text.h"
#include "tutti/systems/dataset_builder.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using config::Node;
using config::Problems;

// Folders that stages fill before the config's own begin.
std::vector<fs::path> made_folders(const Node& root) {
  std::vector<std::string> keys = {"stats_dir", "exp_dir", "inference_dir"};
  bool built = root["create_dataset"].is_map();
  for (const char* split : {"train", "valid", "test"})
    for (const Node& entry : root["dataset"][split].elements())
      built = built || (entry.is_map() && is_built(entry));
  if (built) keys.emplace_back("data_dir");
  if (root["plugins"].size() > 0) keys.emplace_back("recipe_dir");  // a plugin's stage may make it
  std::vector<fs::path> folders;
  for (const std::string& key : keys)
    if (root[key].is_scalar()) folders.emplace_back(root[key].raw());
  if (root["tokenizer"]["save_path"].is_scalar())
    folders.emplace_back(root["tokenizer"]["save_path"].raw());
  return folders;
}

bool is_under(const fs::path& path, const fs::path& folder) {
  return !path_inside(fs::absolute(path), fs::absolute(folder)).empty();
}

class Inputs {
 public:
  Inputs(const Node& root, Problems& problems) : made_(made_folders(root)), problems_(problems) {}

  // Weights of no bytes are what a full disk or a broken download leaves.
  void refuse_empty(const Node& at) {
    if (!at.is_scalar()) return;
    std::error_code absent;
    if (fs::is_regular_file(at.raw(), absent) && fs::file_size(at.raw(), absent) == 0 && !absent)
      problems_.add(at, fmt::format("got '{}', which is empty", at.raw()),
                    "copy or download it again");
  }

  void add_made(const Node& folder) {
    if (folder.is_scalar()) made_.emplace_back(folder.raw());
  }
  // `part`: of the value, when more than the path stands there.
  void require(const Node& at, const std::string& part = {}) {
    if (!at.is_scalar()) return;
    const std::string path = part.empty() ? at.raw() : part;
    if (path.empty() || exists(path)) return;
    for (const fs::path& folder : made_)
      if (is_under(path, folder)) return;
    const fs::path parent = fs::path(path).parent_path();
    problems_.add(at, fmt::format("got '{}', but there is no such file or folder", path),
                  fs::path(path).is_absolute() || exists(parent)
                      ? "check the name, or make it first"
                      : fmt::format("check the name, or make it first (looked in '{}')",
                                    fs::current_path().string()));
  }

 private:
  static bool exists(const fs::path& path) {
    std::error_code unreadable;  // is there, and says so itself when it is opened
    return fs::exists(path, unreadable) || unreadable;
  }

  std::vector<fs::path> made_;
  Problems& problems_;
};

void require_corpora(const Node& root, Inputs& inputs) {
  for (const char* split : {"train", "valid", "test"})
    for (const Node& entry : root["dataset"][split].elements()) {
      if (!entry.is_map() || is_built(entry)) continue;
      for (const char* key : {"manifest", "archive", "wav_scp", "feats_scp", "text", "utt2spk",
                              "segments", "utt2num_samples", "root"})
        inputs.require(entry["data_src_args"][key]);
      for (const auto& [name, field] : entry["fields"].items()) inputs.require(field["path"]);
    }
}

void require_all(const Node& block, const std::vector<const char*>& keys, Inputs& inputs) {
  for (const char* key : keys) inputs.require(block[key]);
}

std::string file_name_of(std::string metric) {
  std::replace(metric.begin(), metric.end(), '/', '.');
  return metric;
}

// Where the stage that decodes looks: another number than the one asked for will do.
bool has_average(const fs::path& folder, const std::string& metric) {
  std::error_code unreadable;
  for (const auto& entry : fs::directory_iterator(folder, unreadable))
    if (averaged_metric(entry.path()) == metric) return true;
  return false;
}

// By metric, how many are averaged; of both places that name criteria.
std::map<std::string, int> kept_metrics(const Node& training, Problems& problems) {
  std::map<std::string, int> kept;
  for (const Node& callback : training["trainer"]["callbacks"].elements()) {
    const std::string target = callback["_target_"].value_or<std::string>("");
    const int count = callback["save_top_k"].value_or(1);
    if ((target.ends_with("ModelCheckpoint") || target == "model_checkpoint") && count != 0 &&
        callback["monitor"].is_scalar())
      kept[file_name_of(callback["monitor"].raw())] = std::max(1, count);
  }
  for (const auto& criterion :
       config::parse_best_model_criterion(training["best_model_criterion"], problems))
    kept[file_name_of(criterion.metric)] = criterion.keep;
  return kept;
}

}  // namespace

std::string averaged_metric(const fs::path& file) {
  const std::string stem = file.stem().string();
  const auto at = stem.find(".ave_");
  if (at == std::string::npos || !stem.ends_with("best")) return {};
  const auto first = stem.begin() + static_cast<std::ptrdiff_t>(at) + 5, last = stem.end() - 4;
  const bool is_number = first < last && *first != '0' &&
                         std::all_of(first, last, [](char c) { return c >= '0' && c <= '9'; });
  return is_number ? stem.substr(0, at) : std::string();
}

void check_average_name(const Node& training, const Node& inference, Problems& problems) {
  if (!training["exp_dir"].is_scalar() || !inference["model"].is_map()) return;
  const fs::path exp_dir = fs::absolute(training["exp_dir"].raw()).lexically_normal();
  for (const char* key : {"asr_model_file", "s2t_model_file"}) {
    const Node asked = inference["model"][key];
    if (!asked.is_scalar()) continue;
    const fs::path file = fs::absolute(asked.raw()).lexically_normal();
    const fs::path folder = file.parent_path();
    const std::string metric = averaged_metric(file);
    if (metric.empty() || (folder != exp_dir && folder != exp_dir / "checkpoints")) continue;
    if (has_average(folder, metric) || has_average(folder / "checkpoints", metric)) continue;
    Problems of_training;  // told where that file is checked
    const auto kept = kept_metrics(training, of_training);
    if (!of_training.empty() || kept.empty() || kept.count(metric) > 0) continue;
    std::vector<std::string> names;
    for (const auto& [name, count] : kept)
      names.push_back(fmt::format("{}.ave_{}best{}", name, count, file.extension().string()));
    problems.add(asked,
                 fmt::format("got '{}', which this training does not write: its criteria make {}",
                             file.filename().string(), join(names, ", ")),
                 "name one of them, or add the metric to best_model_criterion");
  }
}

void check_input_files(config::FileKind kind, const Node& root, Problems& problems,
                       InputFiles needed) {
  Inputs inputs(root, problems);
  const Node model = root["model"];
  switch (kind) {
    case config::FileKind::kTraining: {
      require_corpora(root, inputs);
      inputs.require(root["tokenizer"]["train_file"]);
      if (needed == InputFiles::kData) break;
      require_all(root["dataset"]["preprocessor"],
                  {"token_list", "bpemodel", "noise_scp", "rir_scp"}, inputs);
      require_all(model, {"token_list", "path", "weights"}, inputs);
      const Node begin = root["init_param"];
      if (begin.is_scalar()) inputs.require(begin, split(begin.raw(), ':').front());
      for (const Node& entry : begin.elements())
        if (entry.is_scalar()) inputs.require(entry, split(entry.raw(), ':').front());
      break;
    }
    case config::FileKind::kInference: {
      if (root["provider"].is_null()) {  // one of the user's own brings its model and data
        if (model.is_null())
          problems.add(root, "key 'model' is missing",
                       "name a trained model by `_target_` and its weights");
        if (root["dataset"]["test"].size() == 0)
          problems.add(root, "key 'dataset.test' is missing",
                       "list what to decode: dataset: {test: [{name: .., data_src: ..}]}");
      }
      require_corpora(root, inputs);
      inputs.add_made(root["data_dir"]);  // tokenizers: of the training config's stages
      require_all(model,
                  {"asr_train_config", "s2t_train_config", "lm_train_config", "lm_file",
                   "ngram_file", "bpemodel", "model_tag", "path", "weights", "token_list"},
                  inputs);
      for (const char* key : {"asr_model_file", "s2t_model_file", "lm_file", "path", "weights"})
        inputs.refuse_empty(model[key]);
      // Of weights, another name than the one written may be meant: the stage looks in the folder.
      for (const char* key : {"asr_model_file", "s2t_model_file"})
        if (model[key].is_scalar())
          inputs.require(model[key], fs::path(model[key].raw()).parent_path().string());
      break;
    }
    case config::FileKind::kMetrics:
      for (const Node& entry : root["metrics"].elements())
        inputs.require(entry["metric"]["bpemodel"]);
      break;
    case config::FileKind::kDemo:
    case config::FileKind::kPublication:
    case config::FileKind::kParallel:
      break;
  }
}

}  // namespace tutti::systems
