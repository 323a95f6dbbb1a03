// `tutti map --async` and its companions on this machine, as a user runs them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "tests/parallel/items.h"
#include "tests/parallel/processes.h"
#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"
#include "tutti/parallel/async/job.h"
#include "tutti/parallel/folder/run_folder.h"

namespace tutti::parallel {
namespace {

namespace fs = std::filesystem;
using namespace trial;
using ::testing::HasSubstr;

const std::string kTuttiProgram = in_bin("tutti");

class AsyncMap : public ::testing::Test {
 protected:
  ~AsyncMap() override {
    if (fs::exists(async_folder(out_))) tutti({"cancel", "--now", out_.string()});
    EXPECT_TRUE(wait_until([&] { return workers().empty(); })) << "a worker was left running";
  }
  CommandResult tutti(std::vector<std::string> words) const {
    words.insert(words.begin(), kTuttiProgram);
    return run_command({.argv = words, .env = env_, .timeout = std::chrono::seconds(100)});
  }
  CommandResult map(const fs::path& out, const std::string& items,
                    const std::vector<std::string>& command, const std::string& yaml,
                    bool async = true) const {
    std::string block = "parallel:\n";
    for (const auto& line : split(yaml, '\n')) block += "  " + line + "\n";
    write_file_atomic(folder_.path() / "conf.yaml", block);
    std::vector<std::string> words = {
        "map",        "--config", (folder_.path() / "conf.yaml").string(),
        "--items",    items,      "--output_dir",
        out.string(), "--quiet"};
    if (async) words.emplace_back("--async");
    words.emplace_back("--");
    words.insert(words.end(), command.begin(), command.end());
    return tutti(words);
  }
  // Worker processes of the run that do items (not their supervisors).
  std::vector<pid_t> workers() const {
    std::vector<pid_t> pids;
    for (const pid_t pid : all_pids()) {
      const std::string text = proc_text(pid, "cmdline");
      if (text.find("--run " + out_.string() + " ") != std::string::npos &&
          text.find("--name") != std::string::npos)
        pids.push_back(pid);
    }
    return without_forks(pids);
  }
  std::string results(const fs::path& out) const { return read_file(out / "results.jsonl"); }

  TempFolder folder_{"async"};
  fs::path out_ = folder_.path() / "out";
  fs::path quiet_ = folder_.path() / "quiet";
  std::map<std::string, std::string> env_;
};

TEST_F(AsyncMap, GivesTheBytesOfASynchronousRun) {
  std::string items;
  for (int i = 0; i < 300; ++i) items += "utt \"" + std::to_string(i) + "\"\n";
  write_file_atomic(folder_.path() / "items", items);
  const std::string list = (folder_.path() / "items").string();
  ASSERT_EQ(map(quiet_, list, {"echo", "{index}:{}"}, "n_workers: 2", false).exit_code, 0);
  const auto submitted = map(out_, list, {"echo", "{index}:{}"}, "n_workers: 3");
  ASSERT_EQ(submitted.exit_code, 0) << submitted.err;
  EXPECT_EQ(tutti({"wait", out_.string()}).exit_code, 0);
  EXPECT_EQ(results(out_), results(quiet_));
  EXPECT_THAT(tutti({"status", out_.string()}).out, HasSubstr("done, 300 of 300 items ok"));
  EXPECT_EQ(tutti({"gather", out_.string()}).exit_code, 0);
  EXPECT_EQ(results(out_), results(quiet_));
}

TEST_F(AsyncMap, TheKeyInTheConfigDoesTheSameAndLargeResultsGoThroughFiles) {
  const std::vector<std::string> command = {"sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x"};
  ASSERT_EQ(map(quiet_, "6", command, "n_workers: 2", false).exit_code, 0);
  ASSERT_EQ(map(out_, "6", command, "n_workers: 2\nasync: true", false).exit_code, 0);
  EXPECT_EQ(tutti({"wait", out_.string()}).exit_code, 0);
  EXPECT_EQ(results(out_), results(quiet_));
}

TEST_F(AsyncMap, KilledBeforeItsFirstWordItIsNotCalledQueued) {
  const std::vector<std::string> command = {"sleep", "1000"};
  ASSERT_EQ(map(out_, "4", command, "n_workers: 1").exit_code, 0);
  const Json job = parse_json(read_file(async_folder(out_) / "jobs/0"), "jobs/0");
  const std::string supervisor = job["job_id"];
  ASSERT_TRUE(wait_until([&] { return !workers().empty(); }));
  ASSERT_EQ(::kill(std::stoi(supervisor), SIGKILL), 0);
  for (const pid_t pid : workers()) ::kill(-pid, SIGKILL);
  ASSERT_TRUE(wait_until([&] { return workers().empty(); }));
  // The kill came before the worker had said that it is there.
  for (const auto& note : fs::directory_iterator(async_folder(out_) / "workers"))
    fs::remove(note.path());
  const auto status = tutti({"status", out_.string()});
  EXPECT_THAT(status.out, HasSubstr("died, 0 of 4 items ok"));
  EXPECT_THAT(tutti({"wait", out_.string()}).err, HasSubstr("the same command goes on"));
  EXPECT_THAT(status.out, HasSubstr("its worker (process " + supervisor + ") is gone"));
  const auto again = map(out_, "4", {"sleep", "1000"}, "n_workers: 1");  // not "in use"
  EXPECT_EQ(again.exit_code, 0) << again.err;
}

TEST_F(AsyncMap, StatusAndCancelWorkWhileItRunsAndAnyModeResumes) {
  const std::vector<std::string> command = {"sh", "-c", "sleep 0.05; echo {}"};
  ASSERT_EQ(map(out_, "200", command, "n_workers: 2").exit_code, 0);
  ASSERT_TRUE(wait_until([&] { return count_items(out_).ok > 5; }));
  const auto status = tutti({"status", out_.string(), "--json"});
  EXPECT_THAT(status.out, HasSubstr("\"state\": \"running\""));
  EXPECT_EQ(parse_json(status.out, "status")["async"]["workers"].size(), 2U);
  const auto second = map(out_, "200", command, "n_workers: 2");
  EXPECT_EQ(second.exit_code, 4);
  EXPECT_THAT(second.err, HasSubstr("in use by 2 asynchronous workers"));
  EXPECT_EQ(tutti({"cancel", out_.string()}).exit_code, 0);
  EXPECT_TRUE(wait_until([&] { return workers().empty(); }));
  EXPECT_THAT(tutti({"status", out_.string()}).out, HasSubstr("stopped"));
  const auto stopped = tutti({"status", out_.string(), "--json"});
  EXPECT_EQ(parse_json(stopped.out, "status")["async"]["exit_code"], 85);
  EXPECT_EQ(tutti({"wait", out_.string()}).exit_code, 85);
  const std::uint64_t before = count_items(out_).ok;
  EXPECT_GT(before, 5U);
  EXPECT_LT(before, 200U);
  // Asynchronous again, cancelled again, then synchronous to the end.
  ASSERT_EQ(map(out_, "200", command, "n_workers: 3").exit_code, 0);
  ASSERT_TRUE(wait_until([&] { return count_items(out_).ok > before + 5; }));
  EXPECT_EQ(tutti({"cancel", "--now", out_.string()}).exit_code, 0);
  const auto last = map(out_, "200", command, "n_workers: 4", false);
  EXPECT_EQ(last.exit_code, 0) << last.err;
  EXPECT_FALSE(fs::exists(async_folder(out_)));
  const std::string text = results(out_);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 200);
}

TEST_F(AsyncMap, AJournalThatIsTakenAwayUnderARunEndsItWithFourAndTheSameCommandMendsIt) {
  const std::string go = (folder_.path() / "go").string();
  const std::vector<std::string> command = {
      "sh", "-c",
      "[ {index} = 0 ] || until [ -e " + shell_quote(go) + " ]; do sleep 0.02; done; echo {index}"};
  ASSERT_EQ(map(out_, "3", command, "n_workers: 1").exit_code, 0);
  ASSERT_TRUE(wait_until([&] { return count_items(out_).ok == 1; }));
  for (const fs::path& file : journal_files(out_))
    if (file.stem().string().starts_with("async-")) fs::remove(file);
  const auto waited = tutti({"wait", out_.string()});
  EXPECT_EQ(waited.exit_code, 4) << waited.out << waited.err;
  EXPECT_THAT(tutti({"status", out_.string()}).out,
              HasSubstr("was removed while the run was going"));
  write_file_atomic(go, "");
  const auto again = map(out_, "3", command, "n_workers: 1", false);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(count_items(out_).ok, 3U);
}

// The items let the folder be renamed; while it is away nothing in it can be found.
TEST_F(AsyncMap, AFolderThatIsRenamedAndPutBackSaysWhyItsWorkersLeft) {
  ASSERT_EQ(map(out_, "100000", {"sh", "-c", "sleep 0.02; echo {}"}, "n_workers: 2").exit_code, 0);
  ASSERT_TRUE(wait_until([&] { return count_items(out_).ok > 5; }));
  const fs::path away = folder_.path() / "away";
  fs::rename(out_, away);
  ASSERT_TRUE(wait_until([&] { return workers().empty(); }));
  fs::rename(away, out_);
  const auto waited = tutti({"wait", out_.string()});
  EXPECT_EQ(waited.exit_code, 4) << waited.out << waited.err;
  EXPECT_THAT(waited.err, HasSubstr("was renamed to " + away.string()));
  const auto status = tutti({"status", out_.string()});
  EXPECT_THAT(status.out, HasSubstr("reason: " + out_.string() + " was renamed to"));
}

TEST_F(AsyncMap, AFailingItemStopsTheRunOrIsSkipped) {
  const std::vector<std::string> command = {"sh", "-c", "echo oops >&2; test {} != 7"};
  ASSERT_EQ(map(out_, "50", command, "n_workers: 2\non_error: skip").exit_code, 0);
  EXPECT_EQ(tutti({"wait", out_.string()}).exit_code, 7);
  EXPECT_THAT(read_file(out_ / "failed.jsonl"), HasSubstr("oops"));
  ASSERT_EQ(map(quiet_, "50", command, "n_workers: 1\non_error: skip", false).exit_code, 7);
  EXPECT_EQ(results(out_), results(quiet_));
  fs::remove_all(out_);
  ASSERT_EQ(map(out_, "50", command, "n_workers: 2\non_error: stop").exit_code, 0);
  EXPECT_EQ(tutti({"wait", out_.string()}).exit_code, 7);
  EXPECT_THAT(tutti({"status", out_.string()}).out, HasSubstr("item \"7\" failed"));
}

TEST_F(AsyncMap, AFailedItemIsNamedAsTheListHasIt) {
  write_file_atomic(folder_.path() / "items", "good\nutt \"b\"\n");
  ASSERT_EQ(map(out_, (folder_.path() / "items").string(), {"test", "{}", "=", "good"},
                "n_workers: 1\non_error: stop")
                .exit_code,
            0);
  EXPECT_EQ(tutti({"wait", out_.string()}).exit_code, 7);
  EXPECT_THAT(tutti({"status", out_.string()}).out, HasSubstr("item \"utt \\\"b\\\"\" failed"));
}

// Item 0 tells who runs it and waits; item 1 fails when it is told to.
TEST_F(AsyncMap, WaitDoesNotWaitForAStoppedWorkerOfARunThatAFailedItemHasEnded) {
  const fs::path worker = folder_.path() / "worker";
  const std::string path = shell_quote(worker.string());
  write_file_atomic(folder_.path() / "item.sh", "if [ $1 = 0 ]; then echo $PPID >" + path +
                                                    ".new; mv " + path + ".new " + path +
                                                    "; exec sleep 3600; fi\nuntil [ -e " + path +
                                                    ".stopped ]; do sleep 0.02; done\nexit 3\n");
  ASSERT_EQ(
      map(out_, "2", {"sh", (folder_.path() / "item.sh").string(), "{}"}, "n_workers: 2").exit_code,
      0);
  ASSERT_TRUE(wait_until([&] { return fs::exists(worker); }));
  const pid_t pid = std::stoi(read_file(worker));
  ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  write_file_atomic(worker.string() + ".stopped", "");
  const auto waited = tutti({"wait", out_.string()});
  ::kill(pid, SIGCONT);
  EXPECT_FALSE(waited.timed_out);
  EXPECT_EQ(waited.exit_code, 7) << waited.err;
  EXPECT_THAT(waited.out, HasSubstr("stopped, 0 of 2 items ok, 1 failed"));
  EXPECT_THAT(waited.err, HasSubstr("item \"1\" failed"));
  EXPECT_TRUE(fs::exists(out_ / "failed.jsonl"));
}

// A job that its scheduler has suspended looks the same: it may be woken, so it is waited for.
TEST_F(AsyncMap, WaitAndStatusSayThatAllWhoAreLeftStandStill) {
  const std::string path = (folder_.path() / "worker").string(), quoted = shell_quote(path);
  write_file_atomic(folder_.path() / "item.sh", "echo $PPID >" + quoted + ".new; mv " + quoted +
                                                    ".new " + quoted + "; until [ -e " + quoted +
                                                    ".go ]; do sleep 0.02; done; echo done\n");
  ASSERT_EQ(map(out_, "1", {"sh", (folder_.path() / "item.sh").string()}, "n_workers: 1").exit_code,
            0);
  ASSERT_TRUE(wait_until([&] { return fs::exists(path); }));
  const pid_t pid = std::stoi(read_file(path));
  ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  const std::string words = fmt::format("kill -CONT {} wakes worker 0", pid);
  const fs::path log = folder_.path() / "wait.log";
  write_file_atomic(log, "");
  Process waits =
      Process::start({.argv = {in_bin("tutti"), "wait", out_.string()}, .stdout_path = log});
  EXPECT_TRUE(wait_until([&] {
    return read_file(log).find(words + "; still waiting") != std::string::npos;
  })) << read_file(log);
  EXPECT_THAT(tutti({"status", out_.string()}).out, HasSubstr("nobody works: one worker is left"));
  write_file_atomic(path + ".go", "");
  ::kill(pid, SIGCONT);
  EXPECT_EQ(waits.wait().exit_code, 0) << read_file(log);
}

TEST_F(AsyncMap, AWorkerThatGotSigtermGivesUpAnItemThatTakesLong) {
  const std::string path = (folder_.path() / "worker").string(), quoted = shell_quote(path);
  write_file_atomic(folder_.path() / "item.sh",
                    "if [ -e " + quoted + " ]; then echo done; exit; fi\necho $PPID >" + quoted +
                        ".new; mv " + quoted + ".new " + quoted + "; exec sleep 3600\n");
  env_["TUTTI_WORKER_TERM_GRACE"] = "0.2";
  ASSERT_EQ(map(out_, "1", {"sh", (folder_.path() / "item.sh").string()}, "n_workers: 1").exit_code,
            0);
  ASSERT_TRUE(wait_until([&] { return fs::exists(path); }));
  ::kill(std::stoi(read_file(path)), SIGTERM);
  EXPECT_EQ(tutti({"wait", out_.string()}).exit_code, 85);
  EXPECT_THAT(tutti({"status", out_.string()}).out, HasSubstr("stopped, 0 of 1 items ok"));
  EXPECT_EQ(map(out_, "1", {"sh", (folder_.path() / "item.sh").string()}, "n_workers: 1", false)
                .exit_code,
            0);
}

TEST_F(AsyncMap, AnItemThatTakesTooLongFailsAndOthersGoOn) {
  ASSERT_EQ(map(out_, "20", {"sh", "-c", "test {} != 3 || sleep 3600; echo {}"},
                "n_workers: 2\non_error: skip\nitem_timeout: 1")
                .exit_code,
            0);
  EXPECT_EQ(tutti({"wait", out_.string()}).exit_code, 7);
  EXPECT_THAT(read_file(out_ / "failed.jsonl"), HasSubstr("took longer than item_timeout"));
  EXPECT_EQ(count_items(out_).ok, 19U);
}

TEST_F(AsyncMap, AnItemThatKillsItsWorkersIsFoundAndOthersGoOn) {
  // The item's shell kills its parent, the worker.
  ASSERT_EQ(map(out_, "40", {"sh", "-c", "test {} != 11 || kill -9 $PPID; echo {}"},
                "n_workers: 2\non_error: skip\nmax_retries: 2")
                .exit_code,
            0);
  EXPECT_EQ(tutti({"wait", out_.string()}).exit_code, 7);
  EXPECT_THAT(read_file(out_ / "failed.jsonl"), HasSubstr("killed 2 workers on its own"));
  EXPECT_EQ(count_items(out_).ok, 39U);
}

}  // namespace
}  // namespace tutti::parallel
