#include "tutti/systems/training/checkpoint_home.h"

#include <fmt/format.h>

#include <vector>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/path_inside.h"
#include "tutti/core/text.h"
#include "tutti/trainer/checkpoint/store.h"
#include "tutti/trainer/trainer_settings.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using trainer::CheckpointStore;

// One name per place, links followed.
fs::path real_path(const fs::path& path) {
  const fs::path real = fs::weakly_canonical(fs::absolute(path));
  return real.has_filename() ? real : real.parent_path();
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  return !path_inside(path, folder).empty();
}

fs::path mark_of(const fs::path& folder) { return folder / ".tutti" / "experiment"; }

// Whose checkpoints these are, by exp_dir; empty: nobody says so.
fs::path owner_of(const fs::path& folder) {
  if (fs::exists(mark_of(folder))) return trim(read_file(mark_of(folder)));
  // Where an experiment has them by itself.
  const fs::path around = folder.parent_path();
  return folder.filename() == "checkpoints" && fs::exists(around / "config.yaml") ? around
                                                                                  : fs::path();
}

bool leads_to(const fs::path& link, const fs::path& folder) {
  std::error_code absent;
  return fs::equivalent(link, folder, absent);
}

// A name that CheckpointStore gives.
bool is_checkpoint_name(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with("step-") || name.starts_with(".step-") || name == "last" ||
         name == "best" || name == "best.json" || path.extension() == ".safetensors" ||
         path.extension() == ".pth" || name.find(".ave_") != std::string::npos;
}

}  // namespace

void set_path_aside(const fs::path& path) {
  if (!fs::exists(fs::symlink_status(path))) return;
  const fs::path aside = trainer::room_aside(path);
  fs::rename(path, aside);
  log::info("{}: moved to {}", path.string(), aside.filename().string());
}

CheckpointHome::CheckpointHome(const StageContext& context, const trainer::LoopSettings& loop)
    : context_(context),
      exp_dir_(real_path(context.folder("exp_dir"))),
      link_(exp_dir_ / "checkpoints"),
      path_(loop.checkpoint_folder.empty() ? fs::path() : real_path(loop.checkpoint_folder)),
      is_elsewhere_(!path_.empty() && path_ != link_) {}

void CheckpointHome::refuse(bool fresh_start) const {
  if (!is_elsewhere_) return;
  if (is_inside(exp_dir_, path_))
    throw ConfigError(fmt::format("{}: checkpoints need a folder of their own, but exp_dir is {}",
                                  path_.string(), exp_dir_ == path_ ? "the same" : "in it"),
                      "leave dirpath out (they go to exp_dir/checkpoints), or " + own_folder());
  refuse_others(fresh_start);
  if (!fresh_start) refuse_third_place();
}

void CheckpointHome::refuse_others(bool fresh_start) const {
  if (!CheckpointStore::has_any(path_)) return;
  const fs::path owner = owner_of(path_);
  if (owner.empty()) return;  // laid there by hand, to go on with
  const bool is_named = real_path(owner) == exp_dir_;
  if (!is_named && leads_to(owner / "checkpoints", path_))
    throw ConfigError(fmt::format("{} has the checkpoints of another experiment, {}",
                                  path_.string(), owner.string()),
                      "give this one a folder of its own: " + own_folder());
  // The owner was moved to here, or nobody has them any more.
  if (leads_to(link_, path_) || (is_named && fresh_start)) return;
  throw ConfigError(fmt::format("{} has checkpoints that {} does not know: they were trained as {}",
                                path_.string(), exp_dir_.string(), owner.string()),
                    fmt::format("one of\n"
                                "    {}  gives this experiment a folder of its own\n"
                                "    mkdir -p {} && ln -sfn {} {}  makes them this experiment's",
                                own_folder(), shell_quote(exp_dir_.string()),
                                shell_quote(path_.string()), shell_quote(link_.string())));
}

void CheckpointHome::refuse_third_place() const {
  if (leads_to(link_, path_) || !CheckpointStore::has_any(link_)) return;
  const std::string there = real_path(link_).string();
  throw ConfigError(
      fmt::format("the checkpoints of {} are in {}, but the config says {}", exp_dir_.string(),
                  there, path_.string()),
      fmt::format("one of\n"
                  "    mkdir -p {} && mv {}/* {}  moves them to where the config says\n"
                  "    --force  starts over there",
                  shell_quote(path_.string()), shell_quote(there), shell_quote(path_.string())));
}

std::string CheckpointHome::own_folder() const {
  const std::string name = exp_dir_.filename().string();
  const config::Node settings = context_.training["trainer"];
  const auto callbacks = settings["callbacks"].elements();
  for (std::size_t i = callbacks.size(); i-- > 0;) {
    const std::string folder = callbacks[i]["dirpath"].value_or<std::string>("");
    if (!folder.empty() && real_path(folder) == path_)
      return shell_quote(
          fmt::format("trainer.callbacks.{}.dirpath={}_{}", i, path_.string(), name));
  }
  if (settings["default_root_dir"].value_or<std::string>("").empty()) return "exp_tag=NAME";
  return shell_quote(
      fmt::format("trainer.default_root_dir={}", (path_.parent_path() / name).string()));
}

bool CheckpointHome::has_only_weights() const {
  return !path_.empty() && fs::exists(path_ / "best.json") && !CheckpointStore::has_any(path_);
}

void CheckpointHome::set_aside() const {
  if (path_.empty()) return;
  if (!is_elsewhere_) return set_path_aside(link_);
  if (!leads_to(link_, path_)) {
    if (fs::is_symlink(link_))
      fs::remove(link_);  // what it leads to stays where it is
    else
      set_path_aside(link_);
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path_))
    if (is_checkpoint_name(entry.path())) files.push_back(entry.path());
  if (files.empty()) return;
  // One by one: the folder's lock and mark stay.
  const fs::path aside = trainer::room_aside(path_);
  make_folders(aside);
  for (const fs::path& file : files) fs::rename(file, aside / file.filename());
  log::info("{}: its checkpoints were moved to {}", path_.string(), aside.filename().string());
}

void CheckpointHome::claim() const {
  if (!is_elsewhere_) return;
  if (!leads_to(link_, path_)) {
    // Within the recipe by a relative way: they are moved together.
    const std::string recipe = context_.training["recipe_dir"].value_or<std::string>("");
    const bool together = !recipe.empty() && is_inside(path_, real_path(recipe)) &&
                          is_inside(exp_dir_, real_path(recipe));
    if (fs::is_symlink(link_) || (fs::is_directory(link_) && fs::is_empty(link_)))
      fs::remove(link_);
    else
      set_path_aside(link_);
    fs::create_directory_symlink(together ? path_.lexically_relative(exp_dir_) : path_, link_);
  }
  const std::string mark = exp_dir_.string() + "\n";
  if (!fs::exists(mark_of(path_)) || read_file(mark_of(path_)) != mark)
    write_file_atomic(mark_of(path_), mark);
}

}  // namespace tutti::systems
