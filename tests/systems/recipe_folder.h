// A recipe copied to a scratch place, run with the built program, and killed at will.
#pragma once

#include <signal.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"

namespace tutti::systems {

class RecipeFolder {
 public:
  // The folder's name matters: it names the dataset builder where entries do not.
  explicit RecipeFolder(const std::string& name) : path_(folder_.path() / name) {
    std::filesystem::create_directories(path_);
    std::filesystem::copy(std::filesystem::path(in_source("recipes")) / name / "conf",
                          path_ / "conf", std::filesystem::copy_options::recursive);
  }
  const std::filesystem::path& path() const { return path_; }
  std::string conf(const std::string& file) const { return (path_ / "conf" / file).string(); }
  std::string read(const std::string& file) const { return read_file(path_ / file); }
  bool has(const std::string& file) const { return std::filesystem::exists(path_ / file); }

  CommandResult run(std::vector<std::string> words) const {
    words.insert(words.begin(), in_bin("tutti"));
    return run_command({.argv = words, .cwd = path_, .timeout = std::chrono::minutes(5)});
  }

  // Starts it and kills every process of it with SIGKILL as soon as `reached` holds. False: it
  // ended by itself before.
  bool run_until(std::vector<std::string> words, const std::function<bool()>& reached) const {
    words.insert(words.begin(), in_bin("tutti"));
    const std::string mark = "TUTTI_TEST_RUN=" + path_.string();
    Process process = Process::start({.argv = words,
                                      .env = {{"TUTTI_TEST_RUN", path_.string()}},
                                      .cwd = path_,
                                      .stdout_path = path_ / "killed.log"});
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(3);
    bool killed = false;
    while (!killed && !process.poll() && std::chrono::steady_clock::now() < deadline) {
      if (reached()) {
        kill_all(mark);
        killed = true;
      }
      std::this_thread::yield();
    }
    process.wait();
    return killed;
  }

 private:
  // Workers and ranks have process groups of their own; the environment tells whose they are.
  // Twice, as a process may be starting another while we look.
  static void kill_all(const std::string& mark) {
    for (int pass = 0; pass < 2; ++pass)
      for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
        const std::string name = entry.path().filename().string();
        if (name.find_first_not_of("0123456789") != std::string::npos) continue;
        try {
          const std::string environment = read_file(entry.path() / "environ");
          if (environment.find(mark) != std::string::npos) ::kill(std::stoi(name), SIGKILL);
        } catch (const std::exception&) {
          continue;  // it ended while we looked
        }
      }
  }

  TempFolder folder_;
  std::filesystem::path path_;
};

// An archive of ../shared/data; empty when this checkout has none.
inline std::string shared_archive(const std::string& name) {
  const auto path = std::filesystem::path(in_source()).parent_path() / "shared/data" / name;
  return std::filesystem::exists(path) ? path.string() : "";
}

}  // namespace tutti::systems
