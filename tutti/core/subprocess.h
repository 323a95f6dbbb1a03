// Child processes: own process group, deadlines, capped capture, no leaked descriptors, and death
// with the parent.
//
//   CommandResult r = run_command({.argv = {"sbatch", "--parsable", script}, .timeout = 30s});
//   if (!r.ok()) throw SchedulerError(r.describe());
//
//   Process worker = Process::start({.argv = {"sleep", "60"}, .stdout_path = "worker.log"});
//   worker.terminate(5s);   // SIGTERM to the group, SIGKILL after the grace
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

struct Command {
  std::vector<std::string> argv;           // argv[0] is looked up in PATH
  std::map<std::string, std::string> env;  // added to (or replacing in) our own environment
  std::vector<std::string> unset_env;
  std::filesystem::path cwd;  // empty: ours
  std::string stdin_text;     // run_command only
  int stdin_fd = -1;          // the child's standard input, still ours to close; -1: /dev/null
  std::filesystem::path stdout_path;  // Process only: append there; empty: ours
  std::filesystem::path
      stderr_path;     // Process only: append there; empty: as stdout_path, else ours
  int stdout_fd = -1;  // Process only, before the paths: the child writes there
  int stderr_fd = -1;  // Process only, before the paths
  std::chrono::milliseconds timeout{0};  // run_command only; 0: none
  int stop_fd = -1;  // run_command only: once it can be read, the command ends as if out of time
  std::size_t capture_limit = 4 << 20;  // bytes kept of each of stdout and stderr
  bool die_with_parent =
      true;  // SIGKILL when the *thread* that started it ends (Linux): start from a long-lived one
  bool own_group = true;      // false: stays in our process group (a timeout then kills it alone)
  std::vector<int> keep_fds;  // descriptors the child inherits under their own number
  // The child writes its process number (a pid_t) there before it becomes the program: whoever
  // reads it knows of the child before the child can have done anything. -1: nobody.
  int announce_fd = -1;
  // run_command only: told what the child writes to stderr, as it comes; must not throw.
  std::function<void(std::string_view)> on_stderr = {};

  std::string describe() const;  // the command as one would type it
};

struct CommandResult {
  int exit_code = -1;  // 127: could not be started; meaningless when signal != 0
  int signal = 0;      // the signal that ended it, 0 if it exited
  bool timed_out = false;
  bool truncated = false;  // more output than capture_limit
  std::string out;
  std::string err;
  std::string command;

  bool ok() const noexcept { return exit_code == 0 && signal == 0 && !timed_out; }
  // "`sbatch x` failed with exit code 1: <the end of stderr>", or of stdout when there is no stderr.
  std::string describe(std::size_t most_of_stderr = 2000) const;
};

// Runs to the end (or the timeout, then SIGKILL to the group) and collects output. Never throws for
// what the child does; throws IoError only when the machine has no processes or descriptors left.
CommandResult run_command(const Command& command);

// Commands behind an interface, so that a lying or lagging scheduler can be played in tests.
class CommandRunner {
 public:
  virtual ~CommandRunner() = default;
  virtual CommandResult run(const Command& command) = 0;
  static CommandRunner& system();  // run_command; lives for the whole program
};

struct ExitStatus {
  int exit_code = 0;
  int signal = 0;
  bool ok() const noexcept { return exit_code == 0 && signal == 0; }
  std::string describe() const;  // "exit code 3", "killed by SIGSEGV (signal 11)"
};

// A running child in its own process group. Move-only; the destructor kills the group and reaps.
// Not thread-safe.
class Process {
 public:
  // Throws IoError when the program cannot be started ("cannot start X: No such file").
  static Process start(const Command& command);
  Process() = default;
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process();

  pid_t pid() const noexcept { return pid_; }
  // Non-blocking; after the first non-empty answer the answer stays the same.
  std::optional<ExitStatus> poll();
  std::optional<ExitStatus> wait_for(std::chrono::milliseconds limit);
  ExitStatus wait();
  // To the whole group; false when it is gone already.
  bool signal_group(int signal) noexcept;
  // SIGTERM, `grace`, SIGKILL; returns how it ended.
  ExitStatus terminate(std::chrono::milliseconds grace);
  // Lets the child live on after this object. poll() and signals no longer work.
  void detach() noexcept { pid_ = -1; }

 private:
  pid_t pid_ = -1;
  pid_t owner_ = -1;  // who started it: a forked copy of this object leaves the child alone
  std::optional<ExitStatus> status_;
};

// Held while a child borrows this process's memory on its way to its own program. Who measures the
// memory of processes holds it too, so as not to see the same pages twice.
std::mutex& spawn_mutex();

// "SIGTERM", or "signal 42" where there is no name.
std::string signal_name(int signal);

}  // namespace tutti
