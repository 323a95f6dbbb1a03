#include "tutti/systems/builders/archives.h"

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/subprocess.h"

namespace tutti::systems {
namespace fs = std::filesystem;

fs::path unpacked_source(const BuildContext& context, const std::string& named,
                         std::string_view hint, const std::vector<std::string>& usual_places) {
  fs::path source = named.empty() ? fs::path() : fs::absolute(named);
  // One that is named and not there may lie beside conf/ all the same.
  for (const auto& place : usual_places)
    if ((source.empty() || !fs::exists(source)) && fs::exists(context.recipe_dir / place))
      source = context.recipe_dir / place;
  if (source.empty())
    throw ConfigError("create_dataset.source: got nothing, expected an archive or a folder",
                      std::string(hint));
  if (fs::is_directory(source)) return source;
  if (!fs::exists(source))
    throw DataError(source.string() + ": no such file or folder", std::string(hint));
  const fs::path folder = context.data_dir / "source";
  const fs::path marker = folder / ".unpacked";
  if (fs::exists(marker)) return folder;
  log::info("unpacking {}", source.string());
  make_folders(folder);
  const auto result = run_command({.argv = {"tar", "-xf", source.string(), "-C", folder.string()}});
  if (!result.ok()) throw DataError(result.describe(), "is the archive complete?");
  write_file_atomic(marker, "");
  return folder;
}

}  // namespace tutti::systems
