// A stand-in for Slurm made of shell scripts, with real workers and real processes: it hangs, lies and
// forgets when it is told to.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/parallel/items.h"
#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"
#include "tutti/parallel/folder/run_folder.h"

namespace tutti::parallel {

namespace fs = std::filesystem;

// Jobs are files in $D: N.pid (runs), N.pending, N.cancelled, N.timeout, N.script, N.launching (its node stands still),
// N.stays (cancelled is cancelled). Files in $D change how the commands behave: `pending` (jobs do not start), `hold`
// (task 1 does not), `still` (its node does not answer; it wakes when the job is cancelled), `hang`, `lie`, `garbage` (of
// squeue), `hang_scancel`, `fail_scancel`, `refuse` (what sbatch then says), `timelimit` (seconds after which jobs are killed), `reason` (why jobs wait).
inline constexpr char kSbatch[] = R"sh(#!/bin/bash
for script; do :; done
if [ -e "$D"/refuse ]; then cat "$D"/refuse >&2; exit 1; fi
id=$(($(cat "$D"/next 2>/dev/null || echo 100) + 1)); echo $id >"$D"/next
start() {
  echo "$script" >"$D"/$1.script
  case $1 in *_1) [ -e "$D"/hold ] && { touch "$D"/$1.pending; return; }
    [ -e "$D"/still ] && { touch "$D"/$1.launching; return; };; esac
  if [ -e "$D"/pending ]; then touch "$D"/$1.pending; return; fi
  err=$(sed -n "s/^#SBATCH -e //p" "$script" | sed "s/%A_%a\|%j/$1/; s/^[\"']//; s/[\"']$//")
  setsid bash "$script" </dev/null >"$D"/$1.log 2>"$err" &
  echo $! >"$D"/$1.pid
  [ -e "$D"/timelimit ] || return
  (sleep $(cat "$D"/timelimit); touch "$D"/$1.timeout; kill -KILL -- -$(cat "$D"/$1.pid)) </dev/null >/dev/null 2>&1 &
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
inline constexpr char kSqueue[] = R"sh(#!/bin/bash
if [ -e "$D"/hang ]; then touch "$D"/hangs; exec sleep 1000; fi
if [ -e "$D"/garbage ]; then touch "$D"/seen; echo 'Segmentation fault <77> | 12_[3'; exit 0; fi
for script in "$D"/*.script; do
  [ -e "$script" ] || continue
  job=${script%.script}; id=${job##*/}; state=FAILED
  [ -e "$job".cancelled ] && state=CANCELLED
  [ -e "$job".timeout ] && state=TIMEOUT
  [ -e "$job".launching ] && state=RUNNING
  [ -e "$job".pending ] && state=PENDING
  [ -e "$job".pid ] && [ ! -e "$job".cancelled ] && kill -0 $(cat "$job".pid) 2>/dev/null && state=RUNNING
  [ -e "$D"/lie ] && { touch "$D"/seen; state=FAILED; }
  case "$*" in
    *%o*) case $state in PENDING|RUNNING) echo "$id|$(cat "$script")";; esac;;
    *) echo "$id|$state|node1|$([ $state = PENDING ] && cat "$D"/reason 2>/dev/null || echo None)";;
  esac
done
)sh";
inline constexpr char kScancel[] = R"sh(#!/bin/bash
if [ -e "$D"/hang_scancel ]; then touch "$D"/scancel_hangs; exec sleep 1000; fi
if [ -e "$D"/fail_scancel ]; then touch "$D"/scancel_fails; echo 'scancel: error: no' >&2; exit 1; fi
for id; do
  touch "$D"/$id.cancelled; rm -f "$D"/$id.pending
  if [ -e "$D"/$id.launching ]; then
    rm "$D"/$id.launching
    [ -e "$D"/$id.stays ] || { echo 'launch failed requeued held' >"$D"/reason; touch "$D"/$id.pending; }
  fi
  [ -e "$D"/$id.pid ] && kill -TERM -- -$(cat "$D"/$id.pid) 2>/dev/null
done
exit 0
)sh";
// As the real one it takes one job, or tasks of one array: 7, 7_1 or 7_0,1.
inline constexpr char kScontrol[] = R"sh(#!/bin/bash
[ "$1" = update ] && [ "$3" = Requeue=0 ] || exit 1
[[ "$2" =~ ^JobId=([0-9]+)(_([0-9]+(,[0-9]+)*))?$ ]] || { echo "Invalid job id specified: $2" >&2; exit 1; }
[ -n "${BASH_REMATCH[2]}" ] || touch "$D"/${BASH_REMATCH[1]}.stays
for task in ${BASH_REMATCH[3]//,/ }; do touch "$D"/${BASH_REMATCH[1]}_$task.stays; done
)sh";

class Scheduler : public ::testing::Test {
 protected:
  Scheduler() {
    make_folders(folder_.path() / "bin");
    script("sbatch", kSbatch);
    script("squeue", kSqueue);
    script("scancel", kScancel);
    script("scontrol", kScontrol);
    script("sacct", "#!/bin/sh\nexit 1\n");
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
    return trial::wait_until([&] { return fs::exists(state_ / name); });
  }
  int num_submissions() const {
    return fs::exists(state_ / "next") ? std::stoi(read_file(state_ / "next")) - 100 : 0;
  }

  std::map<std::string, std::string> env() const {
    return {{"PATH", (folder_.path() / "bin").string() + ":" + std::getenv("PATH")},
            {"D", state_.string()}};
  }
  Command command(int items, int n_workers, const std::string& shell,
                  const std::string& options = "", const std::string& block = "") const {
    const auto config = folder_.path() / "conf.yaml";
    write_file_atomic(config, "parallel:\n  env: slurm\n  n_workers: " + std::to_string(n_workers) +
                                  "\n" + block +
                                  "  options: {cores: 1, processes: 1, memory: 200MB, "
                                  "death_timeout: 5, walltime: '01:00:00'" +
                                  options + "}\n");
    Command command{.argv = {in_bin("tutti"), "map", "--config", config.string(), "--items",
                             std::to_string(items), "--output_dir", out_.string(), "--quiet", "--",
                             "sh", "-c", shell}};
    command.env = env();
    return command;
  }
  // `tutti VERB... out`, where the stand-in is the scheduler.
  Command about_run(std::vector<std::string> words) const {
    Command command{.argv = {in_bin("tutti")}, .env = env()};
    command.argv.insert(command.argv.end(), words.begin(), words.end());
    command.argv.push_back(out_.string());
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

}  // namespace tutti::parallel
