#include "tutti/systems/builders/download.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/progress.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"
#include "tutti/core/units.h"
#include "tutti/systems/builders/over_file.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

// curl's exit codes that mean something to us.
constexpr int kHttpError = 22;
constexpr int kNoRange = 33;
constexpr std::uintmax_t kMiB = 1 << 20;

std::string md5_of(const fs::path& file) {
  const auto result = run_over_file("checking " + file.stem().string(), file, {"md5sum"});
  if (!result.ok()) throw IoError(result.describe());
  return split_words(result.out).at(0);
}

std::uintmax_t size_of(const fs::path& file) {
  std::error_code error;
  const auto size = fs::file_size(file, error);
  return error ? 0 : size;
}

// The last of the lengths that servers told on the way to the file, in bytes; 0: none did.
std::uint64_t told_length(const fs::path& headers) {
  std::uint64_t length = 0;
  std::ifstream stream(headers);
  for (std::string line; std::getline(stream, line);) {
    const auto words = split_words(line);
    if (words.size() == 2 && (words[0] == "Content-Length:" || words[0] == "content-length:"))
      length = parse_bytes(words[1]).value_or(0);
  }
  return length;
}

// What curl says of the rest of the file, with a bar while it comes.
CommandResult fetch_rest(const std::string& url, const fs::path& part) {
  const fs::path headers = part.string() + ".headers";
  fs::remove(headers);
  CommandResult result;
  {
    const auto before = size_of(part) / kMiB;
    const ProgressWatch watch("downloading " + part.stem().string() + ", MiB", [&] {
      return ProgressWatch::Seen{std::max(size_of(part) / kMiB, before) - before,
                                 (told_length(headers) + kMiB - 1) / kMiB};
    });
    result =
        run_command({.argv = {"curl", "--fail", "--location", "--silent", "--show-error",
                              "--continue-at", "-", "--speed-limit", "1", "--speed-time", "60",
                              "--dump-header", headers.string(), "--output", part.string(), url}});
  }
  fs::remove(headers);
  return result;
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
    const CommandResult result = fetch_rest(what.url, part);
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
