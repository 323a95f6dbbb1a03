#include "tutti/systems/input_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <vector>

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
  const fs::path inside = fs::absolute(path).lexically_normal().lexically_relative(
      fs::absolute(folder).lexically_normal());
  return !inside.empty() && *inside.begin() != "..";
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

}  // namespace

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
