// `tutti map` and its companions, as a user runs them: the real program, real processes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>

#include "tests/parallel/items.h"
#include "tests/parallel/processes.h"
#include "tests/places.h"
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

const std::string kTutti = in_bin("tutti");

class MapTest : public ::testing::Test {
 protected:
  CommandResult tutti(std::vector<std::string> words) const {
    words.insert(words.begin(), kTutti);
    return run_command({.argv = words, .timeout = std::chrono::seconds(100)});
  }
  CommandResult map(const std::string& items, const std::vector<std::string>& command,
                    const std::string& yaml = "n_workers: 2") const {
    return tutti(map_words(items, command, yaml));
  }
  std::vector<std::string> map_words(const std::string& items,
                                     const std::vector<std::string>& command,
                                     const std::string& yaml) const {
    std::string block = "parallel:\n";
    for (const auto& line : split(yaml, '\n')) block += "  " + line + "\n";
    write_file_atomic(config_, block);
    std::vector<std::string> words = {"map",          "--config",    config_,   "--items", items,
                                      "--output_dir", out_.string(), "--quiet", "--"};
    words.insert(words.end(), command.begin(), command.end());
    return words;
  }
  std::string results() const { return read_file(out_ / "results.jsonl"); }
  std::string file(const std::string& name, const std::string& content) const {
    write_file_atomic(folder_.path() / name, content);
    return (folder_.path() / name).string();
  }
  // Processes that carry `word` on their command line.
  static int processes_with(const std::string& word) {
    int count = 0;
    for (const pid_t pid : all_pids())
      if (pid != ::getpid() && proc_text(pid, "cmdline").find(word) != std::string::npos) ++count;
    return count;
  }

  TempFolder folder_{"map"};
  fs::path out_ = folder_.path() / "out";
  std::string config_ = (folder_.path() / "conf.yaml").string();
};

// What a worker may use of the machine: its nice value, its processors, the threads of libraries.
TEST_F(MapTest, WorkersGetTheNiceValueAndTheProcessorsOfTheirOptions) {
  const auto r =
      map(file("items", "a\nb\nc\n"), {"sh", "-c", "echo $(nice) $(nproc) $OMP_NUM_THREADS"},
          "n_workers: 2\noptions: {niceness: 3, cpu_affinity: true, threads_per_worker: 1}");
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const int nice = ::getpriority(PRIO_PROCESS, 0) + 3;
  for (const auto& line : split(std::string(trim(results())), '\n'))
    EXPECT_THAT(line, HasSubstr("\"result\":\"" + std::to_string(nice) + " 1 1\"")) << line;
}

TEST_F(MapTest, StdoutOfEachItemBecomesItsResultInOrder) {
  const auto r = map(file("items", "apple\nbanana split\nche\"rry\n"), {"echo", "{index}:{}"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(
      results(),
      "{\"index\":0,\"item\":\"apple\",\"status\":\"ok\",\"result\":\"0:apple\"}\n"
      "{\"index\":1,\"item\":\"banana split\",\"status\":\"ok\",\"result\":\"1:banana split\"}\n"
      "{\"index\":2,\"item\":\"che\\\"rry\",\"status\":\"ok\",\"result\":\"2:che\\\"rry\"}\n");
  EXPECT_FALSE(fs::exists(out_ / "failed.jsonl"));
  EXPECT_TRUE(fs::exists(out_ / "manifest.json"));
  EXPECT_FALSE(fs::exists(out_ / ".tutti" / "connect.json"));
}

TEST_F(MapTest, AShellLineIsQuotedForTheShell) {
  ASSERT_EQ(map(file("items", "it's; echo no\n"), {"printf %s {} | tr a-z A-Z"}).exit_code, 0);
  EXPECT_THAT(results(), HasSubstr("\"IT'S; ECHO NO\""));
}

TEST_F(MapTest, FailedItemsGiveExitSevenAndTheirStderr) {
  const auto r = map("4", {"sh", "-c", "echo oops {} >&2; test {} != 2"}, "on_error: skip");
  EXPECT_EQ(r.exit_code, 7);
  const std::string failed = read_file(out_ / "failed.jsonl");
  EXPECT_THAT(failed, HasSubstr("\"index\":2"));
  EXPECT_THAT(failed, HasSubstr("oops 2"));
  EXPECT_THAT(results(), HasSubstr("{\"index\":2,\"item\":\"2\",\"status\":\"failed\"}\n"));
  // Run again: only the failed one is tried, and it may do better.
  EXPECT_EQ(map("4", {"sh", "-c", "echo oops {} >&2; test {} != 2"}, "on_error: stop").exit_code,
            7);
}

TEST_F(MapTest, AnotherCommandInTheSameFolderIsRefusedWithWhatDiffers) {
  ASSERT_EQ(map("3", {"echo", "{}"}).exit_code, 0);
  const std::string before = results();
  const auto r = map("3", {"echo", "x{}"});
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_THAT(r.err, HasSubstr("command"));
  EXPECT_THAT(r.err, HasSubstr("x{}"));
  EXPECT_EQ(map("4", {"echo", "{}"}).exit_code, 2);
  EXPECT_EQ(results(), before);
  ASSERT_EQ(map("3", {"echo", "x{}"}, "resume: false").exit_code, 0);
  EXPECT_THAT(results(), HasSubstr("\"x0\""));
}

TEST_F(MapTest, CtrlCDrainsAndTheNextRunContinues) {
  const auto words = map_words("40", {"sh", "-c", "sleep 0.1; echo {}"}, "n_workers: 2");
  std::vector<std::string> argv = words;
  argv.insert(argv.begin(), kTutti);
  Process driver = Process::start({.argv = argv, .stdout_path = folder_.path() / "log"});
  ASSERT_TRUE(wait_until([&] { return count_items(out_).ok > 3; }));
  const auto status = tutti({"status", out_.string(), "--json"});
  EXPECT_THAT(status.out, HasSubstr("\"state\": \"running\""));
  ::kill(driver.pid(), SIGINT);
  EXPECT_EQ(driver.wait().exit_code, 130);
  const std::string said = read_file(folder_.path() / "log");
  EXPECT_THAT(said, HasSubstr("stopping: running items are finished; press Ctrl-C again to stop "
                              "now"));
  EXPECT_THAT(said, HasSubstr("stopped: running items were finished"));
  const auto counts = count_items(out_);
  EXPECT_LT(counts.ok, 40U);
  EXPECT_THAT(tutti({"status", out_.string()}).out, HasSubstr("stopped"));
  ASSERT_EQ(map("40", {"sh", "-c", "sleep 0.1; echo {}"}, "n_workers: 4").exit_code, 0);
  EXPECT_EQ(count_items(out_).ok, 40U);
}

TEST_F(MapTest, CtrlCAndAnotherSignalAtOnceAreToldAsCtrlC) {
  std::vector<std::string> argv =
      map_words("1000", {"sh", "-c", "sleep 0.05; echo {}"}, "n_workers: 2");
  argv.insert(argv.begin(), kTutti);
  Process driver = Process::start({.argv = argv});
  ASSERT_TRUE(wait_until([&] { return count_items(out_).ok > 0; }));
  ::kill(driver.pid(), SIGINT);
  ::kill(driver.pid(), SIGTERM);
  EXPECT_EQ(driver.wait().exit_code, 130);
  EXPECT_THAT(tutti({"status", out_.string()}).out, HasSubstr("Ctrl-C"));
}

// A driver whose disk can be made slow, or to fail once; each item adds a byte to `ran`.
class MapOnABadDisk : public MapTest {
 protected:
  Process start(int num_items) {
    write_file_atomic(numbers_, std::string(16, '\0'));
    write_file_atomic(ran_, "");
    return Process::start(
        {.argv = words(num_items),
         .env = {{"LD_PRELOAD", "libslow_disk.so"},  // by its name: a path would end at a space
                 {"LD_LIBRARY_PATH", in_bin()},
                 {"CHAOS_SHIM", numbers_.string()}},
         .stderr_path = folder_.path() / "stderr"});
  }
  std::vector<std::string> words(int num_items) const {
    std::vector<std::string> argv =
        map_words(std::to_string(num_items),
                  {"sh", "-c", "sleep 0.01; printf x >>\"" + ran_.string() + "\""}, "n_workers: 1");
    argv.insert(argv.begin(), kTutti);
    return argv;
  }
  void set_disk(std::int64_t milliseconds) const {
    const std::int64_t clock_and_disk[2] = {0, milliseconds};
    std::ofstream(numbers_, std::ios::in | std::ios::out)  // in its place: it is mapped
        .write(reinterpret_cast<const char*>(clock_and_disk), sizeof clock_and_disk);
  }
  std::uint64_t count_ran() const { return static_cast<std::uint64_t>(fs::file_size(ran_)); }

 private:
  const fs::path numbers_ = folder_.path() / "numbers", ran_ = folder_.path() / "ran";
};

// A shared disk may take a second for an fsync. What is done meanwhile is in the journal all the same.
TEST_F(MapOnABadDisk, AKilledDriverHasRecordedWhatWasDoneWhileTheDiskWasSlow) {
  Process driver = start(1000);
  ASSERT_TRUE(wait_until([&] { return count_ran() > 5; }));
  set_disk(20'000);
  // More than a second of items: an fsync has begun, and does not end.
  ASSERT_TRUE(wait_until([&] { return count_ran() > 200; }));
  const std::uint64_t done = count_ran();
  ::kill(driver.pid(), SIGKILL);
  driver.wait();
  set_disk(0);
  EXPECT_GE(count_items(out_).ok + 20, done);
}

// A disk tells of what it lost once, to whoever asks first: here the thread that syncs in the background.
TEST_F(MapOnABadDisk, WhatTheDiskLostEndsTheRunAndTheSameCommandGoesOn) {
  Process driver = start(400);
  ASSERT_TRUE(wait_until([&] { return count_ran() > 5; }));
  set_disk(-1);
  EXPECT_EQ(driver.wait().exit_code, 4);
  EXPECT_THAT(read_file(folder_.path() / "stderr"),
              testing::AllOf(HasSubstr(".journal"), HasSubstr("Input/output error")));
  EXPECT_LT(count_ran(), 400U);
  const CommandResult again =
      run_command({.argv = words(400), .timeout = std::chrono::seconds(100)});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(count_items(out_).ok, 400U);
}

TEST_F(MapTest, WhatItemsThatWentWellWroteToStderrIsInTheWorkersLog) {
  EXPECT_EQ(map("3", {"sh", "-c", "echo hm {} >&2; test {} != 1"}, "on_error: skip\nn_workers: 1")
                .exit_code,
            7);
  const std::string log = read_file(out_ / "logs" / "worker-0.log");
  EXPECT_THAT(log, HasSubstr("item 0 wrote to stderr:\nhm 0\n"));
  EXPECT_THAT(log, HasSubstr("item 2 wrote to stderr:\nhm 2\n"));
  EXPECT_THAT(log, Not(HasSubstr("hm 1")));
  EXPECT_THAT(read_file(out_ / "failed.jsonl"), HasSubstr("hm 1"));
}

TEST_F(MapTest, StatusTellsWhyARunStoppedAndGoingOnElsewhereWarns) {
  std::vector<std::string> words =
      map_words("2", {"sh", "-c", "test {} = 0 || test -e ok"}, "n_workers: 1\non_error: stop");
  words.insert(words.begin(), kTutti);
  const auto from = [&](const char* name) {
    fs::create_directories(folder_.path() / name);
    return run_command(
        {.argv = words, .cwd = folder_.path() / name, .timeout = std::chrono::seconds(100)});
  };
  EXPECT_EQ(from("here").exit_code, 7);
  const std::string status = tutti({"status", out_.string()}).out;
  EXPECT_THAT(status, HasSubstr("reason: item \"1\" failed"));
  EXPECT_THAT(status, HasSubstr("the same command goes on with what is left"));
  const auto again = from("here");
  EXPECT_EQ(again.exit_code, 7);
  EXPECT_THAT(again.err, Not(HasSubstr("was begun in")));
  fs::create_directories(folder_.path() / "there");
  file("there/ok", "");
  const auto elsewhere = from("there");
  EXPECT_EQ(elsewhere.exit_code, 0) << elsewhere.err;
  EXPECT_THAT(elsewhere.err, HasSubstr("/here: relative names"));
  EXPECT_THAT(tutti({"status", out_.string()}).out, Not(HasSubstr("reason")));
}

TEST_F(MapTest, CancelStopsWithEightyFiveAndWaitTells) {
  auto argv = map_words("400", {"sh", "-c", "sleep 0.1; echo {}"}, "n_workers: 2");
  argv.insert(argv.begin(), kTutti);
  Process driver = Process::start({.argv = argv, .stdout_path = folder_.path() / "log"});
  ASSERT_TRUE(wait_until([&] { return count_items(out_).ok > 0; }));
  const auto second = tutti(map_words("400", {"sh", "-c", "sleep 0.1; echo {}"}, "n_workers: 2"));
  EXPECT_EQ(second.exit_code, 4);  // two drivers on one folder
  EXPECT_THAT(second.err, HasSubstr("in use by process " + std::to_string(driver.pid())));
  EXPECT_EQ(tutti({"cancel", out_.string()}).exit_code, 0);
  EXPECT_EQ(driver.wait().exit_code, 85);
  EXPECT_EQ(tutti({"wait", out_.string()}).exit_code, 85);
  EXPECT_THAT(tutti({"status", out_.string()}).out, HasSubstr("reason: SIGTERM"));
  EXPECT_EQ(tutti({"gather", out_.string()}).exit_code, 85);
  EXPECT_THAT(results(), HasSubstr("\"status\":\"ok\""));
}

TEST_F(MapTest, KillNineOfTheDriverLeavesNoProcessBehind) {
  const std::string mark = "3599." + std::to_string(::getpid());
  auto argv = map_words("4", {"sh", "-c", "sleep " + mark + "; echo {}"}, "n_workers: 2");
  argv.insert(argv.begin(), kTutti);
  Process driver = Process::start({.argv = argv, .stdout_path = folder_.path() / "log"});
  // The driver, and on each worker sh and its sleep.
  ASSERT_TRUE(wait_until([&] { return processes_with(mark) >= 5; }));
  ::kill(driver.pid(), SIGKILL);
  driver.wait();
  EXPECT_TRUE(wait_until([&] { return processes_with(mark) == 0; }))
      << processes_with(mark) << " left";
  EXPECT_TRUE(wait_until([&] { return processes_with(out_.string()) == 0; }));
}

TEST_F(MapTest, AFullDiskIsAnIoErrorAndTheRunGoesOnAfterwards) {
  const std::vector<std::string> command = {"sh", "-c", "head -c 3000 /dev/zero | tr '\\0' x"};
  std::string line =
      "trap '' XFSZ; ulimit -f 64; exec " + shell_quote(kTutti);  // blocks of 512 bytes or 1 KiB
  for (const auto& word : map_words("200", command, "n_workers: 2"))
    line += " " + shell_quote(word);
  const auto r = run_command({.argv = {"bash", "-c", line}, .timeout = std::chrono::seconds(100)});
  EXPECT_EQ(r.exit_code, 4) << r.err;
  EXPECT_LT(count_items(out_).ok, 200U);
  ASSERT_EQ(map("200", command).exit_code, 0);
  EXPECT_EQ(count_items(out_).ok, 200U);
}

TEST_F(MapTest, AFolderThatCannotBeMadeIsAnIoError) {
  out_ = "/proc/tutti-cannot-be-here";
  const auto r = map("3", {"echo", "{}"});
  EXPECT_EQ(r.exit_code, 4);
  EXPECT_THAT(r.err, HasSubstr("/proc/tutti-cannot-be-here"));
}

TEST_F(MapTest, EveryGpuWorkerSeesItsOwnDeviceFirst) {
  const std::string gpus =
      "env: local_gpu\noptions: {CUDA_VISIBLE_DEVICES: [GPU-a, MIG-b]}\nn_workers: ";
  const std::vector<std::string> show = {"sh", "-c", "sleep 0.05; echo $CUDA_VISIBLE_DEVICES"};
  ASSERT_EQ(map("20", show, gpus + "2").exit_code, 0);
  EXPECT_THAT(results(), HasSubstr("\"GPU-a,MIG-b\""));
  EXPECT_THAT(results(), HasSubstr("\"MIG-b,GPU-a\""));
  const auto too_many = map("20", show, gpus + "3");
  EXPECT_EQ(too_many.exit_code, 2);
  EXPECT_THAT(too_many.err, HasSubstr("visible GPUs"));
}

TEST_F(MapTest, ConfigMistakesAreReportedBeforeAnythingStarts) {
  const auto r = map("3", {"echo"}, "env: local\noptions: {queue: gpu}");
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_THAT(r.err, HasSubstr("queue"));
  EXPECT_FALSE(fs::exists(out_));
}

// Nothing that this driver brought about is an item's fault: with max_retries: 0 the first strike
// would be the last.
TEST_F(MapTest, ADriverThatWasStoppedForLongLosesNoWorkerAndBlamesNoItem) {
  Command command{.argv = map_words("60", {"sh", "-c", "sleep 0.1; echo {}"},
                                    "n_workers: 2\non_error: skip\nmax_retries: 0\n"
                                    "options: {death_timeout: 1}")};
  command.argv.insert(command.argv.begin(), kTutti);
  command.stdout_path = folder_.path() / "log";
  Process driver = Process::start(command);
  ASSERT_TRUE(wait_until([&] { return count_items(out_).ok > 3; }));
  ::kill(driver.pid(), SIGSTOP);
  wait_until([] { return false; }, 4);  // longer than the workers would wait for a dead driver
  ::kill(driver.pid(), SIGCONT);
  EXPECT_TRUE(driver.wait().ok()) << read_file(folder_.path() / "log");
  EXPECT_EQ(count_items(out_).ok, 60U);
  for (const auto& entry : fs::directory_iterator(out_ / "logs"))
    EXPECT_THAT(read_file(entry.path()), ::testing::Not(HasSubstr("no word from the driver")));
}

TEST_F(MapTest, TheLimitOfOpenFilesIsRaisedOrNamed) {
  auto words = map_words("100", {"sh", "-c", "ulimit -Sn"}, "n_workers: 40");
  std::string line = shell_quote(kTutti);
  for (const auto& word : words) line += " " + shell_quote(word);
  const auto low = run_command({.argv = {"sh", "-c", "ulimit -n 80; exec " + line}});
  EXPECT_EQ(low.exit_code, 2) << low.err;
  EXPECT_THAT(low.err, HasSubstr("40 workers need 104 open files in the driver, the limit is 80"));
  const auto soft = run_command({.argv = {"sh", "-c", "ulimit -Sn 80; exec " + line}});
  EXPECT_EQ(soft.exit_code, 0) << soft.err;
  EXPECT_THAT(results(), HasSubstr("\"result\":\"80\"")) << "items keep the limit of the user";
}

}  // namespace
}  // namespace tutti::parallel
