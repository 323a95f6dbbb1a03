// The allowed arrows between rooms (docs/architecture.md), checked against every #include.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>

#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

// room -> rooms it may include (itself always).
const std::map<std::string, std::set<std::string>> kAllowed = {
    {"core", {}},
    {"config", {"core"}},
    {"data", {"core", "config"}},
    {"parallel", {"core", "config"}},
    {"launch", {"core", "config"}},
    {"trainer", {"core", "config", "data", "launch"}},
    {"speech", {"core", "config", "data", "launch", "trainer"}},
    {"systems", {"core", "config", "data", "launch", "trainer", "speech", "parallel"}},
};
const std::set<std::string> kTorchRooms = {"trainer", "speech", "systems"};

TEST(Architecture, IncludesFollowTheArrows) {
  static const std::regex kInclude(R"(^\s*#\s*include\s*[<"]([^">]+)[">])");
  int num_files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(in_source("tutti")))) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".h" && extension != ".cpp" && extension != ".cu") continue;
    ++num_files;
    const fs::path relative = fs::relative(entry.path(), fs::path(in_source("tutti")));
    const std::string room = relative.begin()->string();
    ASSERT_TRUE(kAllowed.contains(room)) << "a room without a row in the table: " << room;
    for (const auto& line : split(read_file(entry.path()), '\n')) {
      std::smatch match;
      if (!std::regex_search(line, match, kInclude)) continue;
      const std::string header = match[1];
      EXPECT_FALSE(header.starts_with("apps/") || header.starts_with("tests/"))
          << relative << ": " << header;
      const bool is_torch =
          header.starts_with("torch/") || header.starts_with("ATen/") || header.starts_with("c10/");
      EXPECT_TRUE(!is_torch || kTorchRooms.contains(room))
          << relative << " is torch-free but includes " << header;
      if (!header.starts_with("tutti/")) continue;
      const std::string target = split(header, '/')[1];
      EXPECT_TRUE(target == room || kAllowed.at(room).contains(target))
          << relative << " may not include " << header;
    }
  }
  EXPECT_GT(num_files, 20);
}

// folder of tutti/parallel -> folders it may include (itself always). Headers of the room itself
// (client.h, runner.h ...) are for all.
const std::map<std::string, std::set<std::string>> kParallelArrows = {
    {"wire", {}},
    {"backends", {"wire"}},
    {"folder", {"wire"}},
    {"run", {"wire", "folder", "backends"}},
    {"worker", {"wire", "folder"}},
    {"async", {"wire", "folder", "backends", "run", "worker"}},
};

TEST(Architecture, ArrowsInsideTheParallelRoomGoOneWay) {
  static const std::regex kInclude(R"(^\s*#\s*include\s*"tutti/parallel/(\w+)/)");
  const fs::path room = fs::path(in_source("tutti")) / "parallel";
  for (const auto& entry : fs::recursive_directory_iterator(room)) {
    const fs::path relative = fs::relative(entry.path(), room);
    if (!entry.is_regular_file() || !relative.has_parent_path()) continue;
    const std::string folder = relative.begin()->string();
    ASSERT_TRUE(kParallelArrows.contains(folder)) << "a folder without a row: " << folder;
    for (const auto& line : split(read_file(entry.path()), '\n')) {
      std::smatch match;
      if (!std::regex_search(line, match, kInclude) || match[1] == folder) continue;
      EXPECT_TRUE(kParallelArrows.at(folder).contains(match[1]))
          << relative << " may not include tutti/parallel/" << match[1];
    }
  }
}

// What is installed is enough for itself, and for the examples and plugins that are shown.
TEST(Architecture, PublicHeadersIncludePublicHeaders) {
  static const std::regex kInclude(R"re((?:^|\n)\s*#\s*include\s*"(tutti/[^"]+)")re");
  const fs::path source = in_source();
  std::set<std::string> listed;
  for (const auto& line : split(read_file(source / "cmake/public_headers.txt"), '\n'))
    if (line.starts_with("tutti/")) listed.insert(line);
  EXPECT_GT(listed.size(), 50U);
  EXPECT_LT(listed.size(), 80U);
  std::vector<fs::path> users = {source / "docs/extending.md"};
  for (const auto& header : listed) users.push_back(source / header);
  for (const char* folder : {"examples", "recipes"})
    for (const auto& entry : fs::recursive_directory_iterator(source / folder))
      if (entry.path().extension() == ".cpp" || entry.path().extension() == ".h")
        users.push_back(entry.path());
  for (const auto& user : users) {
    ASSERT_TRUE(fs::exists(user)) << user;
    const std::string text = read_file(user);
    for (auto it = std::sregex_iterator(text.begin(), text.end(), kInclude);
         it != std::sregex_iterator(); ++it)
      EXPECT_TRUE(listed.contains((*it)[1])) << fs::relative(user, source) << ": " << (*it)[1];
  }
}

// A folder with more files of a kind than a reader can take in is split.
TEST(Architecture, FoldersStaySmall) {
  std::map<std::string, int> files;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(in_source("tutti"))))
    if (entry.is_regular_file())
      ++files[entry.path().parent_path().string() + "/*" + entry.path().extension().string()];
  for (const auto& [kind, count] : files) EXPECT_LE(count, 25) << kind;
}

}  // namespace
}  // namespace tutti
