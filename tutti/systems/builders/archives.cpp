#include "tutti/systems/builders/archives.h"

#include <fmt/format.h>

#include <fstream>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/status.h"
#include "tutti/systems/builders/over_file.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

// Of an archive in a pipe tar wants to be told how it is compressed.
std::string filter_of(const fs::path& archive) {
  std::string head(6, '\0');
  std::ifstream(archive, std::ios::binary)
      .read(head.data(), static_cast<std::streamsize>(head.size()));
  if (head.starts_with("\x1f\x8b")) return "--gzip";
  if (head.starts_with("BZh")) return "--bzip2";
  if (head.starts_with("\xfd"
                       "7zXZ"))
    return "--xz";
  if (head.starts_with("\x28\xb5\x2f\xfd")) return "--zstd";
  return "";
}

}  // namespace

void unpack(const fs::path& archive, const fs::path& folder) {
  log::info("unpacking {}", shown_path(archive));
  make_folders(folder);
  std::vector<std::string> argv = {"tar", "--extract", "--file=-",
                                   "--directory=" + folder.string()};
  if (const std::string filter = filter_of(archive); !filter.empty()) argv.push_back(filter);
  const auto result = run_over_file("unpacking " + archive.filename().string(), archive, argv);
  if (!result.ok())
    throw DataError(fmt::format("{}: {}", archive.string(), result.describe()),
                    "is the archive complete, and is there room on the disk?");
}

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
  unpack(source, folder);
  write_file_atomic(marker, "");
  return folder;
}

}  // namespace tutti::systems
