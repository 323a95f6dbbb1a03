// The allowed arrows between rooms (docs/architecture.md), checked against every #include.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>

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
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(TUTTI_SOURCE_DIR) / "tutti")) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".h" && extension != ".cpp" && extension != ".cu") continue;
    ++num_files;
    const fs::path relative = fs::relative(entry.path(), fs::path(TUTTI_SOURCE_DIR) / "tutti");
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

// A folder with more files than a reader can take in is split.
TEST(Architecture, FoldersStaySmall) {
  std::map<std::string, int> sources;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(TUTTI_SOURCE_DIR) / "tutti"))
    if (entry.path().extension() == ".cpp") ++sources[entry.path().parent_path().string()];
  for (const auto& [folder, count] : sources) EXPECT_LE(count, 25) << folder;
}

}  // namespace
}  // namespace tutti
