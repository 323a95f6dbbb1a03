#include "tests/parallel/cluster/bed.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tests/parallel/processes.h"
#include "tests/places.h"
#include "tutti/config/load.h"
#include "tutti/core/error.h"
#include "tutti/core/file_trust.h"
#include "tutti/core/text.h"
#include "tutti/parallel/folder/run_folder.h"

namespace tutti::parallel {

std::filesystem::path BedTest::bed_;
std::string BedTest::user_;
std::string BedTest::name_;
std::string BedTest::skip_reason_;
UniqueFd BedTest::lock_;
std::map<std::string, std::string> BedTest::env_before_;

namespace {

const std::string kProgram = in_bin("tutti");

std::string bed_script(const std::string& name, const char* script) {
  return in_source("tests/beds/") + name + "/" + script;
}

// Processes that have something below a path that begins so as program, folder, open file or argument.
std::vector<pid_t> processes_of(const std::string& bed) {
  std::vector<pid_t> found;
  for (const pid_t pid : all_pids()) {
    if (pid == ::getpid()) continue;
    const std::filesystem::path folder = "/proc/" + std::to_string(pid);
    bool ours = false;
    for (const std::string& word : split_words(proc_text(pid, "cmdline")))
      ours = ours || word.starts_with(bed) || word.find("=" + bed) != std::string::npos;
    std::error_code gone;  // it may end while we look
    const auto look = [&](const std::filesystem::path& link) {
      ours = ours || std::filesystem::read_symlink(link, gone).string().starts_with(bed);
    };
    for (const char* link : {"exe", "cwd", "root"}) look(folder / link);
    for (const auto& fd : std::filesystem::directory_iterator(folder / "fd", gone)) look(fd.path());
    if (ours) found.push_back(pid);
  }
  return found;
}

std::string describe(const std::vector<pid_t>& pids) {
  std::string text;
  for (const pid_t pid : pids) text += std::to_string(pid) + " " + proc_text(pid, "cmdline") + "\n";
  return text;
}

CommandResult take_down(const std::string& name, const std::filesystem::path& bed) {
  return run_command({.argv = {bed_script(name, "down.sh")},
                      .env = {{"BED", bed.string()}},
                      .timeout = std::chrono::seconds(120)});
}

// What a test program that was killed has left: daemons, drivers and workers, networks, users, its folder.
void remove_stale_bed(const std::string& name, const std::string& bed) {
  take_down(name, bed);
  for (const pid_t pid : processes_of(bed + "/")) ::kill(pid, SIGKILL);
}

}  // namespace

void BedTest::bring_up(const std::string& name) {
  if (name == name_) return;
  bring_down();
  name_ = name;
  skip_reason_.clear();
  // Not a TempFolder: those are closed to the users some daemons run as.
  bed_ = std::filesystem::temp_directory_path() /
         ("tutti-bed-" + name + "-" + std::to_string(::getpid()));
  const std::string file =
      (std::filesystem::exists("/run/lock") ? "/run/lock/tutti-bed-" : "/tmp/tutti-lock-") + name +
      "-" + std::to_string(::getuid());
  lock_ = UniqueFd(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!lock_ || !eventually([] { return ::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0; }, 600)) {
    lock_.reset();
    skip_reason_ = "another test program has this bed for longer than 10 minutes: " + file;
    return;
  }
  const std::filesystem::path before = trim(read_file(file));
  if (before.filename().string().starts_with("tutti-bed-" + name + "-"))
    remove_stale_bed(name, before.string());
  if (::ftruncate(lock_.get(), 0) != 0) throw_errno("cannot write " + file, errno);
  write_all(lock_.get(), bed_.string() + "\n", file);
  // The first time packages are installed, and HTCondor and Kubernetes make a system of their own.
  const bool long_way = name == "htcondor" || name == "kube";
  const auto up = run_command({.argv = {bed_script(name, "up.sh")},
                               .env = {{"BED", bed_.string()}, {"PROGRAM", kProgram}},
                               .timeout = std::chrono::seconds(long_way ? 1800 : 600)});
  if (!up.ok()) {  // other people's daemons on a machine that may be slow: no failure of ours
    const char* required = std::getenv("TUTTI_BEDS_REQUIRED");
    ASSERT_FALSE(required != nullptr && std::string(required) == "1") << up.out << up.err;
    skip_reason_ = trim(up.exit_code == 77 ? up.out : up.describe());
    return;
  }
  user_ = std::filesystem::exists(bed_ / "user") ? std::string(trim(read_file(bed_ / "user"))) : "";
  // The bed's commands find it by the variables of its env.sh.
  if (!std::filesystem::exists(bed_ / "env.sh")) return;
  for (const std::string& line : split(read_file(bed_ / "env.sh"), '\n')) {
    if (!line.starts_with("export ")) continue;
    for (const std::string& word : split_words(line.substr(7))) {
      const std::string variable = word.substr(0, word.find('='));
      const char* before = std::getenv(variable.c_str());
      env_before_.emplace(variable, before == nullptr ? "" : before);
      ::setenv(variable.c_str(), word.substr(word.find('=') + 1).c_str(), 1);
    }
  }
}

bool BedTest::bring_down() {
  if (name_.empty() || !lock_) return true;
  const auto down = take_down(name_, bed_);
  bool clean = down.ok();
  if (!clean) std::fprintf(stderr, "%s\n", down.describe().c_str());
  std::vector<pid_t> left;
  if (!eventually([&] { return (left = processes_of(bed_.string() + "/")).empty(); }, 20)) {
    std::fprintf(stderr, "processes of the bed are left:\n%s", describe(left).c_str());
    clean = false;
  }
  if (std::filesystem::exists(bed_)) {
    std::fprintf(stderr, "%s is left\n", bed_.c_str());
    clean = false;
  }
  for (const auto& [variable, value] : env_before_)
    value.empty() ? ::unsetenv(variable.c_str()) : ::setenv(variable.c_str(), value.c_str(), 1);
  env_before_.clear();
  name_.clear();
  user_.clear();
  if (clean && ::ftruncate(lock_.get(), 0) != 0) clean = false;
  lock_.reset();
  return clean;
}

void BedTest::bring_up_again() {
  const auto up = run_command({.argv = {bed_script(name_, "up.sh")},
                               .env = {{"BED", bed_.string()}, {"PROGRAM", kProgram}},
                               .timeout = std::chrono::seconds(240)});
  EXPECT_TRUE(up.ok()) << up.describe() << up.out;
}

std::filesystem::path BedTest::folder_of_tests() {
  return skip_reason_.empty() ? bed_ : std::filesystem::temp_directory_path();
}

void BedTest::SetUp() {
  if (!skip_reason_.empty()) GTEST_SKIP() << skip_reason_;
  if (!user_.empty()) {
    sh("chown " + user_ + " " + folder_.path().string() + "; chmod 755 " + folder_.path().string());
    // This test looks into runs of that user, as root.
    ::setenv(kTrustedUserVariable, sh("stat -c %u " + folder_.path().string()).c_str(), 1);
  }
}

// Workers of a test that failed must not disturb the next.
void BedTest::TearDown() {
  if (!HasFailure()) return;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
    if (std::filesystem::exists(entry.path() / ".tutti"))
      tutti({"cancel", "--now", entry.path().string()});
}

ParallelSettings BedTest::settings(const std::string& block_yaml) {
  config::Problems problems;
  ParallelSettings out = parse_parallel(config::parse_yaml(block_yaml, "bed.yaml"), problems);
  EXPECT_TRUE(problems.empty()) << problems.describe();
  return out;
}

std::vector<std::string> BedTest::run(const ParallelSettings& settings, const std::string& function,
                                      std::uint64_t count, RunReport* report,
                                      std::function<void(std::uint64_t done)> on_result) {
  std::vector<std::string> results(count);
  const auto run_folder = folder_.path() / ("run-" + std::to_string(next_run_++));
  make_folders(run_folder);
  Client client(settings, {.run_folder = run_folder});
  JobSpec job;
  job.function = function;
  std::uint64_t done = 0;
  const RunReport got = client.run(job, {.indices = range(count)}, [&](const Outcome& outcome) {
    EXPECT_TRUE(results[outcome.index].empty()) << "item " << outcome.index << " came twice";
    results[outcome.index] = outcome.payload;
    if (on_result) on_result(++done);
  });
  if (report != nullptr) *report = got;
  return results;
}

std::vector<std::string> BedTest::tutti_argv(const std::vector<std::string>& words) {
  std::vector<std::string> argv;
  if (!user_.empty()) argv = {(bed_ / "as-user").string()};
  argv.push_back(kProgram);
  argv.insert(argv.end(), words.begin(), words.end());
  return argv;
}

CommandResult BedTest::tutti(const std::vector<std::string>& words) const {
  return run_command(
      {.argv = tutti_argv(words), .cwd = folder_.path(), .timeout = std::chrono::seconds(240)});
}

std::vector<std::string> BedTest::map_words(const std::string& block,
                                            const std::filesystem::path& out, int count,
                                            const std::vector<std::string>& command,
                                            bool async) const {
  const auto config = out.string() + ".yaml";
  write_file_atomic(config, "parallel: " + block + "\n");
  std::vector<std::string> words = {
      "map",          "--config",   config,   "--items", std::to_string(count),
      "--output_dir", out.string(), "--quiet"};
  if (async) words.emplace_back("--async");
  words.emplace_back("--");
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

CommandResult BedTest::map(const std::string& block, const std::filesystem::path& out, int count,
                           const std::vector<std::string>& command, bool async) const {
  return tutti(map_words(block, out, count, command, async));
}

Process BedTest::start_map(const std::string& block, const std::filesystem::path& out, int count,
                           const std::vector<std::string>& command, bool async) const {
  return Process::start({.argv = tutti_argv(map_words(block, out, count, command, async)),
                         .cwd = folder_.path(),
                         .stdout_path = out.string() + ".log"});
}

std::string BedTest::local_results(int count, const std::vector<std::string>& command) {
  const auto out = folder_.path() / ("local-" + std::to_string(next_run_++));
  const auto run = map("{env: local, n_workers: 4}", out, count, command, false);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  return read_file(out / "results.jsonl");
}

std::string BedTest::wait_for_results(const std::filesystem::path& out) const {
  const auto waited = tutti({"wait", out.string()});
  if (waited.exit_code != 0)
    return "exit code " + std::to_string(waited.exit_code) + ": " + waited.out + waited.err +
           tutti({"status", out.string()}).out;
  return read_file(out / "results.jsonl");
}

ExitStatus BedTest::end_of(Process& driver, const std::string& what) {
  if (const auto ended = driver.wait_for(std::chrono::seconds(240))) return *ended;
  ADD_FAILURE() << what << " has not ended after 240 s";
  driver.signal_group(SIGKILL);
  return driver.wait();
}

std::uint64_t BedTest::num_ok(const std::filesystem::path& out) {
  std::error_code none;
  return std::filesystem::exists(out / "manifest.json", none) ? count_items(out).ok : 0;
}

std::string BedTest::worker_logs(const std::filesystem::path& out) {
  std::string text;
  for (const auto& entry : std::filesystem::directory_iterator(out / "logs"))
    if (entry.path().filename().string().starts_with("worker-")) text += read_file(entry.path());
  return text;
}

std::vector<pid_t> BedTest::processes_with(const std::vector<std::string>& words) {
  std::vector<pid_t> found;
  for (const pid_t pid : all_pids()) {
    const std::string line = proc_text(pid, "cmdline");
    if (std::all_of(words.begin(), words.end(),
                    [&](const std::string& word) { return line.find(word) != std::string::npos; }))
      found.push_back(pid);
  }
  return found;
}

std::vector<pid_t> BedTest::worker_pids(const std::filesystem::path& out) {
  std::vector<pid_t> found;
  for (const pid_t pid : processes_with({"worker --run " + out.string()})) {
    std::error_code gone;  // it may end while we look
    const auto program =
        std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", gone);
    // Not the shells around it, nor its keeper; of an asynchronous worker not the supervisor.
    const std::string line = proc_text(pid, "cmdline");
    const bool supervisor =
        line.find(" --async ") != std::string::npos && line.find(" --name ") == std::string::npos;
    const bool ours = program.filename() == "tutti" || program.filename() == "test_cluster";
    if (ours && trim(proc_text(pid, "comm")) != "tutti-keeper" && !supervisor) found.push_back(pid);
  }
  return without_forks(found);
}

std::string BedTest::sh(const std::string& line) {
  const auto result =
      run_command({.argv = {"bash", "-c", line}, .timeout = std::chrono::seconds(60)});
  return std::string(trim(result.out));
}

bool BedTest::eventually(const std::function<bool()>& condition, double limit_s) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // between two looks at the cluster
  }
  return true;
}

}  // namespace tutti::parallel
