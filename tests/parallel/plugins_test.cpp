// `plugins:` of a parallel block, through `tutti map`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"

namespace tutti::parallel {
namespace {

using testing::HasSubstr;

CommandResult map_with(const TempFolder& folder, const std::string& plugins) {
  const auto config = folder.path() / "parallel.yaml";
  write_file_atomic(config, "parallel: {env: local, n_workers: 2, plugins: [" + plugins + "]}\n");
  return run_command({.argv = {in_bin("tutti"), "map", "--quiet", "--config", config.string(),
                               "--items", "2", "--", "echo $GREETING"},
                      .cwd = folder.path(),
                      .timeout = std::chrono::minutes(1)});
}

TEST(ParallelPlugins, WorkersOfMapLoadThemAndSetThemUp) {
  const TempFolder folder;
  std::filesystem::copy_file(in_bin("libtutti_worker_plugin.so"), folder.path() / "libgreeting.so");
  const CommandResult result = map_with(folder, "libgreeting.so");  // from the folder of the file
  ASSERT_TRUE(result.ok()) << result.describe();
  EXPECT_EQ(result.out, "hello from the plugin\nhello from the plugin\n");
}

TEST(ParallelPlugins, OnesThatCannotBeLoadedEndTheRunBeforeItStarts) {
  const TempFolder folder;
  const CommandResult absent = map_with(folder, "libnowhere.so");
  EXPECT_EQ(absent.exit_code, 2) << absent.describe();
  EXPECT_THAT(absent.err, HasSubstr("libnowhere.so"));
}

}  // namespace
}  // namespace tutti::parallel
