// `tutti map` on hosts that do not see the driver's folder: `ssh` is a script that runs the remote
// side in a mount namespace in which an empty folder lies over the driver's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/parallel/items.h"
#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"

namespace tutti::parallel {
namespace {

class SshMap : public ::testing::Test {
 protected:
  void SetUp() override {
    make_folders(folder_.path() / "bin");
    write_file_atomic(
        folder_.path() / "bin" / "ssh",
        "#!/bin/sh\nfor script; do :; done\n"
        "exec unshare --mount sh -c 'mount -t tmpfs none \"$1\" && exec sh -c \"$2\"' "
        "remote " +
            shell_quote(out_.string()) + " \"$script\"\n",
        0755);
    const auto can =
        run_command({.argv = {"unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"}});
    if (!can.ok()) GTEST_SKIP() << "needs root and mount namespaces: " << can.err;
  }
  CommandResult map(const std::string& items, const std::string& shell) const {
    const auto config = folder_.path() / "conf.yaml";
    write_file_atomic(config,
                      "parallel:\n  env: ssh\n  n_workers: 2\n  options: {hosts: [h1, h2]}\n");
    Command command{.argv = {in_bin("tutti"), "map", "--config", config.string(), "--items", items,
                             "--output_dir", out_.string(), "--quiet", "--", "sh", "-c", shell},
                    .timeout = std::chrono::seconds(100)};
    command.env["PATH"] = (folder_.path() / "bin").string() + ":" + std::getenv("PATH");
    return run_command(command);
  }

  TempFolder folder_{"ssh-map"};
  std::filesystem::path out_ = folder_.path() / "out";
};

TEST_F(SshMap, LargeResultsComeOverTheWire) {
  const auto run = map("4", "head -c 400000 /dev/zero | tr '\\0' x");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto lines = split(std::string(trim(read_file(out_ / "results.jsonl"))), '\n');
  ASSERT_EQ(lines.size(), 4U);
  for (const std::string& line : lines) EXPECT_GT(line.size(), 400000U);
}

// The list of items lies in a folder that the hosts do not see.
TEST_F(SshMap, ItemsTravelWithTheJob) {
  write_file_atomic(folder_.path() / "items", "a'b\nc \xff\n");
  const auto run = map((folder_.path() / "items").string(), "printf %s {}");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(read_file(out_ / "results.jsonl"),
            "{\"index\":0,\"item\":\"a'b\",\"status\":\"ok\",\"result\":\"a'b\"}\n"
            "{\"index\":1,\"item\":{\"base64\":\"YyD/\"},\"status\":\"ok\",\"result\":{\"base64\":"
            "\"YyD/\"}}\n");
}

// Hosts behind an `ssh` of our own, which notes each call and then does what `script` says; $2 is the host.
class SshHosts : public ::testing::Test {
 protected:
  CommandResult map(const std::string& script, const std::string& settings,
                    const std::vector<std::string>& item_command) const {
    make_folders(folder_.path() / "bin");
    write_file_atomic(folder_.path() / "bin" / "ssh",
                      "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\necho \"$2\" >>" +
                          shell_quote(calls_.string()) + "\n" + script,
                      0755);
    const auto config = folder_.path() / "conf.yaml";
    write_file_atomic(config, "parallel:\n  env: ssh\n" + settings);
    Command command{.argv = {in_bin("tutti"), "map", "--config", config.string(), "--items", "3",
                             "--output_dir", (folder_.path() / "out").string(), "--"},
                    .timeout = std::chrono::seconds(100)};
    command.argv.insert(command.argv.end(), item_command.begin(), item_command.end());
    command.env["PATH"] = (folder_.path() / "bin").string() + ":" + std::getenv("PATH");
    return run_command(command);
  }
  TempFolder folder_{"ssh-hosts"};
  std::filesystem::path calls_ = folder_.path() / "calls";
};

// ssh's own failure, before anything ran over there. One host is tried after the other, each with its
// retries, and then the run ends.
TEST_F(SshHosts, ThatNeverAnswerEndTheRunWithSshsWords) {
  const auto run =
      map("echo \"ssh: Could not resolve hostname $2: Name or service not known\" >&2\nexit 255\n",
          "  n_workers: 1\n"
          "  options: {hosts: [no1.invalid, no2.invalid], connect_retries: 1}\n",
          {"echo", "{}"});
  EXPECT_EQ(run.exit_code, 6) << run.err;
  EXPECT_THAT(run.err, ::testing::HasSubstr("no host can be reached: no1.invalid: ssh: Could not "
                                            "resolve hostname no1.invalid"));
  EXPECT_THAT(run.err, ::testing::HasSubstr("; no2.invalid: ssh: Could not resolve"));
  EXPECT_EQ(read_file(calls_), "no1.invalid\nno1.invalid\nno2.invalid\nno2.invalid\n");
}

TEST_F(SshHosts, ABrokenOneIsNamedAndItsWorkersStartElsewhere) {
  // The run is not over before the second worker has been asked for again.
  const auto run = map("[ \"$2\" = bad.site ] && { echo no disk; exit 7; }\nexec sh -c \"$3\"\n",
                       "  n_workers: 2\n  options: {hosts: [bad.site, good.site]}\n",
                       {"sh", "-c",
                        "until [ $(grep -c good " + shell_quote(calls_.string()) +
                            ") -ge 2 ]; do sleep 0.05; done; echo {}"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, ::testing::HasSubstr("1 start of workers failed: bad.site 1 of 1"));
  EXPECT_THAT(split(std::string(trim(read_file(calls_))), '\n'),
              ::testing::UnorderedElementsAre("bad.site", "good.site", "good.site"));
}

}  // namespace
}  // namespace tutti::parallel
