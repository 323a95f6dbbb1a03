#include "tutti/systems/experiment_config.h"

#include "tutti/config/load.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/path_inside.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

// What is left of both when the folders they end with alike are taken away:
// /a/recipe/exp/tag and /b/recipe/exp/tag give /a and /b.
std::pair<fs::path, fs::path> moved_roots(fs::path was, fs::path is) {
  while (was.has_relative_path() && is.has_relative_path() && was.filename() == is.filename()) {
    was = was.parent_path();
    is = is.parent_path();
  }
  return {was, is};
}

// One name per place: no "//", no "..", no slash at the end.
fs::path plain(const fs::path& path) {
  const fs::path normal = path.lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

void relocate(Json& value, const fs::path& was, const fs::path& is) {
  if (value.is_structured()) {
    for (Json& child : value) relocate(child, was, is);
    return;
  }
  if (!value.is_string() || !value.get_ref<const std::string&>().starts_with('/')) return;
  const fs::path old = plain(value.get<std::string>());
  const fs::path inside = path_inside(old, was);
  if (!old.has_relative_path() || inside.empty()) return;
  const fs::path here = plain(is / inside);
  std::error_code unreadable;  // then it is left where it was
  if (fs::exists(here, unreadable)) value = here.string();
}

}  // namespace

config::Node read_experiment_config(const fs::path& file) {
  const config::Node config = config::parse_yaml(read_file(file), file.string());
  const config::Node exp_dir = config["exp_dir"];
  if (!config["model"].is_map() || !exp_dir.is_scalar()) return config;
  const fs::path was = plain(exp_dir.raw());
  const fs::path is = fs::absolute(file).lexically_normal().parent_path();
  if (!was.is_absolute() || was == is) return config;
  const auto [old_root, new_root] = moved_roots(was, is);
  Json json = config::to_json(config);
  relocate(json, old_root, new_root);
  return config::from_json(json);
}

}  // namespace tutti::systems
