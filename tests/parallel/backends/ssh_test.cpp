#include "tutti/parallel/backends/ssh.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/parallel/backends/support.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"

namespace tutti::parallel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SshSettings ssh(const std::string& yaml, int n_workers = 1) {
  config::Problems problems;
  SshSettings settings =
      parse_ssh_options(config::parse_yaml(yaml, "test.yaml"), n_workers, problems);
  EXPECT_TRUE(problems.empty()) << problems.describe();
  return settings;
}

TEST(SshOptions, ConnectOptionsAreTheClientsOwn) {
  const auto settings =
      ssh("{hosts: [a], connect_options: {username: me, port: 2222, client_keys: [k1, k2], "
          "known_hosts: null, tunnel: gate, keepalive_interval: 3}}");
  EXPECT_THAT(
      settings.hosts[0].arguments,
      ElementsAre("-l", "me", "-p", "2222", "-i", "k1", "-i", "k2", "-o", "IdentitiesOnly=yes",
                  "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o",
                  "LogLevel=ERROR", "-J", "gate", "-o", "ServerAliveInterval=3"));
  const auto command = ssh_command(settings.hosts[0], "true");
  EXPECT_EQ(command.front(), "ssh");
  EXPECT_THAT(command, ::testing::Contains("BatchMode=yes"));
  EXPECT_EQ(command.back(), "exec sh -c true");
}

TEST(SshOptions, OneMapPerHostOrOneForAll) {
  const auto settings = ssh("{hosts: [a, b], connect_options: [{port: 1}, {port: 2}]}", 2);
  EXPECT_THAT(settings.hosts[1].arguments, ElementsAre("-p", "2"));
  EXPECT_THAT(check("ssh", "{hosts: [a, b], connect_options: [{port: 1}]}").problems,
              HasSubstr("got 1 maps for 2 hosts"));
}

TEST(SshOptions, SecretsAreRefusedWithTheReason) {
  EXPECT_THAT(check("ssh", "{hosts: [a], connect_options: {password: x}}").problems,
              HasSubstr("goes into no config file"));
  EXPECT_THAT(check("ssh", "{hosts: [a], connect_options: {passphrase: x}}").problems,
              HasSubstr("ssh agent"));
}

TEST(SshOptions, WorkersPerHost) {
  EXPECT_EQ(ssh("{hosts: [a, b, c]}", 7).workers_per_host, 3);
  EXPECT_EQ(
      ssh("{hosts: [a, b], worker_options: {n_workers: 4, nthreads: 2, memory_limit: 1GB}}", 5)
          .workers_per_host,
      4);
  EXPECT_THAT(check("ssh", "{hosts: [a, b], worker_options: {n_workers: 2}}", 5).problems,
              HasSubstr("2 hosts x 2 workers = 4"));
}

TEST(SshOptions, AFirstHostThatIsThisMachineIsTheDrivers) {
  EXPECT_EQ(ssh("{hosts: [localhost, a, b]}").hosts.size(), 2U);
  EXPECT_EQ(ssh("{hosts: [localhost]}").hosts.size(), 1U);
}

TEST(SshOptions, OldNamesAndMistakes) {
  const auto old =
      check("ssh", "{worker_addrs: [a], ssh_username: me, nprocs: 2, scheduler_port: 8786}");
  EXPECT_EQ(old.problems, "");
  EXPECT_THAT(old.warnings, HasSubstr("use 'hosts'"));
  EXPECT_THAT(check("ssh", "{}").problems, HasSubstr("'hosts' is missing"));
  EXPECT_THAT(check("ssh", "{hosts: ['-oProxyCommand=x']}").problems,
              HasSubstr("expected a host name"));
  EXPECT_THAT(check("ssh", "{hosts: [a], n_workers: 2}").problems, HasSubstr("one level up"));
}

// The remote script run by a local shell, as sshd would.
class SshRemote : public ::testing::Test {
 protected:
  std::string script(const std::string& worker) {
    WorkerLaunch launch;
    launch.run_folder = folder_.path() / "run";
    launch.command = {"/bin/sh", "-c", worker, "worker"};
    SshSettings settings = ssh("{hosts: [a], worker_options: {nthreads: 3}}");
    settings.remote_folder = folder_.path().string();
    return ssh_remote_script(settings, launch, {4, 5});
  }
  TempFolder folder_;
};

// A folder of an earlier run over there must not matter: its key is of a driver that is gone.
TEST_F(SshRemote, TheKeyArrivesByInputAndIsNoFileThere) {
  const auto stale = folder_.path() / "run/.tutti/connect.json";
  make_folders(stale.parent_path());
  write_file_atomic(stale, "stale");
  int fds[2];
  ASSERT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  const UniqueFd input(fds[0]);
  const UniqueFd connection(fds[1]);  // held open, as the driver does
  write_all(connection.get(), "7b7d\n", "pipe");
  Command command{.argv = {"sh", "-c", script("echo $TUTTI_CONNECT >seen-$2; exit 3")}};
  command.stdin_fd = input.get();
  const auto status = Process::start(command).wait();
  EXPECT_EQ(status.exit_code, 3);
  EXPECT_EQ(read_file(folder_.path() / "seen-5"), "7b7d\n");
  EXPECT_EQ(read_file(stale), "stale");
}

// An item_timeout cancels the worker's connection; a host that does not let go of it must not hold up
// the driver.
TEST_F(SshRemote, CancellingAConnectionThatDoesNotEndReturnsAtOnce) {
  make_folders(folder_.path() / "bin");
  write_file_atomic(folder_.path() / "bin/ssh",
                    "#!/bin/sh\ntrap '' TERM\nuntil [ -e " + (folder_.path() / "end").string() +
                        " ]; do sleep 0.05; done\n",
                    0755);
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", ((folder_.path() / "bin").string() + ":" + path).c_str(), 1);
  ParallelSettings settings;
  settings.env = "ssh";
  settings.options = config::parse_yaml("{hosts: [a]}", "test.yaml");
  WorkerLaunch launch = example_launch();
  launch.run_folder = folder_.path() / "run";
  const auto backend = make_backend(settings, launch, CommandRunner::system());
  const auto jobs = backend->submit(1);
  ::setenv("PATH", path.c_str(), 1);
  ASSERT_EQ(jobs.size(), 1U);
  backend->cancel({jobs[0].job_id});
  const auto after = backend->poll();
  ASSERT_EQ(after.size(), 1U);
  EXPECT_EQ(after[0].phase, JobPhase::kRunning) << "it was waited for";
  write_file_atomic(folder_.path() / "end", "");
}

TEST_F(SshRemote, AFolderThatAnotherUserMadeInAdvanceIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  make_folders(folder_.path() / "run/logs");
  ASSERT_EQ(::chown((folder_.path() / "run/logs").c_str(), 12345, 12345), 0);
  const auto result = run_command({.argv = {"sh", "-c", script("touch ran")},
                                   .stdin_text = "\n",
                                   .timeout = std::chrono::seconds(30)});
  EXPECT_EQ(result.exit_code, 97);
  EXPECT_THAT(result.err, HasSubstr("belongs to another user"));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "ran"));
}

TEST_F(SshRemote, TheEndOfTheConnectionEndsTheWorkers) {
  int fds[2];
  ASSERT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  const UniqueFd input(fds[0]);
  UniqueFd connection(fds[1]);
  write_all(connection.get(), "\n", "pipe");
  Command command{.argv = {"sh", "-c",
                           script("trap 'touch left-$2; exit 0' TERM; touch up-$2; "
                                  "while :; do sleep 0.05; done")}};
  command.stdin_fd = input.get();
  Process remote = Process::start(command);
  const auto there = [&](const char* name) {
    return std::filesystem::exists(folder_.path() / name);
  };
  for (int i = 0; i < 1500 && !(there("up-4") && there("up-5")); ++i)
    remote.wait_for(std::chrono::milliseconds(20));
  ASSERT_TRUE(there("up-4") && there("up-5"));
  connection.reset();  // what a lost connection looks like over there
  ASSERT_TRUE(remote.wait_for(std::chrono::seconds(30)));
  EXPECT_TRUE(there("left-4"));
  EXPECT_TRUE(there("left-5"));
}

}  // namespace
}  // namespace tutti::parallel
