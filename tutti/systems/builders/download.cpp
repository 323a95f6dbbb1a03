#include "tutti/systems/builders/download.h"

#include <fmt/format.h>

#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"
#include "tutti/core/units.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

// curl's exit codes that mean something to us.
constexpr int kHttpError = 22;
constexpr int kNoRange = 33;

std::string md5_of(const fs::path& file) {
  const auto result = run_command({.argv = {"md5sum", file.string()}});
  if (!result.ok()) throw IoError(result.describe());
  return split_words(result.out).at(0);
}

std::uintmax_t size_of(const fs::path& file) {
  std::error_code error;
  const auto size = fs::file_size(file, error);
  return error ? 0 : size;
}

}  // namespace

void download(const Download& what, const fs::path& file) {
  if (fs::exists(file)) return;
  make_folders(file.parent_path());
  const fs::path part = file.string() + ".part";
  log::info("downloading {}{}", what.url,
            size_of(part) > 0 ? fmt::format(" from byte {}", size_of(part)) : "");
  bool began_anew = false;
  for (int attempt = 1;; ++attempt) {
    const auto before = size_of(part);
    const auto result =
        run_command({.argv = {"curl", "--fail", "--location", "--silent", "--show-error",
                              "--continue-at", "-", "--speed-limit", "1", "--speed-time", "60",
                              "--output", part.string(), what.url}});
    const bool is_whole =
        result.ok() || (result.exit_code == kHttpError &&
                        result.err.find("416") != std::string::npos && before > 0);
    if (is_whole) {
      const std::string got = what.md5.empty() ? "" : md5_of(part);
      if (got == what.md5) break;
      fs::remove(part);
      // What was kept of an earlier run may have been another file; from the start there is no
      // doubt.
      if (before > 0 && !std::exchange(began_anew, true)) continue;
      throw DataError(fmt::format("{}: got md5 {}, expected {}", what.url, got, what.md5),
                      "the file there changed or is damaged; try again later or another mirror");
    }
    if (result.exit_code == 127) throw IoError("cannot run curl", "install curl");
    if (result.exit_code == kNoRange) {
      fs::remove(part);
      continue;
    }
    if (result.exit_code == kHttpError)
      throw DataError(fmt::format("{}: {}", what.url, trim(result.err)),
                      "check create_dataset.url");
    if (size_of(part) > before) attempt = 0;  // slow is not broken
    if (attempt >= what.max_attempts)
      throw IoError(fmt::format("{}: {} ({} here so far)", what.url, trim(result.err),
                                format_bytes(size_of(part))),
                    "run the same command again to continue");
    log::info("the connection broke at byte {}; continuing", size_of(part));
  }
  fs::rename(part, file);
}

}  // namespace tutti::systems
