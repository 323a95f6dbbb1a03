#include "tutti/trainer/loggers/folders.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"

namespace tutti::trainer {
namespace {

namespace fs = std::filesystem;

fs::path id_path(const fs::path& exp_dir) { return exp_dir / ".log_run"; }

std::string text_of(const fs::path& path) {
  return fs::exists(path) ? std::string(trim(read_file(path))) : std::string();
}

bool is_number(const std::string& text) {
  return !text.empty() && text.size() < 10 &&
         text.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

LogFolders::LogFolders(const fs::path& exp_dir) : id_(text_of(id_path(exp_dir))) {
  if (!id_.empty()) return;
  std::random_device random;
  for (int i = 0; i < 4; ++i) id_ += fmt::format("{:08x}", random());
  make_folders(exp_dir);
  write_file_atomic(id_path(exp_dir), id_ + "\n");
}

void LogFolders::forget(const fs::path& exp_dir) {
  fs::remove(id_path(exp_dir));
  fs::remove(exp_dir / kMlflowNote);
}

fs::path LogFolders::choose(const std::string& save_dir, const std::optional<std::string>& name,
                            const std::optional<std::string>& version) const {
  fs::path folder = save_dir.empty() ? "." : save_dir;
  if (name && !name->empty()) folder /= *name;
  if (version && version->empty()) return folder;
  if (version) return folder / (is_number(*version) ? "version_" + *version : *version);
  make_folders(folder);
  const std::string begin = "version_";
  int next = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    if (!file.starts_with(begin) || !is_number(file.substr(begin.size()))) continue;
    if (text_of(entry.path() / ".run") == id_) return entry.path();
    next = std::max(next, std::stoi(file.substr(begin.size())) + 1);
  }
  // Another run may take the same number now: it is whose folder it is that could make it.
  while (!fs::create_directory(folder / (begin + std::to_string(next)))) ++next;
  folder /= begin + std::to_string(next);
  write_file_atomic(folder / ".run", id_ + "\n");
  return folder;
}

fs::path LogFolders::claim(const fs::path& folder, const std::string& name) const {
  make_folders(folder);
  const fs::path mark = folder / ("." + name + ".run");
  if (text_of(mark) == id_) return folder;
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    if (file == name || (name.ends_with('.') && file.starts_with(name)))
      others.push_back(entry.path());
  }
  if (!others.empty()) {
    fs::path aside = folder / "before";
    for (int number = 1; fs::exists(aside); ++number)
      aside = folder / fmt::format("before.{}", number);
    make_folders(aside);
    for (const fs::path& path : others) fs::rename(path, aside / path.filename());
    log::info("{}: has the logs of another run; moved to {}", folder.string(), aside.string());
  }
  write_file_atomic(mark, id_ + "\n");
  return folder;
}

}  // namespace tutti::trainer
