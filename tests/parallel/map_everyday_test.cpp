// `tutti map` as it is typed: items from anywhere, bytes of any kind, results to stdout or a folder,
// and what may happen to either.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "tests/parallel/items.h"
#include "tests/parallel/processes.h"
#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
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
const std::string kQuoted = shell_quote(kTutti);  // in a line of a shell

class Everyday : public ::testing::Test {
 protected:
  // A bash line; `tutti` is ours, the working folder the test's own.
  CommandResult sh(const std::string& line) const {
    return run_command({.argv = {"bash", "-c", "tutti() { " + kQuoted + " \"$@\"; }; " + line},
                        .env = {{"TMPDIR", temporary_.path().string()}},
                        .cwd = folder_.path(),
                        .timeout = std::chrono::seconds(100)});
  }
  std::string content(const std::string& name) const { return read_file(folder_.path() / name); }
  std::size_t num_lines(const std::string& name) const {
    const std::string text = content(name);
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  }
  static int processes_with(const std::string& word) {
    int count = 0;
    for (const pid_t pid : all_pids())
      if (pid != ::getpid() && proc_text(pid, "cmdline").find(word) != std::string::npos) ++count;
    return count;
  }
  bool nothing_left() const {
    return fs::is_empty(temporary_.path()) && fs::is_empty(folder_.path());
  }
  TempFolder folder_{"everyday"};
  TempFolder temporary_{"everyday-tmp"};
};

// Each item waits for all others to have begun, so none of them may be queued behind another.
TEST_F(Everyday, AsManyItemsAsWorkersRunAtOnce) {
  const auto r = sh(
      "mkdir begun; timeout 60 " + kQuoted +
      " map -j 4 ::: 0 1 2 3 -- "
      "'touch begun/{}; until [ -e begun/0 -a -e begun/1 -a -e begun/2 -a -e begun/3 ]; do sleep "
      "0.02; done; echo {}'");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, "0\n1\n2\n3\n");
}

TEST_F(Everyday, ItemsOnTheCommandLineOrFromAPipeGoToStdoutInOrderAndLeaveNothing) {
  const std::string want = "a\nb c\nd\n";
  for (const char* line :
       {"tutti map -j 2 ::: a 'b c' d -- echo {}", "tutti map -j 2 -- echo {} ::: a 'b c' d",
        "printf 'a\\nb c\\nd\\n' | tutti map -j 3 -- echo {}",
        "tutti map --items <(printf 'a\\nb c\\nd') -- echo {}",
        "printf 'a\\nb c\\nd\\n' | tutti map --items /dev/stdin -- 'echo {}'",
        "printf 'a\\0b c\\0d' | tutti map -0 -- 'echo \"{}\"'"}) {
    const auto r = sh(line);
    EXPECT_EQ(r.exit_code, 0) << line << r.err;
    EXPECT_EQ(r.out, want) << line;
    EXPECT_EQ(r.err, "") << line;
  }
  // The slowest comes first.
  EXPECT_EQ(sh("tutti map -j 3 ::: 0.3 0.1 0 -- 'sleep {}; echo {}'").out, "0.3\n0.1\n0\n");
  EXPECT_EQ(sh("tutti map --json ::: x -- echo y{}").out,
            "{\"index\":0,\"item\":\"x\",\"status\":\"ok\",\"result\":\"yx\"}\n");
  const auto none = sh("tutti map -- echo {} </dev/null");
  EXPECT_EQ(none.exit_code, 0);
  EXPECT_EQ(none.err, "no items: nothing to do\n");
  const auto talks = sh("tutti map --quiet -j 2 ::: a b -- 'echo {}; echo hm {} >&2'");
  EXPECT_EQ(talks.out, "a\nb\n");
  EXPECT_THAT(talks.err, HasSubstr("item 0 wrote to stderr:\nhm a\n"));
  EXPECT_THAT(talks.err, HasSubstr("item 1 wrote to stderr:\nhm b\n"));
  EXPECT_TRUE(nothing_left());
}

TEST_F(Everyday, FailuresOnStdoutAreToldAndLeaveNothing) {
  // What was begun meanwhile is not waited for.
  const auto stopped =
      sh("tutti map -j 1 ::: a b c -- 'test {} != c || sleep 3600; echo {}; test {} != b'");
  EXPECT_EQ(stopped.exit_code, 7);
  EXPECT_EQ(stopped.out, "a\n");
  EXPECT_THAT(stopped.err,
              HasSubstr("task error: item \"b\" failed: `test {} != c || sleep 3600; echo {}; test "
                        "{} != b`"));  // said once
  EXPECT_THAT(stopped.err, HasSubstr("mend it and run the same command again"));
  EXPECT_THAT(stopped.err, HasSubstr("parallel.on_error=skip"));
  const auto skipped =
      sh("tutti map -j 1 +parallel.on_error=skip ::: a b c -- 'echo {}; test {} != b'");
  EXPECT_EQ(skipped.exit_code, 7);
  EXPECT_EQ(skipped.out, "a\nc\n");
  EXPECT_THAT(skipped.err, HasSubstr("item \"b\" failed"));
  EXPECT_EQ(sh("tutti map --async ::: a -- echo {}").exit_code, 2);
  EXPECT_EQ(sh("tutti map --no-such-option ::: a -- echo {}").exit_code, 2);
  EXPECT_EQ(sh("tutti map ::: a").exit_code, 2);
  const auto nobody = sh("tutti map -j 0 ::: a -- echo {}");
  EXPECT_EQ(nobody.exit_code, 2);
  EXPECT_THAT(nobody.err, HasSubstr("--jobs: got 0, expected at least 1"));
  const auto unsafe = sh("tutti map ::: a -- 'echo $(({}+1))'");
  EXPECT_EQ(unsafe.exit_code, 2);
  EXPECT_THAT(unsafe.err, HasSubstr("arithmetic"));
  // The variable would be evaluated there too.
  EXPECT_THAT(unsafe.err, Not(HasSubstr("TUTTI_ITEM")));
  EXPECT_THAT(unsafe.err, HasSubstr("expr {} + 1"));
  EXPECT_EQ(sh("tutti map ::: 41 -- 'expr {} + 1'").out, "42\n");
  EXPECT_TRUE(nothing_left());
}

// Programs that read --json get the reasons with the failures, from map as from status and wait.
TEST_F(Everyday, AFailureComesWithItsReasonAndTheCommandAsItWasTyped) {
  const std::string skip = "tutti map --json --quiet -j 1 +parallel.on_error=skip ";
  const std::string items = "::: a b c -- 'test {} = a || { echo no {} >&2; exit 3; }'";
  const std::string why =
      "task error: `test {} = a || { echo no {} >&2; exit 3; }` failed with "
      "exit code 3: no ";
  const auto lines = split(sh(skip + items).out, '\n');
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(parse_json(lines[1], "line"),
            (Json{{"index", 1}, {"item", "b"}, {"status", "failed"}, {"reason", why + "b"}}));
  const Json failures = Json::array({{{"index", 1}, {"item", "b"}, {"reason", why + "b"}},
                                     {{"index", 2}, {"item", "c"}, {"reason", why + "c"}}});
  const Json summary = parse_json(sh(skip + "--output_dir out " + items).out, "map");
  EXPECT_EQ(summary["failed"], 2);
  EXPECT_EQ(summary["failures"], failures);
  EXPECT_EQ(parse_json(sh("tutti status --json out").out, "status")["failures"], failures);
  EXPECT_THAT(sh("tutti status out").out, HasSubstr("item \"b\" failed: " + why + "b\n"));
  // One that stops the run.
  const auto stopped = sh("tutti map --json --quiet -j 1 --output_dir stopped " + items);
  EXPECT_EQ(stopped.exit_code, 7);
  const Json story = parse_json(stopped.out, "map");
  EXPECT_EQ(story["ok"], 1);
  EXPECT_THAT(story["reason"].get<std::string>(), HasSubstr("item \"b\" failed: `test {} = a"));
  EXPECT_EQ(story["failures"][0], failures[0]);
  // Words that no shell reads have the item in them.
  EXPECT_THAT(sh("tutti map ::: 'no such' -- cat {}").err, HasSubstr("`cat 'no such'` failed"));
}

TEST_F(Everyday, TheStoryOfAFailedItemHasMoreThanTheEndOfItsStderr) {
  ASSERT_EQ(sh("tutti map --quiet -j 1 --output_dir out ::: a -- "
               "'echo first words >&2; seq 5000 >&2; exit 1'")
                .exit_code,
            7);
  const std::string story = content("out/failed.jsonl");
  EXPECT_THAT(story, HasSubstr("exit code 1: first words\\n1\\n2\\n"));
  EXPECT_THAT(story, HasSubstr("\\n5000"));
}

TEST_F(Everyday, BlankLinesAreNoItemsAndAreTold) {
  write_file_atomic(folder_.path() / "list", "a\n\nb\n\n");
  const auto r = sh("tutti map --items list -- 'echo {index} {}'");
  EXPECT_EQ(r.out, "0 a\n1 b\n");
  EXPECT_THAT(r.err, HasSubstr("list:2: a blank line is no item, nor are 1 more"));
  EXPECT_EQ(sh("tutti map --quiet --items list -- echo {}").err, "");
  EXPECT_THAT(sh("printf '\\n' | tutti map -- echo {}").err,
              HasSubstr("standard input:1: a blank line is no item\nno items: nothing to do\n"));
  // Where NUL separates them, or on the command line, an empty one is meant.
  EXPECT_EQ(sh("printf 'a\\0\\0b' | tutti map -0 -- printf '[%s]' {}").out, "[a]\n[]\n[b]\n");
  EXPECT_EQ(sh("tutti map ::: a '' -- printf '[%s]' {}").out, "[a]\n[]\n");
}

// Who gets results.jsonl of a part sees that it is one.
TEST_F(Everyday, GatherMarksWhatIsNotDoneYet) {
  const std::string run =
      "tutti map --quiet -j 1 --output_dir out ::: a b c -- "
      "'case {} in b) test -e go;; c) until [ -e go ]; do sleep 0.02; done;; esac && echo {}'";
  ASSERT_EQ(sh(run).exit_code, 7);
  const auto gathered = sh("tutti gather out");
  EXPECT_EQ(gathered.exit_code, 85);
  EXPECT_EQ(gathered.out, "out/results.jsonl: 1 ok, 1 failed, 1 missing\n");
  EXPECT_EQ(content("out/results.jsonl"),
            "{\"index\":0,\"item\":\"a\",\"status\":\"ok\",\"result\":\"a\"}\n"
            "{\"index\":1,\"item\":\"b\",\"status\":\"failed\"}\n"
            "{\"index\":2,\"item\":\"c\",\"status\":\"missing\"}\n");
  ASSERT_EQ(sh("touch go; " + run).exit_code, 0);
  EXPECT_THAT(content("out/results.jsonl"), Not(HasSubstr("missing")));
}

TEST_F(Everyday, AFolderThatWasRenamedUnderARunIsFoundAndGoesOnWhenItIsBack) {
  const std::string map =
      "tutti map --quiet -j 1 --items 3 --output_dir out -- "
      "'echo x >>ran; touch began; until [ -e go ]; do sleep 0.02; done; echo {}'";
  const auto r =
      sh(map + " & until [ -e began ]; do sleep 0.02; done; mv out away; touch go; wait $!");
  EXPECT_EQ(r.exit_code, 4);
  EXPECT_THAT(r.err, HasSubstr("out was renamed to " + (folder_.path() / "away").string()));
  EXPECT_THAT(r.err, HasSubstr("move it back and run the same command again"));
  const auto again = sh("mv away out; " + map);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(num_lines("out/results.jsonl"), 3U);
}

TEST_F(Everyday, TimesSayWhenEachItemRanAndWhere) {
  const std::string before = sh("date +%s.%N").out;
  ASSERT_EQ(sh("tutti map --quiet -j 1 --times t --output_dir out +parallel.on_error=skip "
               "::: 0.1 0 no -- sleep {}")
                .exit_code,
            7);
  ASSERT_EQ(sh("tutti map --quiet -j 1 --times t ::: 0 -- sleep {}").exit_code, 0);
  const auto lines = split(std::string(trim(content("t"))), '\n');
  ASSERT_EQ(lines.size(), 5U) << content("t");  // of both runs
  EXPECT_EQ(lines[0], "index\tworker\tstart\tseconds\tstatus");
  double end = std::stod(before);
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const auto fields = split(lines[i], '\t');
    ASSERT_EQ(fields.size(), 5U);
    EXPECT_EQ(fields[0], std::to_string((i - 1) % 3));
    EXPECT_EQ(fields[4], i == 3 ? "failed" : "ok");
    EXPECT_GE(std::stod(fields[2]), end - 0.001) << "one worker does one item at a time";
    end = std::stod(fields[2]) + std::stod(fields[3]);
  }
  EXPECT_GE(std::stod(split(lines[1], '\t')[3]), 0.1);
  EXPECT_EQ(sh("tutti map --async --times t --output_dir far ::: a -- echo {}").exit_code, 2);
  EXPECT_EQ(sh("tutti map --quiet --times no/t ::: a -- echo {}").exit_code, 4);
  EXPECT_EQ(sh("tutti map --quiet --times /dev/full ::: a -- echo {}").exit_code, 4);
}

TEST_F(Everyday, HelpShowsExamplesThatWork) {
  const auto help = sh("tutti map --help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("tutti map --items 100 -- 'echo {} | sha1sum'"));
  EXPECT_EQ(sh("tutti map --items 100 -- 'echo {} | sha1sum' | sort -u | wc -l").out, "100\n");
  EXPECT_EQ(sh("tutti worker --help").exit_code, 0);
}

TEST_F(Everyday, AnOptionAmongTheItemsIsRefused) {
  for (const char* line :
       {"tutti map ::: a b --output_dir zz -- echo {}", "tutti map ::: a b -j 2 -- echo {}",
        "tutti map ::: a ::: b -- echo {}", "tutti map -- echo {} ::: a --output_dir=zz"}) {
    const auto r = sh(line);
    EXPECT_EQ(r.exit_code, 2) << line;
    EXPECT_THAT(r.err, HasSubstr("stands after :::, where all words are items")) << line;
    EXPECT_EQ(r.out, "") << line;
  }
  EXPECT_EQ(sh("tutti map ::: -x --other -- 'echo x{}'").out, "x-x\nx--other\n");
  const auto gnu = sh("tutti map --timeout 3 ::: a -- echo {}");
  EXPECT_EQ(gnu.exit_code, 2);
  EXPECT_THAT(gnu.err, HasSubstr("it is called parallel.item_timeout=SECONDS here"));
}

TEST_F(Everyday, NamesOfGnuParallelForTheItemAreAnswered) {
  for (const auto& [line, ours] :
       {std::pair("tutti map ::: a b -- echo {1}", "write {};"),
        std::pair("tutti map ::: a b -- 'cp {} \"{1.}\".x {1/.}'", "write {/.}"),
        std::pair("tutti map ::: a b -- 'echo {} {#}'", "write {index} (it counts from 0);"),
        std::pair("tutti map ::: a b -- echo {} {%}", "there are no slots"),
        std::pair("tutti map ::: a b -- 'echo {} \"{%}\"'", "write {index}, the item's number"),
        std::pair("tutti map ::: a b -- 'CUDA_VISIBLE_DEVICES={%} echo {}'", "local_gpu"),
        std::pair("tutti map ::: a b -- 'echo {} >out_{#}.txt'", "write {index}")}) {
    const auto r = sh(line);
    EXPECT_EQ(r.exit_code, 2) << line << r.out;
    EXPECT_THAT(r.err, HasSubstr("is GNU parallel's")) << line;
    EXPECT_THAT(r.err, HasSubstr(ours)) << line;
  }
  EXPECT_EQ(sh("tutti map ::: aab -- 'echo {} | sed -E s/a{2}/x/'").out, "xb\n");
  EXPECT_EQ(sh("tutti map ::: a -- 'set -- x y; echo {} ${#}'").out, "a 2\n");
}

// The list is a pipe: it is being read when the signal comes, and nothing runs yet.
TEST_F(Everyday, ASignalBeforeTheFirstItemEndsWithItsCodeAndAWord) {
  const auto r = sh("mkfifo items; " + kQuoted +
                    " map --items items -- echo {} & exec 3>items; kill -TERM $!; wait $!; "
                    "echo ended with $?");
  EXPECT_EQ(r.out, "ended with 85\n");
  EXPECT_THAT(r.err, HasSubstr("stopped by SIGTERM"));
}

TEST_F(Everyday, ThreadsThatTheUserSetStandUnlessTheConfigSaysOtherwise) {
  const std::string item = " -- 'echo $OMP_NUM_THREADS $OPENBLAS_NUM_THREADS $MKL_NUM_THREADS {}'";
  const std::string set = "OMP_NUM_THREADS=7 OPENBLAS_NUM_THREADS=5 ";
  EXPECT_EQ(sh(set + "tutti map -j 1 ::: a" + item).out, "7 5 7 a\n");
  EXPECT_EQ(sh(set + "tutti map -j 1 +parallel.options.threads_per_worker=3 ::: a" + item).out,
            "3 3 3 a\n");
}

TEST_F(Everyday, BytesThatAreNoTextSurviveOrAreRefused) {
  ASSERT_EQ(
      sh("printf 'a\\377b\\n' | tutti map --quiet --output_dir out -- 'printf %s {}'").exit_code,
      0);
  EXPECT_EQ(content("out/results.jsonl"),
            "{\"index\":0,\"item\":{\"base64\":\"Yf9i\"},\"status\":\"ok\",\"result\":{\"base64\":"
            "\"Yf9i\"}}\n");
  const std::string before = content("out/results.jsonl");
  ASSERT_EQ(sh("tutti gather out").exit_code, 0);
  EXPECT_EQ(content("out/results.jsonl"), before);
  EXPECT_EQ(sh("printf 'a\\377b\\n' | tutti map -- printf %s {}").out,
            "a\xff"
            "b\n");
  EXPECT_EQ(sh("printf 'a\\nb\\0' | tutti map -0 -- printf %s {}").out, "a\nb\n");
  EXPECT_EQ(sh("tutti map --items 1 -- 'printf \"a\\0b\"' | od -An -tx1 | tr -d ' \\n'").out,
            "6100620a");
  const auto nul = sh("printf 'x\\na\\0b\\n' | tutti map -- printf %s {}");
  EXPECT_EQ(nul.exit_code, 3);
  EXPECT_THAT(nul.err, HasSubstr("standard input:2: the item has a NUL byte"));
  ASSERT_EQ(
      sh("printf 'a\\377b\\n' | tutti map --quiet --output_dir bad +parallel.on_error=skip -- "
         "'echo {} >&2; exit 3'")
          .exit_code,
      7);
  const auto status = sh("tutti status bad --json");
  EXPECT_EQ(status.exit_code, 0) << status.err;
  const Json failure = parse_json(status.out, "stdout").at("failures").at(0);
  EXPECT_EQ(failure["item"]["base64"], "Yf9i");
  EXPECT_THAT(failure["reason"].get<std::string>(), HasSubstr("a\xef\xbf\xbd"
                                                              "b"));
}

TEST_F(Everyday, AnotherCommandOrListIsRefusedAndForceStartsOver) {
  ASSERT_EQ(sh("tutti map --quiet --output_dir out ::: a b -- echo {}").exit_code, 0);
  for (const char* other : {"::: a c -- echo {}", "::: a b -- echo x{}"}) {
    const auto r = sh("tutti map --quiet --output_dir out " + std::string(other));
    EXPECT_EQ(r.exit_code, 2) << other;
    EXPECT_THAT(r.err, HasSubstr("--force")) << other;
  }
  EXPECT_THAT(sh("tutti map --quiet --output_dir out ::: a b -- echo {} x").err,
              HasSubstr(R"(command: was ["echo","{}"], is ["echo","{}","x"])"));
  ASSERT_EQ(sh("tutti map --force --quiet --output_dir out ::: a c -- echo {}").exit_code, 0);
  EXPECT_THAT(content("out/results.jsonl"), HasSubstr("\"c\""));
}

TEST_F(Everyday, AnotherListIsRefusedWithWhatIsDifferent) {
  ASSERT_EQ(sh("tutti map --quiet --output_dir out ::: a b c -- echo {}").exit_code, 0);
  for (const auto& [other, words] :
       {std::pair("::: a x c d",
                  "it had 3 items, now there are 4; the first that differs is number "
                  "1: it was \"b\", now it is \"x\""),
        std::pair("::: a b", "it had 3 items, now there are 2; the first 2 are the same"),
        std::pair("--items 3", "it had 3 items, now there are 3 numbers in place of its list")}) {
    const auto r = sh("tutti map --quiet --output_dir out " + std::string(other) + " -- echo {}");
    EXPECT_EQ(r.exit_code, 2) << other;
    EXPECT_THAT(r.err, HasSubstr(words)) << other;
    EXPECT_THAT(r.err, HasSubstr("--force")) << other;
  }
  EXPECT_THAT(sh("tutti map --quiet --append --output_dir out ::: a x -- echo {}").err,
              HasSubstr("the first that differs is number 1: it was \"b\", now it is \"x\""));
}

// The driver cannot remove its folder any more; its workers' keepers do.
TEST_F(Everyday, AKilledRunWithoutAnOutputFolderLeavesNothingInTmpdir) {
  const auto temporary = folder_.path() / "tmp";
  make_folders(temporary);
  Process driver = Process::start(
      {.argv = {in_bin("tutti"), "map", "-j", "2", "--items", "2", "--", "sh", "-c",
                ": >\"$BEGUN\"{}; exec sleep 1000"},
       .env = {{"TMPDIR", temporary.string()}, {"BEGUN", (folder_.path() / "begun").string()}},
       .stdout_path = folder_.path() / "log"});
  ASSERT_TRUE(trial::wait_until([&] {
    return std::filesystem::exists(folder_.path() / "begun0") &&
           std::filesystem::exists(folder_.path() / "begun1");
  }));
  EXPECT_FALSE(std::filesystem::is_empty(temporary));
  ::kill(driver.pid(), SIGKILL);
  EXPECT_TRUE(trial::wait_until([&] { return std::filesystem::is_empty(temporary); }))
      << sh("find tmp").out;
  driver.wait();
}

// An item may start runs of its own: what they keep is not the outer run's.
TEST_F(Everyday, AKilledRunWithoutAnOutputFolderSparesThoseOfItsItems) {
  const auto inner = folder_.path() / "inner";
  const auto item = folder_.path() / "item.sh";
  write_file_atomic(item, "exec " + kQuoted + " map --quiet -j 1 --output_dir '" + inner.string() +
                              "' --items 2 -- 'echo {}; [ {} = 0 ] || exec sleep 1000'\n");
  Process driver = Process::start(
      {.argv = {kTutti, "map", "-j", "1", "--items", "1", "--", "sh", item.string(), "{}"},
       .env = {{"TMPDIR", temporary_.path().string()}},
       .stdout_path = folder_.path() / "log"});
  ASSERT_TRUE(wait_until([&] {
    return fs::exists(inner / "manifest.json") && count_items(inner).ok == 1;
  })) << content("log");
  ::kill(driver.pid(), SIGKILL);
  EXPECT_TRUE(wait_until([&] { return fs::is_empty(temporary_.path()); }));
  EXPECT_TRUE(wait_until([&] { return processes_with(inner.string()) == 0; }));
  EXPECT_EQ(count_items(inner).ok, 1U);
  driver.wait();
}

TEST_F(Everyday, StatusSaysThatAFullDiskEndedTheRun) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounting a small disk needs root";
  make_folders(folder_.path() / "disk");
  write_file_atomic(folder_.path() / "item.sh", "head -c 100000 /dev/zero | tr '\\0' x\n");
  write_file_atomic(folder_.path() / "walk.sh",
                    "mount -t tmpfs -o size=1m none disk || exit 99\n" + kQuoted +
                        " map --quiet -j 1 --items 100 --output_dir disk/out -- sh item.sh {}\n"
                        "echo map $?\n" +
                        kQuoted + " status disk/out\n" + kQuoted +
                        " wait disk/out\necho wait $?\n");
  // Not in a chroot whose root is no mount.
  const auto r = sh("unshare --mount true || exit 99; exec unshare --mount sh walk.sh");
  if (r.exit_code == 99) GTEST_SKIP() << "no small disk can be mounted here";
  for (const char* words :
       {"map 4\n", "stopped, ", "reason: ", "No space left on device", "wait 4\n"})
    EXPECT_THAT(r.out, HasSubstr(words)) << r.err;
}

TEST_F(Everyday, AppendKeepsWhatIsDoneAndRunsTheRest) {
  const std::string command = " -- 'echo {} >>ran; echo {}'";
  ASSERT_EQ(sh("tutti map --quiet -j 1 --output_dir out ::: a b" + command).exit_code, 0);
  const auto refused = sh("tutti map --quiet --output_dir out ::: a b c" + command);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("the first 2 of these 3 items"));
  EXPECT_THAT(refused.err, HasSubstr("--append"));
  for (const char* other : {"::: a x c", "::: a", "::: b a c"})
    EXPECT_EQ(
        sh("tutti map --quiet --append --output_dir out " + std::string(other) + command).exit_code,
        2)
        << other;
  const auto longer = sh("tutti map --quiet -j 1 --append --output_dir out ::: a b c d" + command);
  EXPECT_EQ(longer.exit_code, 0) << longer.err;
  EXPECT_EQ(content("ran"), "a\nb\nc\nd\n");
  EXPECT_EQ(num_lines("out/results.jsonl"), 4U);
  // From now on it is the run of the longer list, with or without the word.
  for (const char* word : {"", "--append "})
    EXPECT_EQ(
        sh("tutti map --quiet --output_dir out " + std::string(word) + "::: a b c d" + command)
            .exit_code,
        0);
  EXPECT_EQ(num_lines("ran"), 4U);
  // What asynchronous workers have done is kept too, and numbers are a list.
  ASSERT_EQ(
      sh("tutti map --quiet -j 1 --async --output_dir far --items 2" + command + "; tutti wait far")
          .exit_code,
      0);
  EXPECT_EQ(sh("tutti map --quiet -j 1 --append --output_dir far --items 3" + command).exit_code,
            0);
  EXPECT_EQ(num_lines("far/results.jsonl"), 3U);
  EXPECT_EQ(num_lines("ran"), 7U);
  EXPECT_EQ(sh("tutti map --append ::: a" + command).exit_code, 2);
}

TEST_F(Everyday, AppendWithTheNewItemsAloneSaysHowToGiveThemAll) {
  ASSERT_EQ(sh("tutti map --quiet --output_dir out ::: a b -- echo {}").exit_code, 0);
  const auto r = sh("tutti map --quiet --append --output_dir out ::: c -- echo {}");
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_THAT(r.err, HasSubstr("the 1 items given do not begin with the 2 of out"));
  EXPECT_THAT(r.err, HasSubstr("cat old.txt new.txt > all.txt"));
  EXPECT_THAT(r.err, Not(HasSubstr("--force")));
  EXPECT_EQ(num_lines("out/results.jsonl"), 2u);
  // Another command is told as ever.
  EXPECT_THAT(sh("tutti map --quiet --append --output_dir out ::: c -- echo x{}").err,
              HasSubstr("command"));
}

TEST_F(Everyday, SeveralConfigFilesAreMergedAndOverridesMayFollowThem) {
  write_file_atomic(folder_.path() / "a.yaml", "parallel: {env: slurm, n_workers: 2}\n");
  write_file_atomic(folder_.path() / "b.yaml", "parallel: {env: local}\n");
  for (const char* line : {"tutti map --config a.yaml b.yaml ::: x -- echo {}",
                           "tutti map --config a.yaml --config b.yaml ::: x -- echo {}",
                           "tutti map --config a.yaml parallel.env=local ::: x -- echo {}"})
    EXPECT_EQ(sh(line).out, "x\n") << line << sh(line).err;
  write_file_atomic(folder_.path() / "b.yaml",
                    "parallel: {n_workers: 1, options: {cores: 1, memory: 1GB}}\n");
  const auto script =
      sh("tutti parallel script --config a.yaml b.yaml +parallel.options.queue=night");
  EXPECT_EQ(script.exit_code, 0) << script.err;
  EXPECT_THAT(script.out, HasSubstr("# submission 1 of 1"));
  EXPECT_THAT(script.out, HasSubstr("night"));
  EXPECT_EQ(sh("tutti map --config a.yaml no.yaml ::: x -- echo {}").exit_code, 2);
}

TEST_F(Everyday, ACommandWithoutDashesOrWithoutAPlaceIsPointedOut) {
  write_file_atomic(folder_.path() / "list.txt", "a\n");
  for (const char* line : {"tutti map --items list.txt wc -c {}",
                           "tutti map --items list.txt wc {}", "tutti map --items list.txt"}) {
    const auto r = sh(line);
    EXPECT_EQ(r.exit_code, 2) << line;
    EXPECT_THAT(r.err, HasSubstr("put the command after --")) << line;
  }
  EXPECT_THAT(sh("tutti map --itms list.txt").err, HasSubstr("did you mean '--items'?"));
  const std::string warning = "the command has no {}: every item runs the same";
  EXPECT_THAT(sh("tutti map ::: a b -- echo x").err, HasSubstr(warning));
  EXPECT_EQ(sh("tutti map ::: a b -- echo x").out, "x\nx\n");
  for (const char* line :
       {"tutti map --quiet ::: a -- echo x", "tutti map ::: a -- echo {index}",
        "tutti map ::: a -- 'echo {.}'", "tutti map ::: a -- printenv TUTTI_ITEM"})
    EXPECT_EQ(sh(line).err, "") << line;
}

TEST_F(Everyday, StatusNeverTellsThatWorkersDidNothingBesideItemsThatAreDone) {
  Process driver = Process::start(
      {.argv = {kTutti, "map", "-j", "1", "--quiet", "--output_dir", "out", ":::", "a", "b", "--",
                "until [ -e out/status.json ]; do sleep 0.02; done; "
                "test {} = a || until [ -e go ]; do sleep 0.02; done"},
       .cwd = folder_.path()});
  CommandResult status;
  EXPECT_TRUE(wait_until([&] {
    status = sh("tutti status out");
    return status.out.find("1 of 2 items ok") != std::string::npos;
  })) << status.out
      << status.err;
  EXPECT_THAT(status.out, Not(HasSubstr("  0 items")));
  EXPECT_THAT(status.out, Not(HasSubstr("rate 0/s")));
  EXPECT_TRUE(wait_until([&] {
    status = sh("tutti status out");
    return status.out.find("  1 items  busy") != std::string::npos;
  })) << status.out;
  EXPECT_THAT(status.out, HasSubstr(" ago)"));
  write_file_atomic(folder_.path() / "go", "");
  EXPECT_EQ(driver.wait().exit_code, 0);
}

TEST_F(Everyday, ASecondSignalEndsADrainAtOnce) {
  const auto r = sh(kQuoted +
                    " map -j 1 --output_dir out ::: a b -- 'touch began; sleep 1000' 2>said & "
                    "until [ -e began ]; do sleep 0.02; done; kill -TERM $!; "
                    "until grep -q stopping said; do sleep 0.02; done; kill -TERM $!; wait $!");
  EXPECT_EQ(r.exit_code, 85) << content("said");
}

TEST_F(Everyday, WaitNamesTheItemsThatFailed) {
  ASSERT_EQ(sh("tutti map --quiet +parallel.on_error=skip --output_dir out ::: a b c -- "
               "'test {} = a || { echo broken {} >&2; exit 3; }'")
                .exit_code,
            7);
  const auto waited = sh("tutti wait out");
  EXPECT_EQ(waited.exit_code, 7);
  EXPECT_EQ(waited.out, "out: done, 1 of 3 items ok, 2 failed\n");
  EXPECT_THAT(waited.err, HasSubstr("item \"b\" failed: "));
  EXPECT_THAT(waited.err, HasSubstr("item \"c\" failed: "));
  EXPECT_THAT(waited.err, HasSubstr("reasons are in out/failed.jsonl"));
  EXPECT_EQ(sh("tutti wait --quiet out").err, "");
}

TEST_F(Everyday, AShellLineForLaunchAndAForeignQsubAreToldApart) {
  const auto launch = sh("tutti launch --nproc_per_node 1 -- 'echo hi'");
  EXPECT_EQ(launch.exit_code, 2);
  EXPECT_THAT(launch.err, HasSubstr("-- sh -c 'echo hi'"));
  const auto doctor =
      sh("mkdir bin; for p in qsub qstat qconf; do printf '#!/bin/sh\necho all.q\n' "
         ">bin/$p; chmod 755 bin/$p; done; PATH=$PWD/bin:/usr/bin:/bin tutti doctor");
  EXPECT_THAT(doctor.out, HasSubstr("`qsub` here is Grid Engine's: use env: sge"));
}

TEST_F(Everyday, FilesOfSomebodyElseAreNeitherReplacedNorRemoved) {
  for (const char* name : {"results.jsonl", "failed.jsonl", "large/corpus.bin", "journal/notes.txt",
                           "manifest.json", "status.json"}) {
    SCOPED_TRACE(name);
    const fs::path file = folder_.path() / "mine" / name;
    fs::create_directories(file.parent_path());
    write_file_atomic(file, "{\"mine\": 1}\n");
    for (const char* how : {"", "--force ", "parallel.resume=false ", "--async "}) {
      const auto r = sh("tutti map --items 3 --output_dir mine " + std::string(how) + "-- echo {}");
      EXPECT_EQ(r.exit_code, 2) << how << r.err;
      EXPECT_THAT(r.err, HasSubstr("mine/" + fs::path(name).begin()->string())) << how;
      EXPECT_THAT(r.err, HasSubstr("fix: use another folder")) << how;
    }
    EXPECT_EQ(read_file(file), "{\"mine\": 1}\n");
    EXPECT_FALSE(fs::exists(folder_.path() / "mine/.tutti"));
    fs::remove_all(folder_.path() / "mine");
  }
  // Other files are in nobody's way, and starting over leaves what we did not write.
  const std::string big = "-- 'head -c 400000 /dev/zero | tr \"\\0\" x'";
  ASSERT_EQ(
      sh("mkdir mine; echo x >mine/notes; tutti map --quiet --items 2 --output_dir mine " + big)
          .exit_code,
      0);
  ASSERT_EQ(sh("test $(ls mine/large | wc -l) = 2").exit_code, 0);
  ASSERT_EQ(sh("echo 1 >mine/large/corpus.bin; echo 2 >mine/journal/notes.txt; tutti map --quiet "
               "--force --items 3 --output_dir mine -- echo {}")
                .exit_code,
            0);
  EXPECT_EQ(sh("ls mine/large; cat mine/notes mine/large/corpus.bin mine/journal/notes.txt").out,
            "corpus.bin\nx\n1\n2\n");
  EXPECT_EQ(sh("ls mine/journal/*.journal | wc -l").out, "1\n");
}

TEST_F(Everyday, ABrokenManifestIsToldAndForceStartsOver) {
  const std::string run = "tutti map --quiet --items 3 --output_dir out ";
  ASSERT_EQ(sh(run + "-- echo {}").exit_code, 0);
  for (const char* broken : {"", "{\"version\":"}) {
    write_file_atomic(folder_.path() / "out/manifest.json", broken);
    const auto refused = sh(run + "-- echo {}");
    EXPECT_EQ(refused.exit_code, 3) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("out/manifest.json"));
    EXPECT_THAT(refused.err, HasSubstr("fix: use another folder, or run with --force"));
    const auto forced = sh(run + "--force -- echo {}");
    EXPECT_EQ(forced.exit_code, 0) << forced.err;
    EXPECT_EQ(num_lines("out/results.jsonl"), 3U);
  }
}

TEST_F(Everyday, OnlyTheNewlineEndsAnItem) {
  for (const char* items : {"printf 'a\\r\\n b \\n' |", "printf 'a\\r\\n b \\n' >list;"}) {
    const std::string from = std::string(items).ends_with(";") ? " --items list" : "";
    EXPECT_EQ(sh(items + (" tutti map" + from) + " -- printf '[%s]' {}").out, "[a\r]\n[ b ]\n");
  }
}

TEST_F(Everyday, AnInterruptedRunWithoutAFolderDoesNotPromiseToGoOn) {
  const auto r = sh("set -m; " + kQuoted +
                    " map -j 1 ::: a b -- 'touch began; sleep 100' 2>said & "
                    "until [ -e began ]; do sleep 0.02; done; "
                    "kill -INT $!; sleep 0.5; kill -INT $!; wait $!");
  EXPECT_EQ(r.exit_code, 130) << content("said");
  EXPECT_THAT(content("said"), HasSubstr("the same command begins anew"));
  EXPECT_THAT(content("said"), Not(HasSubstr("to continue")));
}

// A script's background job: the shell has it ignore Ctrl-C, which is for the script.
TEST_F(Everyday, ARunThatWasStartedToIgnoreCtrlCGoesOn) {
  const auto r = sh("trap '' INT; " + kQuoted +
                    " map -j 1 ::: a b -- 'touch began; until [ -e heard ]; do sleep 0.02; done; "
                    "echo {}' 2>said & until [ -e began ]; do sleep 0.02; done; "
                    "kill -INT $!; touch heard; wait $!");
  EXPECT_EQ(r.exit_code, 0) << content("said");
  EXPECT_EQ(r.out, "a\nb\n");
}

TEST_F(Everyday, AFlippedBitIsToldWithItsPlaceAndCostsOneItem) {
  const std::string run =
      "tutti map --quiet --items 50 --output_dir out -- 'echo x >>ran; echo v{}'";
  ASSERT_EQ(sh(run).exit_code, 0);
  const std::string results = content("out/results.jsonl");
  fs::path journal;
  for (const fs::path& file : journal_files(folder_.path() / "out"))
    if (journal.empty() || fs::file_size(file) > fs::file_size(journal)) journal = file;
  std::string bytes = read_file(journal);
  bytes[bytes.size() / 5] ^= 1;
  write_file_atomic(journal, bytes);
  const auto gathered = sh("tutti gather out");
  EXPECT_EQ(gathered.exit_code, 0) << gathered.err;
  EXPECT_EQ(gathered.out, "out/results.jsonl: 50 ok, 0 failed, 0 missing\n");  // as the file has it
  EXPECT_THAT(gathered.err, HasSubstr(".journal: damaged at byte "));
  EXPECT_EQ(content("out/results.jsonl"), results);  // never replaced by less
  const auto again = sh(run);
  EXPECT_EQ(again.exit_code, 0);
  EXPECT_THAT(again.err, HasSubstr("damaged at byte "));
  EXPECT_EQ(content("out/results.jsonl"), results);
  EXPECT_EQ(num_lines("ran"), 51U);
}

TEST_F(Everyday, AnEmptyNameOfTheOutputFolderIsRefused) {
  const auto r = sh("tutti map --items 2 --output_dir \"$NOT_SET\" -- 'echo x >>ran'");
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_THAT(r.err, HasSubstr("--output_dir: got an empty name"));
  EXPECT_FALSE(fs::exists(folder_.path() / "ran"));
}

TEST_F(Everyday, AMemoryLimitWithoutAUnitIsRefused) {
  for (const char* limit : {"4", "1.5"}) {
    const auto r = sh(std::string("tutti map --items 1 parallel.options.memory_limit=") + limit +
                      " -- 'echo x >>ran'");
    EXPECT_EQ(r.exit_code, 2) << r.err;
    EXPECT_THAT(r.err, HasSubstr(std::string("memory_limit: ") + limit + "GB"));
  }
  EXPECT_FALSE(fs::exists(folder_.path() / "ran"));
}

TEST_F(Everyday, ALargeResultThatIsLostOrDamagedIsAFailureAndRunsAgain) {
  const std::string run =
      "tutti map --quiet --items 3 --output_dir out -- 'head -c 300000 /dev/zero | tr \"\\0\" x'";
  ASSERT_EQ(sh(run).exit_code, 0);
  const std::string results = content("out/results.jsonl");
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder_.path() / "out/large"))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  ASSERT_EQ(files.size(), 3U);
  fs::remove(files[0]);
  std::string bytes = read_file(files[2]);
  bytes[1000] = 'y';
  write_file_atomic(files[2], bytes);
  const auto kept = sh("tutti gather out");
  EXPECT_EQ(kept.exit_code, 0) << kept.err;
  EXPECT_EQ(kept.out, "out/results.jsonl: 3 ok, 0 failed, 0 missing\n");
  EXPECT_THAT(kept.err, HasSubstr("it is left as it is"));
  EXPECT_EQ(content("out/results.jsonl"), results);  // has the texts whole
  fs::remove(folder_.path() / "out/results.jsonl");
  EXPECT_EQ(sh("tutti gather out").exit_code, 7);
  EXPECT_THAT(content("out/failed.jsonl"), HasSubstr("is lost"));
  EXPECT_THAT(content("out/failed.jsonl"), HasSubstr("checksum"));
  for (const auto& line : split(std::string(trim(content("out/results.jsonl"))), '\n'))
    EXPECT_NO_THROW(parse_json(line, "results.jsonl"));
  ASSERT_EQ(sh(run).exit_code, 0);
  EXPECT_EQ(content("out/results.jsonl"), results);
}

TEST_F(Everyday, WhatIsTakenAwayUnderARunIsNamedAndNeverDone) {
  for (const char* evil :
       {"rm -rf out/journal", "rm out/journal/driver-*", "mv out away", "remove out; mkdir out",
        "cp -a out copy; remove out; mv copy out", "mv out/journal gone; mkdir out/journal",
        "cp out/journal/driver-* copy; f=$(ls out/journal/driver-*); rm $f; mv copy $f"}) {
    const std::string map =
        "tutti map --quiet -j 1 --items 3 --output_dir out -- "
        "'touch began; until [ -e go ]; do sleep 0.02; done; echo {}'";
    const auto r =
        // The driver may write status.json while rm is at work.
        sh("remove() { until rm -rf $1 2>/dev/null; do :; done; }; "
           "rm -rf out away gone copy began go; " +
           map + " & until [ -e began ]; do sleep 0.02; done; " + evil + "; touch go; wait $!");
    EXPECT_EQ(r.exit_code, 4) << evil << "\n" << r.err;
    EXPECT_THAT(r.err, HasSubstr((folder_.path() / "out").string())) << evil;
    EXPECT_THAT(r.err, ::testing::ContainsRegex("removed|renamed|replaced")) << evil;
    const auto again = sh(map);
    EXPECT_EQ(again.exit_code, 0) << evil << "\n" << again.err;
    EXPECT_EQ(num_lines("out/results.jsonl"), 3U) << evil;
  }
}

TEST_F(Everyday, TheReaderOfTheOutputMayLeave) {
  int fds[2];
  ASSERT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  Command command{.argv = {kTutti, "map", "--items", "30", "--output_dir", "out", "--", "echo {}"}};
  command.cwd = folder_.path();
  command.stdout_fd = fds[1];
  command.stderr_fd = fds[1];
  ::close(fds[0]);
  Process driver = Process::start(command);
  ::close(fds[1]);
  EXPECT_EQ(driver.wait().exit_code, 0);
  EXPECT_EQ(num_lines("out/results.jsonl"), 30U);
}

TEST_F(Everyday, AClosedTerminalDoesNotEndARun) {
  Command command{.argv = {kTutti, "map", "--quiet", "--items", "4", "--output_dir", "out", "--",
                           "while ! test -e go; do sleep 0.05; done; echo {}"}};
  command.cwd = folder_.path();
  Process driver = Process::start(command);
  ASSERT_TRUE(wait_until([&] { return fs::exists(folder_.path() / "out/.tutti/connect.json"); }));
  ::kill(driver.pid(), SIGHUP);
  write_file_atomic(folder_.path() / "go", "");
  EXPECT_EQ(driver.wait().exit_code, 0);
  EXPECT_EQ(num_lines("out/results.jsonl"), 4U);
}

TEST_F(Everyday, ProcessesInASessionOfTheirOwnEndWithTheirItem) {
  const std::string mark = "3598." + std::to_string(::getpid());
  const std::string count = "$(ps -eo args | grep -c \"^sleep " + mark + "\")";
  const auto r = sh("tutti map -j 1 ::: a b -- 'setsid sleep " + mark +
                    " >/dev/null 2>&1 & sleep " + mark + " >/dev/null 2>&1 & while test " + count +
                    " -lt 2; do sleep 0.02; done; echo {} " + count + "'");
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, "a 2\nb 2\n");  // those of a were gone when b began
  EXPECT_TRUE(wait_until([&] { return processes_with(mark) == 0; }));
}

// A worker that no group holds together, as in a batch job, is killed: all that it started goes.
TEST_F(Everyday, ProcessesInASessionOfTheirOwnEndWithAKilledWorker) {
  const std::string mark = "3597." + std::to_string(::getpid());
  Command command{.argv = {kTutti, "map", "-j", "1", ":::", "a", "--",
                           "echo $PPID >worker; setsid sleep " + mark + " & sleep " + mark}};
  command.cwd = folder_.path();
  command.stdout_path = folder_.path() / "log";
  Process driver = Process::start(command);
  ASSERT_TRUE(wait_until([&] { return processes_with(mark) >= 4; }));  // driver, shell, two sleeps
  const pid_t worker = std::stoi(content("worker"));
  ::kill(driver.pid(), SIGKILL);
  ::kill(worker, SIGKILL);
  driver.wait();
  EXPECT_TRUE(wait_until([&] { return processes_with(mark) == 0; })) << processes_with(mark);
}

// Without its environment a process carries no mark of its worker; the cgroup holds it all the same.
TEST_F(Everyday, ProcessesWithoutAnEnvironmentEndWithAKilledWorkerWhereThereAreCgroups) {
  const std::string mark = "3596." + std::to_string(::getpid());
  write_file_atomic(folder_.path() / "hide.sh",
                    "echo $PPID >worker; cat /proc/$PPID/cgroup >cgroup\n"
                    "env -i PATH=\"$PATH\" setsid sleep " +
                        mark + " & wait\n");
  Command command{.argv = {kTutti, "map", "-j", "1", ":::", "a", "--", "sh", "hide.sh"}};
  command.cwd = folder_.path();
  command.stdout_path = folder_.path() / "log";
  Process driver = Process::start(command);
  ASSERT_TRUE(wait_until([&] { return processes_with(mark) == 1; }));
  ::kill(driver.pid(), SIGKILL);
  ::kill(std::stoi(content("worker")), SIGKILL);
  driver.wait();
  if (content("cgroup").find("/tutti-worker-") != std::string::npos) {
    EXPECT_TRUE(wait_until([&] { return processes_with(mark) == 0; }));
    return;
  }
  for (const pid_t pid : all_pids())
    if (proc_text(pid, "cmdline").find(mark) != std::string::npos) ::kill(pid, SIGKILL);
  GTEST_SKIP() << "no cgroup of version 2 that we may write";
}

TEST_F(Everyday, WorkersShareProcessorsWithoutSpinning) {
  EXPECT_EQ(sh("unset OMP_WAIT_POLICY; tutti map ::: a -- 'echo $OMP_WAIT_POLICY'").out,
            "passive\n");
  EXPECT_EQ(sh("OMP_WAIT_POLICY=active tutti map ::: a -- 'echo $OMP_WAIT_POLICY'").out,
            "active\n");
}

TEST_F(Everyday, WorkersMayBeThreadsOfTheDriver) {
  const auto r =
      sh("tutti map -j 2 +parallel.options.processes=false ::: a 'b c' -- 'echo \"{}\"'");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, "a\nb c\n");
}

TEST_F(Everyday, ANumberOfItemsThatIsAlsoAFileIsPointedOut) {
  write_file_atomic(folder_.path() / "2", "x\ny\nz\n");
  const auto number = sh("tutti map -j 1 --items 2 -- echo {}");
  EXPECT_EQ(number.out, "0\n1\n");
  EXPECT_THAT(number.err, HasSubstr("for the file of that name say --items ./2"));
  const auto file = sh("tutti map -j 1 --items ./2 -- echo {}");
  EXPECT_EQ(file.out, "x\ny\nz\n");
  EXPECT_EQ(file.err, "");
}

TEST_F(Everyday, AFolderOfOutputFoldersNamesThem) {
  ASSERT_EQ(
      sh("for t in clean other; do tutti map --quiet --output_dir inference/$t ::: a -- echo; "
         "done")
          .exit_code,
      0);
  for (const char* command : {"status", "wait", "gather"}) {
    const auto r = sh("tutti " + std::string(command) + " inference");
    EXPECT_EQ(r.exit_code, 3) << command;
    EXPECT_THAT(r.err, HasSubstr("output folders below it: inference/clean, inference/other"))
        << command;
  }
}

// Whoever sends SIGTERM wants the machine: an item of hours does not keep it.
TEST_F(Everyday, AWorkerThatGotSigtermGivesUpAnItemThatTakesLongWithoutBlame) {
  write_file_atomic(folder_.path() / "item.sh",
                    "if [ -e worker ]; then echo done; exit; fi\n"
                    "echo $PPID >w; mv w worker; exec sleep 3600\n");
  Command command{.argv = {kTutti, "map", "-j", "1", "parallel.max_retries=1", "--output_dir",
                           "out", ":::", "a", "--", "sh", "item.sh"}};
  command.cwd = folder_.path();
  command.env["TUTTI_WORKER_TERM_GRACE"] = "0.2";
  command.stdout_path = folder_.path() / "log";
  Process driver = Process::start(command);
  ASSERT_TRUE(wait_until([&] { return fs::exists(folder_.path() / "worker"); })) << content("log");
  ::kill(std::stoi(content("worker")), SIGTERM);
  const auto ended = driver.wait_for(std::chrono::seconds(50));
  ASSERT_TRUE(ended) << content("log");
  EXPECT_TRUE(ended->ok()) << content("log");
  EXPECT_THAT(content("out/results.jsonl"), HasSubstr("\"result\":\"done\""));
  EXPECT_THAT(content("out/logs/worker-0.log"),
              HasSubstr("takes longer than 200 ms after SIGTERM"));
}

// The recorded pid is another process's in a namespace that is not ours.
TEST_F(Everyday, CancelSignalsNobodyElse) {
  ASSERT_EQ(sh("tutti map --quiet --items 1 --output_dir out -- true").exit_code, 0);
  Process bystander = Process::start({.argv = {"sleep", "1000"}});
  const auto lock = [&](const std::string& name_space, const std::string& start_time) {
    Json json = {{"host", ""},
                 {"pid", bystander.pid()},
                 {"pid_namespace", name_space},
                 {"start_time", start_time},
                 {"heartbeat", 4e9},
                 {"nonce", "x"}};
    char host[256] = {};
    ::gethostname(host, sizeof host - 1);
    json["host"] = host;
    write_file_atomic(FolderLock::path(folder_.path() / "out"), json.dump());
  };
  lock("pid:[1]", "1");
  const auto r = sh("tutti cancel out");
  EXPECT_EQ(r.exit_code, 5) << r.err;
  EXPECT_THAT(r.err, HasSubstr("in another container"));
  EXPECT_FALSE(bystander.wait_for(std::chrono::milliseconds(200)));
}

}  // namespace
}  // namespace tutti::parallel
