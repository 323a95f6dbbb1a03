#include "tutti/speech/espnet/model_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "tutti/config/load.h"
#include "tutti/core/crc32c.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"

namespace tutti::speech {
namespace {

namespace fs = std::filesystem;

constexpr const char* kArchives[] = {".zip",     ".tar", ".tgz",    ".tar.gz",
                                     ".tar.bz2", ".txz", ".tar.xz", ".tbz2"};
constexpr const char* kWeights[] = {".pth", ".safetensors", ".ckpt", ".pt"};

bool is_weights(const fs::path& path) {
  return std::find(std::begin(kWeights), std::end(kWeights), path.extension()) !=
         std::end(kWeights);
}

fs::path cache_folder() {
  if (const char* own = std::getenv("TUTTI_CACHE"); own != nullptr && *own != '\0') return own;
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg != nullptr && *xdg != '\0')
    return fs::path(xdg) / "tutti";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return fs::path(home) / ".cache/tutti";
  return fs::temp_directory_path() / fmt::format("tutti-cache-{}", ::getuid());
}

// unzip and tar leave out members that would land outside the folder.
void extract(const fs::path& archive, const fs::path& folder) {
  std::vector<std::vector<std::string>> ways;
  if (archive.extension() == ".zip")
    ways = {{"unzip", "-q", "-o", archive.string(), "-d", folder.string()},
            {"python3", "-m", "zipfile", "-e", archive.string(), folder.string()}};
  else
    ways = {{"tar", "-x", "-f", archive.string(), "-C", folder.string()}};
  std::string told;
  for (const auto& argv : ways) {
    const CommandResult result = run_command({.argv = argv});
    if (result.ok()) return;
    if (told.empty() || result.exit_code != 127) told = result.describe();
  }
  throw DataError(archive.string() + ": cannot be unpacked: " + told,
                  "unpack it yourself and give the folder");
}

// Its own name and what tells one version from the next.
fs::path unpacked(const fs::path& archive) {
  const fs::path whole = fs::absolute(archive);
  const auto written = fs::last_write_time(whole).time_since_epoch().count();
  const std::string state = fmt::format("{}|{}|{}", whole.string(), fs::file_size(whole), written);
  const fs::path place =
      cache_folder() / "models" / fmt::format("{}-{:08x}", whole.stem().string(), crc32c(state));
  if (fs::is_directory(place)) return place;
  make_folders(place.parent_path());
  const fs::path own = fmt::format("{}.{}", place.string(), ::getpid());
  make_folders(own);
  log::info("unpacking {} into {}", archive.string(), place.string());
  try {
    extract(whole, own);
    std::error_code taken;  // another process was faster: its folder holds the same
    fs::rename(own, place, taken);
    if (taken && !fs::is_directory(place))
      throw IoError(fmt::format("cannot rename {}: {}", own.string(), taken.message()));
    fs::remove_all(own);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(own, ignored);
    throw;
  }
  return place;
}

std::vector<fs::path> weights_in(const fs::path& folder) {
  std::vector<fs::path> found;
  if (!fs::is_directory(folder)) return found;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_regular_file() && is_weights(entry.path())) found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

std::string names_of(const std::vector<fs::path>& files) {
  std::vector<std::string> names;
  for (const fs::path& file : files) names.push_back(file.filename().string());
  return join(names, ", ");
}

// The one file of weights beside a config; an average beats the checkpoints it was made of.
fs::path choose_weights(const fs::path& folder) {
  std::vector<fs::path> found = weights_in(folder);
  const auto beside = weights_in(folder / "checkpoints");
  found.insert(found.end(), beside.begin(), beside.end());
  // ESPnet's training state, which is not for decoding.
  std::erase_if(found, [](const fs::path& file) { return file.filename() == "checkpoint.pth"; });
  if (found.size() == 1) return found[0];
  std::vector<fs::path> averages;
  for (const fs::path& file : found)
    if (file.filename().string().find(".ave") != std::string::npos) averages.push_back(file);
  if (averages.size() == 1) return averages[0];
  throw DataError(
      found.empty()
          ? folder.string() + ": there are no weights (.pth, .safetensors or .ckpt) in it"
          : fmt::format("{}: which weights count? There are {}", folder.string(), names_of(found)),
      found.empty() ? "give the folder as it was published"
                    : "name config and weights in an inference file: asr_train_config and "
                      "asr_model_file");
}

// "asr" of asr_train_config; a language model's own config is not what decides.
std::string task_of_key(const std::string& key) {
  const std::string end = "train_config";
  if (!key.ends_with(end)) return {};
  return key.size() > end.size() ? key.substr(0, key.size() - end.size() - 1) : "";
}

ModelFolder read_meta(const fs::path& root) {
  const fs::path file = root / "meta.yaml";
  const config::Node meta = config::parse_yaml(read_file(file), file.string());
  ModelFolder out;
  out.root = root;
  const auto note = [&](const config::Node& named) {
    const fs::path path = root / named.as<std::string>();
    if (!fs::exists(path)) out.missing.push_back(named.as<std::string>());
    return path;
  };
  for (const auto& [key, named] : meta["yaml_files"].items()) {
    const fs::path path = note(named);
    if (key == "lm_train_config") {
      out.lm_config = path;
    } else if (key.ends_with("train_config")) {
      out.config = path;
      out.task = task_of_key(key);
    }
  }
  for (const auto& [key, named] : meta["files"].items()) {
    const fs::path path = note(named);
    if (key == "lm_file")
      out.lm_weights = path;
    else if (key.ends_with("model_file"))
      out.weights = path;
  }
  if (out.config.empty() && !out.weights.empty())
    out.config = out.weights.parent_path() / "config.yaml";
  if (out.config.empty())
    throw DataError(file.string() + ": names no train_config and no model_file",
                    "give the folder as ESPnet packed it");
  if (out.weights.empty()) out.weights = choose_weights(out.config.parent_path());
  return out;
}

// The config files of experiments below a folder without meta.yaml.
std::vector<fs::path> experiment_configs(const fs::path& root) {
  std::vector<fs::path> found;
  if (!fs::is_directory(root / "exp")) return found;
  for (const auto& entry : fs::directory_iterator(root / "exp")) {
    const fs::path config = entry.path() / "config.yaml";
    const bool is_lm = entry.path().filename().string().starts_with("lm_");
    if (fs::is_regular_file(config) && !is_lm && !weights_in(entry.path()).empty())
      found.push_back(config);
  }
  return found;
}

fs::path root_above(const fs::path& config) {
  for (fs::path folder = config.parent_path(); folder.has_relative_path();
       folder = folder.parent_path()) {
    if (fs::exists(folder / "meta.yaml")) return folder;
    // A recipe's folder: its paths begin with exp/ and data/.
    if (folder.filename() == "exp") return folder.parent_path();
  }
  return config.parent_path();
}

}  // namespace

bool is_model_archive(const fs::path& path) {
  const std::string name = path.filename().string();
  return fs::is_regular_file(path) &&
         std::any_of(std::begin(kArchives), std::end(kArchives),
                     [&](const char* end) { return name.ends_with(end); });
}

ModelFolder open_model_folder(const fs::path& given) {
  if (!fs::exists(given)) throw IoError(given.string() + ": no such file or folder");
  if (fs::is_regular_file(given) && !is_model_archive(given))
    throw DataError(given.string() + ": expected a folder, or a .zip or .tar of one",
                    "name single files in an inference file: asr_train_config, asr_model_file");
  const fs::path root = is_model_archive(given) ? unpacked(given) : fs::absolute(given);
  if (fs::exists(root / "meta.yaml")) return read_meta(root);
  if (fs::exists(root / "config.yaml"))
    return model_folder_of(root / "config.yaml", choose_weights(root), "");
  const auto experiments = experiment_configs(root);
  if (experiments.size() == 1)
    return model_folder_of(experiments[0], choose_weights(experiments[0].parent_path()), "");
  // An archive of a folder, not of its content.
  std::vector<fs::path> inner;
  for (const auto& entry : fs::directory_iterator(root))
    if (fs::exists(entry.path() / "meta.yaml")) inner.push_back(entry.path());
  if (inner.size() == 1) return read_meta(inner[0]);
  throw DataError(experiments.empty()
                      ? given.string() +
                            ": not a model: there is no meta.yaml, config.yaml or exp/*/config.yaml"
                      : fmt::format("{}: holds {} models", given.string(), experiments.size()),
                  experiments.empty()
                      ? "give a published folder, or a pack made by the pack_model stage"
                      : "give one of them, e.g. " + experiments[0].parent_path().string());
}

ModelFolder model_folder_of(const fs::path& config, const fs::path& weights,
                            const std::string& task) {
  ModelFolder out;
  out.config = fs::absolute(config);
  out.weights = weights;
  out.root = root_above(out.config);
  out.task = task;
  return out;
}

fs::path find_in_folder(const ModelFolder& model, const fs::path& named) {
  if (named.empty()) return {};
  const fs::path starts[] = {model.root, model.config.parent_path()};
  for (const fs::path& start : starts)
    if (fs::exists(start / named)) return start / named;
  if (fs::exists(named)) return named;
  for (const fs::path& start : starts) {
    for (fs::path rest = named.relative_path(); !rest.empty();) {
      if (fs::exists(start / rest)) return start / rest;
      fs::path shorter;  // without its first part
      for (auto part = std::next(rest.begin()); part != rest.end(); ++part) shorter /= *part;
      rest = shorter;
    }
  }
  return {};
}

}  // namespace tutti::speech
