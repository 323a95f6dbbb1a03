// `tutti launch` and ranks as real processes, with real faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "tests/places.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"

namespace tutti::launch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using namespace std::chrono_literals;

const std::string kTutti = in_bin("tutti");
const std::string kProbe = in_bin("launch_probe");

bool wait_until(const std::function<bool()>& condition, std::chrono::seconds limit = 60s) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

// Running and not a zombie.
bool alive(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string id;
  std::string name;
  std::string state;
  stat >> id >> name >> state;
  return stat && state != "Z" && state != "X";
}

std::optional<pid_t> read_pid(const std::filesystem::path& path) {
  std::ifstream file(path);
  pid_t pid = 0;
  if (!(file >> pid)) return std::nullopt;
  return pid;
}

std::vector<std::string> launch(int nproc, std::vector<std::string> command,
                                std::vector<std::string> extra = {}) {
  std::vector<std::string> argv = {kTutti, "launch", "--nproc_per_node", std::to_string(nproc)};
  argv.insert(argv.end(), extra.begin(), extra.end());
  argv.push_back("--");
  argv.insert(argv.end(), command.begin(), command.end());
  return argv;
}

// A shell line that runs in a folder; "$1" is the probe. Neither's name is part of the line: either may have blanks.
std::vector<std::string> script_in(const TempFolder& folder, const std::string& line) {
  return {"sh", "-c", "cd \"$0\"; " + line, folder.path().string(), kProbe};
}

CommandResult run(const std::vector<std::string>& argv,
                  std::map<std::string, std::string> env = {}) {
  return run_command({.argv = argv, .env = std::move(env), .timeout = 100s});
}

// The text after the last blank line: what is printed last and alone.
std::string last_block(const std::string& text) {
  const std::size_t at = text.rfind("\n\n");
  return at == std::string::npos ? text : text.substr(at + 2);
}

TEST(Launch, RanksTrainTogetherAndTheTableIsPrinted) {
  TempFolder folder;
  const auto result = run(launch(3, {kProbe, folder.path(), "50"}));
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_THAT(result.out, AllOf(HasSubstr("[rank 0] rank  host"), HasSubstr("tutti launch")));
  EXPECT_EQ(read_file(folder.path() / "rank-2.done"), "3 2 0 1 0 tutti launch");
}

TEST(Launch, ProbeStartsItsOwnRanks) {
  TempFolder folder;
  const auto result = run({kProbe, folder.path(), "20"}, {{"PROBE_DEVICES", "2"}});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_EQ(read_file(folder.path() / "rank-1.done"), "2 1 0 1 0 tutti");
}

TEST(Launch, FirstFailingRanksErrorIsLastAndAloneWithItsExitCode) {
  TempFolder folder;
  const auto result = run(launch(3, {kProbe, folder.path(), "1000000", "exit3", "1", "20"}));
  EXPECT_EQ(result.exit_code, 3) << result.describe();
  EXPECT_THAT(last_block(result.err), AllOf(HasSubstr("rank 1 on "), HasSubstr("exit code 3"),
                                            HasSubstr("cannot go on: bad data"),
                                            Not(HasSubstr("rank 0")), Not(HasSubstr("rank 2"))));
}

TEST(Launch, ThrownErrorReachesTheOtherRanks) {
  TempFolder folder;
  const auto result = run(launch(2, {kProbe, folder.path(), "1000000", "throw", "0", "20"}));
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kData)) << result.describe();
  EXPECT_THAT(last_block(result.err),
              AllOf(HasSubstr("rank 0 on "), HasSubstr("utt_7: file is truncated")));
}

TEST(Launch, KilledRankIsNamedAndEndsTheRun) {
  TempFolder folder;
  const auto result = run(launch(3, {kProbe, folder.path(), "1000000", "kill", "2", "20"}));
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.describe();
  EXPECT_THAT(last_block(result.err), AllOf(HasSubstr("rank 2 on "), HasSubstr("SIGKILL")));
}

TEST(Launch, StoppedRankIsNamedWithWhatItWasDoing) {
  TempFolder folder;
  const auto result = run(launch(3, {kProbe, folder.path(), "1000000", "stop", "1", "20"}));
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kCommunication)) << result.describe();
  EXPECT_THAT(last_block(result.err),
              AllOf(HasSubstr("rank 1 ("), HasSubstr("silent"), HasSubstr("agree at step 19")));
  EXPECT_FALSE(alive(read_pid(folder.path() / "rank-1.pid").value()));
}

TEST(Launch, StoppedRankZeroIsNamedToo) {
  TempFolder folder;
  const auto result = run(launch(2, {kProbe, folder.path(), "1000000", "stop", "0", "20"}));
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kCommunication)) << result.describe();
  EXPECT_THAT(last_block(result.err), AllOf(HasSubstr("rank 0 ("), HasSubstr("silent")));
}

TEST(Launch, HangingRankIsNamedWithItsPhase) {
  TempFolder folder;
  const auto result = run(launch(2, {kProbe, folder.path(), "1000000", "hang", "1", "20"}));
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kCommunication)) << result.describe();
  EXPECT_THAT(result.err, AllOf(HasSubstr("agree at step 20"), HasSubstr("for: rank 1 ("),
                                HasSubstr("last doing: agree at step 19")));
}

TEST(Launch, NoOrphanSurvivesKillOfTheAgent) {
  TempFolder folder;
  // Each rank is a shell with a child of its own that ignores the polite signals.
  const auto script =
      script_in(folder,
                "trap '' TERM HUP INT; sh -c 'trap \"\" TERM HUP INT; echo $$ > child-$RANK; "
                "while :; do sleep 1000; done' & echo $$ > shell-$RANK; wait; sleep 1000");
  Process agent = Process::start({.argv = launch(2, script), .stdout_path = folder.path() / "out"});
  std::vector<pid_t> pids;
  for (const char* name : {"child-0", "child-1", "shell-0", "shell-1"}) {
    ASSERT_TRUE(wait_until([&] { return read_pid(folder.path() / name).has_value(); })) << name;
    pids.push_back(*read_pid(folder.path() / name));
  }
  ASSERT_EQ(::kill(agent.pid(), SIGKILL), 0);
  for (const pid_t pid : pids) EXPECT_TRUE(wait_until([&] { return !alive(pid); })) << pid;
}

TEST(Launch, SignalsArePassedOnAndStubbornRanksAreKilledAfterTheGrace) {
  TempFolder folder;
  const auto script =
      script_in(folder,
                "trap 'echo got usr1 > usr1-$RANK' USR1; trap '' TERM; echo $$ > pid-$RANK; "
                "while :; do sleep 0.05; done");
  Process agent =
      Process::start({.argv = launch(2, script, {"--grace", "0.3", "--max_restarts", "5"}),
                      .stdout_path = folder.path() / "out"});
  for (const char* name : {"pid-0", "pid-1"}) {
    ASSERT_TRUE(wait_until([&] { return read_pid(folder.path() / name).has_value(); }));
  }
  ::kill(agent.pid(), SIGUSR1);
  EXPECT_TRUE(wait_until([&] { return std::filesystem::exists(folder.path() / "usr1-1"); }));
  ::kill(agent.pid(), SIGTERM);
  const auto status = agent.wait_for(60s);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->exit_code, 128 + SIGKILL);
  EXPECT_FALSE(alive(*read_pid(folder.path() / "pid-0")));
}

// The second Ctrl-C does not wait for ranks that take their time, and is no failure of theirs.
TEST(Launch, TwoInterruptsEndTheRanksAtOnceWithTheExitCodeOfOne) {
  TempFolder folder;
  const auto script = script_in(folder,
                                "trap 'touch heard-$RANK' INT; echo $$ > pid-$RANK; "
                                "while :; do sleep 0.05; done");
  Process agent = Process::start(
      {.argv = launch(2, script, {"--max_restarts", "5"}), .stdout_path = folder.path() / "out"});
  for (const char* name : {"pid-0", "pid-1"})
    ASSERT_TRUE(wait_until([&] { return read_pid(folder.path() / name).has_value(); }));
  ::kill(agent.pid(), SIGINT);
  for (const char* name : {"heard-0", "heard-1"})
    ASSERT_TRUE(wait_until([&] { return std::filesystem::exists(folder.path() / name); }));
  ::kill(agent.pid(), SIGINT);
  const auto status = agent.wait_for(60s);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->exit_code, 130);
  EXPECT_FALSE(alive(*read_pid(folder.path() / "pid-0")));
  EXPECT_THAT(read_file(folder.path() / "out"), HasSubstr("interrupted again"));
  EXPECT_THAT(read_file(folder.path() / "out"), Not(HasSubstr("SIGKILL")));
}

TEST(Launch, AnInterruptThatRanksDoNotHearIsTold) {
  TempFolder folder;
  Process agent =
      Process::start({.argv = launch(2, script_in(folder, "echo $$ > pid-$RANK; exec sleep 1000")),
                      .stdout_path = folder.path() / "out"});
  for (const char* name : {"pid-0", "pid-1"})
    ASSERT_TRUE(wait_until([&] { return read_pid(folder.path() / name).has_value(); }));
  ::kill(agent.pid(), SIGINT);
  const auto status = agent.wait_for(60s);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->exit_code, 130);
  EXPECT_THAT(read_file(folder.path() / "out"), HasSubstr("stopped by SIGINT before the ranks"));
}

TEST(Launch, WhatWasIgnoredFromTheStartIsNotPassedOn) {  // nohup; a script's background job
  TempFolder folder;
  const auto script =
      script_in(folder,
                "trap 'touch hup-$RANK' HUP INT; trap 'touch usr1-$RANK; exit 0' USR1; "
                "echo $$ > pid-$RANK; while :; do sleep 0.05; done");
  std::vector<std::string> argv = {"sh", "-c", "trap '' HUP INT; exec \"$@\"", "sh"};
  for (const std::string& word : launch(2, script)) argv.push_back(word);
  Process agent = Process::start({.argv = argv, .stdout_path = folder.path() / "out"});
  for (const char* name : {"pid-0", "pid-1"})
    ASSERT_TRUE(wait_until([&] { return read_pid(folder.path() / name).has_value(); }));
  ::kill(agent.pid(), SIGHUP);
  ::kill(agent.pid(), SIGINT);
  ::kill(agent.pid(), SIGUSR1);
  const auto status = agent.wait_for(60s);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "usr1-1"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "hup-1"));
}

TEST(Launch, RestartsUntilItWorks) {
  TempFolder folder;
  const std::string script =
      "[ $TUTTI_RESTART_COUNT = 2 ] || { echo try $TUTTI_RESTART_COUNT failed >&2; exit 9; }; "
      "echo done after $TORCHELASTIC_RESTART_COUNT";
  const auto result = run(launch(2, {"sh", "-c", script}, {"--max_restarts", "3"}));
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_THAT(result.out, HasSubstr("done after 2"));
  EXPECT_THAT(result.err, HasSubstr("restart 2 of 3"));
}

TEST(Launch, GivesUpWhenRestartsAreSpent) {
  TempFolder folder;
  const auto result =
      run(launch(1, script_in(folder, "echo x >> tries; exit 9"), {"--max_restarts", "2"}));
  EXPECT_EQ(result.exit_code, 9);
  EXPECT_EQ(read_file(folder.path() / "tries"), "x\nx\nx\n");
}

TEST(Launch, StopOnRequestIsNotRestarted) {
  TempFolder folder;
  const auto result =
      run(launch(2, script_in(folder, "echo x >> tries-$RANK; exit 85"), {"--max_restarts", "2"}));
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kStoppedResumable));
  EXPECT_EQ(read_file(folder.path() / "tries-0"), "x\n");
}

TEST(Launch, RestartedRanksMeetAgain) {
  TempFolder folder;
  const auto script =
      script_in(folder,
                "if [ $TUTTI_RESTART_COUNT = 0 ]; then exec \"$1\" . 1000000 kill 1 5; "
                "else exec \"$1\" . 20; fi");
  const auto result = run(launch(2, script, {"--max_restarts", "1"}));
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_EQ(read_file(folder.path() / "rank-1.done"), "2 1 0 1 1 tutti launch");
}

TEST(Launch, LongAndUnfinishedLinesComeThrough) {
  const auto result =
      run(launch(2, {"sh", "-c", "head -c 200000 /dev/zero | tr '\\0' x; printf 'no newline'"}));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), 'x'), 400000);
  EXPECT_THAT(result.out, HasSubstr("no newline\n"));
}

TEST(Launch, BadNumbersAreConfigErrors) {
  EXPECT_EQ(run(launch(0, {"true"})).exit_code, 2);
  EXPECT_EQ(run(launch(1, {"true"}, {"--nnodes", "2", "--node_rank", "2"})).exit_code, 2);
  const auto no_rank = run(launch(1, {"true"}, {"--nnodes", "2:3", "--run_folder", "/tmp"}));
  EXPECT_EQ(no_rank.exit_code, 2);
  EXPECT_THAT(no_rank.err, AllOf(HasSubstr("node_rank: missing"), HasSubstr("--nnodes 2:3"),
                                 HasSubstr("fix: give --node_rank 0")));
  for (const char* bad : {"2:", ":3", "3:2", "two", "0:2", "2:3:4", ""})
    EXPECT_EQ(run(launch(1, {"true"}, {"--nnodes", bad, "--node_rank", "0"})).exit_code, 2) << bad;
  EXPECT_EQ(run({kTutti, "launch", "--nproc_per_node", "2"}).exit_code, 2);
  EXPECT_EQ(run(launch(1, {"/no/such/program"})).exit_code, 4);
}

// Agents on this machine that meet through a folder, of a run that may lose some of them.
class LosesNodes : public testing::Test {
 protected:
  Process start(const std::string& nodes, int node, const std::vector<std::string>& command,
                const std::string& log) {
    return Process::start({.argv = launch(1, command,
                                          {"--nnodes", nodes, "--node_rank", std::to_string(node),
                                           "--run_folder", folder_.path(), "--join_timeout", "60"}),
                           .stdout_path = folder_.path() / log});
  }
  bool has(const std::string& file) { return std::filesystem::exists(folder_.path() / file); }
  // In the first round ranks wait to be killed; in later ones they agree for a while and end.
  std::vector<std::string> script(const std::string& later = "exec \"$1\" . 20") {
    return script_in(folder_,
                     "touch up-$TUTTI_RESTART_COUNT-$RANK; [ $TUTTI_RESTART_COUNT = 0 ] && "
                     "exec \"$1\" . 1000000; " +
                         later);
  }
  TempFolder folder_;
};

TEST_F(LosesNodes, TheOthersGoOnWithFewer) {
  std::vector<Process> agents;
  for (int node = 0; node < 4; ++node)
    agents.push_back(start("2:4", node, script(), "log-" + std::to_string(node)));
  for (const char* rank : {"up-0-0", "up-0-1", "up-0-2", "up-0-3"})
    ASSERT_TRUE(wait_until([&] { return has(rank); })) << rank;
  ::kill(agents[1].pid(), SIGKILL);
  ::kill(agents[2].pid(), SIGKILL);
  for (const int node : {0, 3}) {
    const auto status = agents[static_cast<std::size_t>(node)].wait_for(60s);
    const std::string log = read_file(folder_.path() / ("log-" + std::to_string(node)));
    ASSERT_TRUE(status && status->exit_code == 0) << log;
    EXPECT_THAT(log, HasSubstr("going on with nodes 0, 3 (2 ranks instead of 4)"));
  }
  // World, local rank, node, nodes, restarts: renumbered without gaps.
  EXPECT_EQ(read_file(folder_.path() / "rank-1.done"), "2 0 1 2 1 tutti launch");
}

TEST_F(LosesNodes, FewerThanTheLeastEndTheRun) {
  std::vector<Process> agents;
  for (int node = 0; node < 2; ++node)
    agents.push_back(
        Process::start({.argv = launch(1, script(),
                                       {"--nnodes", "2:2", "--node_rank", std::to_string(node),
                                        "--run_folder", folder_.path(), "--join_timeout", "3"}),
                        .stdout_path = folder_.path() / ("log-" + std::to_string(node))}));
  ASSERT_TRUE(wait_until([&] { return has("up-0-0") && has("up-0-1"); }));
  ::kill(agents[1].pid(), SIGKILL);
  const auto status = agents[0].wait_for(60s);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->exit_code, static_cast<int>(ExitCode::kCommunication));
  EXPECT_THAT(read_file(folder_.path() / "log-0"), HasSubstr("missing: 1"));
}

TEST_F(LosesNodes, AFailureOfTheProgramIsNoLoss) {
  std::vector<Process> agents;
  for (int node = 0; node < 3; ++node)
    agents.push_back(start("1:3", node, {"sh", "-c", "[ $RANK = 2 ] && exit 9; sleep 1000"},
                           "log-" + std::to_string(node)));
  for (Process& agent : agents) {
    const auto status = agent.wait_for(60s);
    ASSERT_TRUE(status.has_value());
    EXPECT_EQ(status->exit_code, 9);
  }
}

TEST_F(LosesNodes, ANodeThatComesBackJoinsAtTheNextRestart) {
  // The second round waits until the lost node is back, then loses another one.
  const auto command =
      script("[ $TUTTI_RESTART_COUNT = 1 ] && exec \"$1\" . 1000000; exec \"$1\" . 20");
  std::vector<Process> agents;
  for (int node = 0; node < 3; ++node)
    agents.push_back(start("2:3", node, command, "log-" + std::to_string(node)));
  ASSERT_TRUE(wait_until([&] { return has("up-0-0") && has("up-0-1") && has("up-0-2"); }));
  ::kill(agents[1].pid(), SIGKILL);
  ASSERT_TRUE(wait_until([&] { return has("up-1-0") && has("up-1-1"); }));
  agents[1] = start("2:3", 1, command, "log-back");
  ASSERT_TRUE(wait_until([&] {
    return read_file(folder_.path() / "log-back").find("joins at the next restart") !=
           std::string::npos;
  }));
  ::kill(agents[2].pid(), SIGKILL);
  for (const int node : {0, 1}) {
    const auto status = agents[static_cast<std::size_t>(node)].wait_for(60s);
    ASSERT_TRUE(status && status->exit_code == 0) << read_file(folder_.path() / "log-0");
  }
  EXPECT_EQ(read_file(folder_.path() / "rank-1.done"), "2 0 1 2 2 tutti launch");
}

class TwoNodes : public testing::Test {
 protected:
  // Both agents on this machine, meeting through the folder.
  std::vector<CommandResult> run_both(const std::vector<std::string>& command,
                                      std::vector<std::string> extra = {}) {
    std::vector<CommandResult> results(2);
    std::vector<std::thread> threads;
    for (int node = 0; node < 2; ++node) {
      threads.emplace_back([&, node] {
        std::vector<std::string> options = {
            "--nnodes", "2", "--node_rank", std::to_string(node), "--run_folder", folder_.path()};
        options.insert(options.end(), extra.begin(), extra.end());
        results[node] = run(launch(2, command, options));
      });
    }
    for (auto& thread : threads) thread.join();
    return results;
  }
  TempFolder folder_;
};

TEST_F(TwoNodes, TrainTogether) {
  const auto results = run_both({kProbe, folder_.path(), "50"});
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_EQ(read_file(folder_.path() / "rank-3.done"), "4 1 1 2 0 tutti launch");
}

TEST_F(TwoNodes, FailureOnOneIsKnownOnBoth) {
  const auto results = run_both({kProbe, folder_.path(), "1000000", "exit3", "3", "10"});
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 3) << result.describe();
    EXPECT_THAT(last_block(result.err), AllOf(HasSubstr("rank 3 on "), HasSubstr("bad data")));
  }
}

TEST_F(TwoNodes, RestartTogether) {
  const auto script = script_in(folder_,
                                "[ $TUTTI_RESTART_COUNT = 1 ] && exec \"$1\" . 20; "
                                "[ $RANK = 0 ] && exit 7; sleep 1000");
  const auto results = run_both(script, {"--max_restarts", "1"});
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.describe();
}

}  // namespace
}  // namespace tutti::launch
