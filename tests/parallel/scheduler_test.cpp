// `tutti map` on a scheduler that hangs, lies, forgets and has broken nodes: a stand-in for Slurm
// made of shell scripts, real workers, real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <set>

#include "tests/parallel/items.h"
#include "tests/parallel/processes.h"
#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"
#include "tutti/parallel/folder/run_folder.h"

namespace tutti::parallel {
namespace {

namespace fs = std::filesystem;
using namespace trial;
using ::testing::HasSubstr;
using ::testing::Not;

// Jobs are files in $D: N.pid (runs), N.pending, N.cancelled, N.script. Files in $D change how the
// commands behave: `pending` (jobs do not start), `hold` (task 1 does not), `hang`, `lie`, `garbage` (of
// squeue), `reason` (why jobs wait).
constexpr char kSbatch[] = R"sh(#!/bin/bash
for script; do :; done
id=$(($(cat $D/next 2>/dev/null || echo 100) + 1)); echo $id >$D/next
start() {
  echo "$script" >$D/$1.script
  case $1 in *_1) [ -e $D/hold ] && { touch $D/$1.pending; return; };; esac
  if [ -e $D/pending ]; then touch $D/$1.pending; return; fi
  setsid bash "$script" </dev/null >$D/$1.log 2>&1 &
  echo $! >$D/$1.pid
}
last=$(sed -n 's/^#SBATCH --array=0-\([0-9]*\)$/\1/p' "$script")
export SLURM_JOB_ID=$id
if [ -z "$last" ]; then
  start $id
else
  export SLURM_ARRAY_JOB_ID=$id
  for task in $(seq 0 $last); do export SLURM_ARRAY_TASK_ID=$task; start ${id}_$task; done
fi
echo $id
)sh";
constexpr char kSqueue[] = R"sh(#!/bin/bash
if [ -e $D/hang ]; then touch $D/hangs; exec sleep 1000; fi
if [ -e $D/garbage ]; then touch $D/seen; echo 'Segmentation fault <77> | 12_[3'; exit 0; fi
for script in $D/*.script; do
  [ -e "$script" ] || continue
  job=${script%.script}; id=${job##*/}; state=FAILED
  [ -e $job.cancelled ] && state=CANCELLED
  [ -e $job.pending ] && state=PENDING
  [ -e $job.pid ] && [ ! -e $job.cancelled ] && kill -0 $(cat $job.pid) 2>/dev/null && state=RUNNING
  [ -e $D/lie ] && { touch $D/seen; state=FAILED; }
  case "$*" in
    *%o*) case $state in PENDING|RUNNING) echo "$id|$(cat $script)";; esac;;
    *) echo "$id|$state|node1|$([ $state = PENDING ] && cat $D/reason 2>/dev/null || echo None)";;
  esac
done
)sh";
constexpr char kScancel[] = R"sh(#!/bin/bash
for id; do
  touch $D/$id.cancelled; rm -f $D/$id.pending
  [ -e $D/$id.pid ] && kill -TERM -- -$(cat $D/$id.pid) 2>/dev/null
done
exit 0
)sh";

class Scheduler : public ::testing::Test {
 protected:
  Scheduler() {
    make_folders(folder_.path() / "bin");
    script("sbatch", kSbatch);
    script("squeue", kSqueue);
    script("scancel", kScancel);
    for (const char* name : {"sacct", "scontrol"}) script(name, "#!/bin/sh\nexit 1\n");
    fs::create_directories(state_);
  }
  ~Scheduler() override {
    for (const auto& entry : fs::directory_iterator(state_))
      if (entry.path().extension() == ".pid") ::kill(-std::stoi(read_file(entry.path())), SIGKILL);
  }
  void script(const std::string& name, const std::string& text) const {
    write_file_atomic(folder_.path() / "bin" / name, text, 0755);
  }
  void behave(const std::string& how) const { write_file_atomic(state_ / how, ""); }
  void behave_again(const std::string& how) const { fs::remove(state_ / how); }
  bool happens(const std::string& name) const {
    return wait_until([&] { return fs::exists(state_ / name); });
  }
  int num_submissions() const {
    return fs::exists(state_ / "next") ? std::stoi(read_file(state_ / "next")) - 100 : 0;
  }

  Command command(int items, int n_workers, const std::string& shell,
                  const std::string& options = "", const std::string& block = "") const {
    const auto config = folder_.path() / "conf.yaml";
    write_file_atomic(config, "parallel:\n  env: slurm\n  n_workers: " + std::to_string(n_workers) +
                                  "\n" + block +
                                  "  options: {cores: 1, processes: 1, memory: 200MB, "
                                  "death_timeout: 5, walltime: '01:00:00'" +
                                  options + "}\n");
    Command command{.argv = {TUTTI_BIN_DIR "/tutti", "map", "--config", config.string(), "--items",
                             std::to_string(items), "--output_dir", out_.string(), "--quiet", "--",
                             "sh", "-c", shell}};
    command.env["PATH"] = (folder_.path() / "bin").string() + ":" + std::getenv("PATH");
    command.env["D"] = state_.string();
    return command;
  }
  Process start(Command command) const {
    command.stdout_path = folder_.path() / "log";
    return Process::start(command);
  }
  CommandResult run(Command command) const {
    command.timeout = std::chrono::seconds(100);
    return run_command(command);
  }
  std::uint64_t num_ok() const { return count_items(out_).ok; }
  std::string story() const {
    std::string text = read_file(folder_.path() / "log");
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(out_ / "logs", none))
      text += "\n-- " + entry.path().filename().string() + "\n" + read_file(entry.path());
    return text;
  }

  TempFolder folder_{"scheduler"};
  fs::path state_ = folder_.path() / "state";
  fs::path out_ = folder_.path() / "out";
};

TEST_F(Scheduler, ACommandThatHangsCostsNothingButNewWorkers) {
  Process driver = start(command(100, 2, "sleep 0.05; echo {}"));
  ASSERT_TRUE(wait_until([&] { return num_ok() > 5; })) << story();
  behave("hang");
  ASSERT_TRUE(happens("hangs"));
  const auto ended = driver.wait_for(std::chrono::seconds(50));
  ASSERT_TRUE(ended) << "waits for squeue\n" << story();
  EXPECT_TRUE(ended->ok()) << story();
  EXPECT_EQ(num_ok(), 100U);
  EXPECT_THAT(story(), Not(HasSubstr("no word from the driver")));
}

TEST_F(Scheduler, SigtermIsHeededWhileACommandHangs) {
  Process driver = start(command(100000, 2, "sleep 0.05; echo {}"));
  ASSERT_TRUE(wait_until([&] { return num_ok() > 5; })) << story();
  behave("hang");
  ASSERT_TRUE(happens("hangs"));
  ::kill(driver.pid(), SIGTERM);
  const auto ended = driver.wait_for(std::chrono::seconds(40));
  ASSERT_TRUE(ended) << "waits for squeue\n" << story();
  EXPECT_EQ(ended->exit_code, 85) << story();
}

// Who talks lives, whatever the scheduler says.
TEST_F(Scheduler, AnswersThatAreWrongOrNoneAtAllDoNotEndWorkersThatTalk) {
  for (const char* how : {"lie", "garbage"}) {
    fs::remove_all(out_);
    fs::remove_all(state_);
    fs::create_directories(state_);
    // Both workers have an item, and no item ends before the scheduler was asked.
    Process driver = start(command(200, 2,
                                   ": >\"$D\"/busy.$SLURM_ARRAY_TASK_ID; until [ -e \"$D\"/seen ]; "
                                   "do sleep 0.05; done; sleep 0.05; echo {}"));
    ASSERT_TRUE(happens("busy.0") && happens("busy.1")) << story();
    behave(how);
    ASSERT_TRUE(happens("seen"));
    EXPECT_TRUE(driver.wait().ok()) << story();
    EXPECT_EQ(num_ok(), 200U);
    EXPECT_EQ(num_submissions(), 1) << how << ": workers were replaced\n" << story();
    behave_again(how);
  }
}

TEST_F(Scheduler, JobsOfAKilledDriverNeverJoinTheNext) {
  const std::string mark =
      "echo {} >>" + shell_quote((folder_.path() / "marks").string()) + "; echo {}";
  behave("pending");
  Process first = start(command(20, 3, mark));
  ASSERT_TRUE(happens("101_2.pending")) << story();
  ASSERT_TRUE(wait_until([&] { return fs::exists(out_ / ".tutti" / "jobs.json"); }));
  ::kill(first.pid(), SIGKILL);
  first.wait();
  behave_again("pending");
  const auto second = run(command(20, 2, mark));
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(num_ok(), 20U);
  for (int task = 0; task < 3; ++task)
    EXPECT_TRUE(fs::exists(state_ / ("101_" + std::to_string(task) + ".cancelled"))) << second.err;
  const auto marks = split_words(read_file(folder_.path() / "marks"));
  EXPECT_EQ(marks.size(), 20U) << "an item ran twice";
  EXPECT_FALSE(fs::exists(out_ / ".tutti" / "jobs.json"));
}

TEST_F(Scheduler, AWorkerOfAnotherDriversLifeIsTurnedAway) {
  Process driver = start(command(100000, 1, "sleep 0.05; echo {}"));
  ASSERT_TRUE(wait_until([&] { return num_ok() > 0; })) << story();
  const auto orphan = run_command({.argv = {TUTTI_BIN_DIR "/tutti", "worker", "--run",
                                            out_.string(), "--life", "0badc0de", "--id", "7"},
                                   .timeout = std::chrono::seconds(50)});
  EXPECT_FALSE(orphan.timed_out);
  EXPECT_THAT(orphan.err, HasSubstr("the driver that asked for this worker is gone"));
  ::kill(driver.pid(), SIGTERM);
  driver.wait();
}

TEST_F(Scheduler, ThreeBrokenNodesOfTenAreLeftOut) {
  const std::string broken =
      ", job_script_prologue: ['case \"x$SLURM_ARRAY_TASK_ID\" in x0|x1|x2) echo no disk; exit 7;; "
      "esac']";
  const auto result = run(command(200, 10, "sleep 0.2; echo {}", broken));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(num_ok(), 200U);
  EXPECT_THAT(read_file(state_ / "101_0.log"), HasSubstr("no disk")) << "nothing was broken";
}

TEST_F(Scheduler, WhenNoNodeWorksTheRunEndsWithTheNodesAndTheirWords) {
  const auto result =
      run(command(10, 4, "echo {}", ", job_script_prologue: ['echo no disk today >&2; exit 7']"));
  EXPECT_EQ(result.exit_code, 6) << result.err;
  EXPECT_THAT(result.err, HasSubstr("no worker came up"));
  EXPECT_THAT(result.err, HasSubstr("starts of workers failed: node1"));
}

TEST_F(Scheduler, AJobThatIsHeldDoesNotStayInTheQueueWhenAnAsynchronousRunIsDone) {
  behave("hold");
  write_file_atomic(state_ / "reason", "JobHeldAdmin");
  const auto submitted = run(command(20, 2, "echo {}", "", "  async: true\n"));
  ASSERT_EQ(submitted.exit_code, 0) << submitted.err;
  ASSERT_TRUE(fs::exists(state_ / "101_1.pending"));
  Command wait{.argv = {TUTTI_BIN_DIR "/tutti", "wait", out_.string()}};
  wait.env = command(1, 1, "").env;
  const auto waited = run(wait);
  EXPECT_EQ(waited.exit_code, 0) << waited.err;
  EXPECT_EQ(num_ok(), 20U);
  EXPECT_TRUE(happens("101_1.cancelled"));
}

TEST_F(Scheduler, AJobThatANodeCouldNotStartIsTakenOutOfTheQueueAndReplaced) {
  behave("hold");
  write_file_atomic(state_ / "reason", "launch failed requeued held");
  Process driver = start(command(100000, 2, "sleep 0.05; echo {}"));
  ASSERT_TRUE(happens("101_1.cancelled")) << story();
  EXPECT_TRUE(wait_until([&] { return num_submissions() > 1; })) << story();
  ::kill(driver.pid(), SIGTERM);
  EXPECT_EQ(driver.wait().exit_code, 85) << story();
}

}  // namespace
}  // namespace tutti::parallel
