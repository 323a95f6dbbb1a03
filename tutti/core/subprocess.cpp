#include "tutti/core/subprocess.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"

extern char** environ;

namespace tutti {
namespace {

using SteadyClock = std::chrono::steady_clock;

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

Pipe make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) throw_errno("cannot make a pipe", errno);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// Everything the child needs, prepared before fork: between fork and exec only async-signal-safe
// calls are allowed, so no allocation may happen there.
struct Prepared {
  explicit Prepared(const Command& command) {
    env_text.reserve(64);
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string_view text(*entry);
      const std::string name(text.substr(0, text.find('=')));
      const bool dropped = command.env.contains(name) ||
                           std::find(command.unset_env.begin(), command.unset_env.end(), name) !=
                               command.unset_env.end();
      if (!dropped) env_text.emplace_back(text);
    }
    for (const auto& [name, value] : command.env) env_text.push_back(name + "=" + value);
    for (auto& entry : env_text) env.push_back(entry.data());
    env.push_back(nullptr);
    argv_text = command.argv;
    for (auto& word : argv_text) argv.push_back(word.data());
    argv.push_back(nullptr);
    cwd = command.cwd.string();
    // PATH of the child decides, as a shell would do it; resolved here because execvpe may
    // allocate.
    program = argv_text.at(0);
    if (program.find('/') == std::string::npos) {
      const char* inherited = ::getenv("PATH");
      const auto own = command.env.find("PATH");
      const std::string path = own != command.env.end() ? own->second
                               : inherited != nullptr   ? inherited
                                                        : "/usr/bin:/bin";
      for (const auto& folder : split(path, ':')) {
        const std::string candidate = (folder.empty() ? "." : folder) + "/" + program;
        if (::access(candidate.c_str(), X_OK) == 0) {
          program = candidate;
          break;
        }
      }
    }
  }
  std::vector<std::string> env_text;
  std::vector<char*> env;
  std::vector<std::string> argv_text;
  std::vector<char*> argv;
  std::string cwd;
  std::string program;
};

// Marks every descriptor from 3 up close-on-exec, except those to keep. One system call where the
// kernel has close_range (5.11), else a walk over /proc/self/fd.
void seal_descriptors(const std::vector<int>& keep) noexcept {
  constexpr unsigned kCloexec = 4;  // CLOSE_RANGE_CLOEXEC
  if (::syscall(SYS_close_range, 3U, ~0U, kCloexec) != 0) {
    for (int fd = 3; fd < 4096; ++fd) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  for (const int fd : keep) ::fcntl(fd, F_SETFD, 0);
}

struct Redirects {
  int in = -1;
  int out = -1;
  int err = -1;
};

// In the child, which shares our memory until it has started its program: only system calls, and
// nothing is written but `failure`.
void become(const Command& command, const Prepared& prepared, const Redirects& redirects,
            pid_t parent, volatile int& failure) noexcept {
  if (command.own_group) ::setpgid(0, 0);
  if (command.die_with_parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);  // the parent died before prctl took effect
  }
  for (const int signal : {SIGINT, SIGTERM, SIGPIPE, SIGUSR1, SIGUSR2, SIGHUP, SIGCHLD})
    ::signal(signal, SIG_DFL);
  if (redirects.in >= 0) ::dup2(redirects.in, 0);
  if (redirects.out >= 0) ::dup2(redirects.out, 1);
  if (redirects.err >= 0) ::dup2(redirects.err, 2);
  seal_descriptors(command.keep_fds);
  if (command.announce_fd >= 0) {
    const pid_t self = ::getpid();
    if (::write(command.announce_fd, &self, sizeof self) != sizeof self) {
      failure = errno;
      return;
    }
  }
  if (!prepared.cwd.empty() && ::chdir(prepared.cwd.c_str()) != 0) {
    failure = errno;
    return;
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(prepared.program.c_str(), prepared.argv.data(), prepared.env.data());
  failure = errno;
}

// Where a child says why it could not start its program. Shared memory, because vfork may be a plain
// fork in disguise (sanitizers). REQUIRES: spawn_mutex is held.
volatile int& exec_failure() {
  static pid_t owner = 0;
  static void* page = nullptr;
  if (owner != ::getpid()) {  // a forked child of ours must not share it with us
    page = ::mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw_errno("cannot map memory", errno);
    owner = ::getpid();
  }
  return *static_cast<volatile int*>(page);
}

// vfork, because a worker with a model in memory would spend its time copying page tables: the child
// borrows our memory, and we wait, until it has become the program. `exec_errno` says why it could
// not, so that "no such program" is an error here and not an exit code later.
pid_t spawn(const Command& command, const Redirects& redirects, int& exec_errno) {
  if (command.argv.empty()) throw InternalError("empty command");
  const Prepared prepared(command);
  const pid_t parent = ::getpid();
  const std::lock_guard lock(spawn_mutex());
  volatile int& failure = exec_failure();
  failure = 0;
  // Handlers must not run in the child, where they would work on our memory.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // newer headers warn of its sharp edges
  const pid_t pid = ::vfork();  // NOLINT(clang-analyzer-security.insecureAPI.vfork)
#pragma GCC diagnostic pop
  if (pid == 0) {
    become(command, prepared, redirects, parent, failure);
    ::_exit(127);
  }
  const int no_process = errno;
  if (pid > 0 && command.own_group) ::setpgid(pid, pid);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) throw_errno("cannot fork for " + command.argv[0], no_process);
  exec_errno = failure;
  return pid;
}

// Becomes readable when the process has ended; none on kernels before 5.3.
UniqueFd watch_end_of(pid_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U)));
}

ExitStatus decode(int raw) {
  if (WIFSIGNALED(raw)) return {.exit_code = 128 + WTERMSIG(raw), .signal = WTERMSIG(raw)};
  return {.exit_code = WEXITSTATUS(raw), .signal = 0};
}

UniqueFd open_append(const std::filesystem::path& path) {
  if (path.empty()) return {};
  if (path.has_parent_path()) make_folders(path.parent_path());
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd) throw_errno("cannot open " + path.string(), errno);
  return fd;
}

void append_capped(std::string& sink, std::string_view bytes, std::size_t limit, bool& truncated) {
  const std::size_t room = limit - std::min(limit, sink.size());
  if (bytes.size() > room) truncated = true;
  sink.append(bytes.substr(0, room));
}

}  // namespace

std::string Command::describe() const {
  std::vector<std::string> words;
  for (const auto& word : argv) words.push_back(shell_quote(word));
  return join(words, " ");
}

std::string CommandResult::describe(std::size_t most_of_stderr) const {
  std::string how = timed_out     ? "did not finish in time"
                    : signal != 0 ? "was killed by " + signal_name(signal)
                                  : fmt::format("failed with exit code {}", exit_code);
  std::string_view words = trim(err.empty() ? std::string_view(out) : std::string_view(err));
  const std::size_t most = err.empty() ? 2000 : most_of_stderr;
  if (words.size() > most) words.remove_prefix(words.size() - most);
  return fmt::format("`{}` {}{}{}", command, how, words.empty() ? "" : ": ", words);
}

namespace {

// A child's three streams, moved until both outputs are closed or nobody is left to use them.
class Conversation {
 public:
  Conversation(const Command& command, CommandResult& result)
      : command_(command), result_(result), to_send_(command.stdin_text) {
    if (!to_send_.empty()) in_ = make_pipe();
    out_ = make_pipe();
    err_ = make_pipe();
    if (to_send_.empty())
      in_.read.reset(command.stdin_fd >= 0 ? ::fcntl(command.stdin_fd, F_DUPFD_CLOEXEC, 0)
                                           : ::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  Redirects redirects() const { return {in_.read.get(), out_.write.get(), err_.write.get()}; }

  void run(pid_t pid) {
    in_.read.reset();
    out_.write.reset();
    err_.write.reset();
    if (in_.write) ::fcntl(in_.write.get(), F_SETFL, O_NONBLOCK);
    const UniqueFd ended = watch_end_of(pid);
    const auto deadline = SteadyClock::now() + command_.timeout;
    bool exited = false;
    int raw_status = 0;
    // A grandchild may keep the pipes open after the child has gone; then the child's end decides.
    while (out_.read || err_.read || !exited) {
      pollfd fds[5] = {{out_.read.get(), POLLIN, 0},
                       {err_.read.get(), POLLIN, 0},
                       {in_.write.get(), POLLOUT, 0},
                       {exited ? -1 : command_.stop_fd, POLLIN, 0},
                       {exited ? -1 : ended.get(), POLLIN, 0}};
      ::poll(fds, 5, exited ? 50 : wait_ms(deadline, static_cast<bool>(ended)));
      const bool got_out = receive(fds[0].revents, out_.read, result_.out);
      const bool got_err = receive(fds[1].revents, err_.read, result_.err);
      if (fds[2].revents != 0) send();
      if (exited && !got_out && !got_err) break;
      if (!exited && ::waitpid(pid, &raw_status, WNOHANG) == pid) exited = true;
      if (!exited && (fds[3].revents != 0 ||
                      (command_.timeout.count() > 0 && SteadyClock::now() >= deadline))) {
        result_.timed_out = true;
        ::kill(command_.own_group ? -pid : pid, SIGKILL);
        ::waitpid(pid, &raw_status, 0);
        exited = true;
      }
    }
    const ExitStatus status = decode(raw_status);
    result_.exit_code = status.exit_code;
    result_.signal = status.signal;
  }

 private:
  int wait_ms(SteadyClock::time_point deadline, bool told_of_the_end) const {
    if (!told_of_the_end) return 5;
    if (command_.timeout.count() <= 0) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now());
    return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60000));
  }

  bool receive(short events, UniqueFd& source, std::string& sink) const {
    if (!source || events == 0) return false;
    char buffer[1 << 16];
    const ssize_t n = ::read(source.get(), buffer, sizeof buffer);
    if (n > 0) {
      const std::string_view text(buffer, static_cast<std::size_t>(n));
      append_capped(sink, text, command_.capture_limit, result_.truncated);
      if (&sink == &result_.err && command_.on_stderr) command_.on_stderr(text);
    } else if (n == 0 || errno != EINTR) {
      source.reset();
    }
    return n > 0;
  }

  void send() {
    const ssize_t n = ::write(in_.write.get(), to_send_.data(), to_send_.size());
    if (n > 0) to_send_.remove_prefix(static_cast<std::size_t>(n));
    if ((n < 0 && errno != EAGAIN && errno != EINTR) || to_send_.empty()) in_.write.reset();
  }

  const Command& command_;
  CommandResult& result_;
  std::string_view to_send_;
  Pipe in_;
  Pipe out_;
  Pipe err_;
};

// While it lives, a write to a pipe without a reader is an error and no signal.
class NoPipeSignal {
 public:
  NoPipeSignal() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~NoPipeSignal() {
    const timespec now{};
    while (::sigtimedwait(&set_, nullptr, &now) == SIGPIPE) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t set_{};
  sigset_t before_{};
};

}  // namespace

CommandResult run_command(const Command& command) {
  CommandResult result;
  result.command = command.describe();
  Conversation conversation(command, result);
  int exec_errno = 0;
  const pid_t pid = spawn(command, conversation.redirects(), exec_errno);
  if (exec_errno != 0) {
    ::waitpid(pid, nullptr, 0);
    result.exit_code = 127;
    result.err = fmt::format("cannot start {}: {}", command.argv[0], std::strerror(exec_errno));
    return result;
  }
  std::optional<NoPipeSignal> quiet;  // a child may close its input early
  if (!command.stdin_text.empty()) quiet.emplace();
  conversation.run(pid);
  return result;
}

std::mutex& spawn_mutex() {
  static std::mutex mutex;
  return mutex;
}

CommandRunner& CommandRunner::system() {
  class System final : public CommandRunner {
   public:
    CommandResult run(const Command& command) override { return run_command(command); }
  };
  static System runner;
  return runner;
}

std::string ExitStatus::describe() const {
  if (signal != 0) return fmt::format("killed by {} (signal {})", signal_name(signal), signal);
  return fmt::format("exit code {}", exit_code);
}

Process Process::start(const Command& command) {
  const UniqueFd out = open_append(command.stdout_path);
  const UniqueFd err = open_append(command.stderr_path);
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  int exec_errno = 0;
  Process process;
  process.owner_ = ::getpid();
  const int in_fd = command.stdin_fd >= 0 ? command.stdin_fd : null.get();
  const int out_fd = command.stdout_fd >= 0 ? command.stdout_fd : out.get();
  const int err_fd = command.stderr_fd >= 0 ? command.stderr_fd : err ? err.get() : out_fd;
  process.pid_ = spawn(command, {in_fd, out_fd, err_fd}, exec_errno);
  if (exec_errno != 0) {
    process.wait();
    throw_errno("cannot start " + command.argv[0], exec_errno);
  }
  return process;
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), owner_(other.owner_), status_(other.status_) {}

Process& Process::operator=(Process&& other) noexcept {
  Process taken(std::move(other));
  std::swap(pid_, taken.pid_);
  std::swap(owner_, taken.owner_);
  std::swap(status_, taken.status_);
  return *this;  // `taken` ends what this object held before
}

Process::~Process() {
  if (pid_ <= 0 || ::getpid() != owner_ || poll()) return;
  signal_group(SIGKILL);
  wait();
}

std::optional<ExitStatus> Process::poll() {
  if (status_ || pid_ <= 0) return status_;
  int raw = 0;
  const pid_t got = ::waitpid(pid_, &raw, WNOHANG);
  if (got == pid_) status_ = decode(raw);
  if (got < 0 && errno == ECHILD) status_ = ExitStatus{.exit_code = -1, .signal = 0};
  return status_;
}

std::optional<ExitStatus> Process::wait_for(std::chrono::milliseconds limit) {
  const auto deadline = SteadyClock::now() + limit;
  if (poll() || pid_ <= 0) return status_;
  const UniqueFd ended = watch_end_of(pid_);
  auto pause = std::chrono::milliseconds(1);  // where the kernel cannot tell us
  while (!poll()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now());
    if (left.count() <= 0) break;
    pollfd fd{ended.get(), POLLIN, 0};
    ::poll(&fd, 1,
           static_cast<int>(std::min<std::int64_t>(
               ended ? left.count() : std::min(left, pause).count(), 60000)));
    pause = std::min(pause * 2, std::chrono::milliseconds(10));
  }
  return status_;
}

ExitStatus Process::wait() {
  int raw = 0;
  while (!status_ && pid_ > 0) {
    const pid_t got = ::waitpid(pid_, &raw, 0);
    if (got == pid_) status_ = decode(raw);
    if (got < 0 && errno == ECHILD) status_ = ExitStatus{.exit_code = -1, .signal = 0};
  }
  return status_.value_or(ExitStatus{.exit_code = -1, .signal = 0});
}

bool Process::signal_group(int signal) noexcept { return pid_ > 0 && ::kill(-pid_, signal) == 0; }

ExitStatus Process::terminate(std::chrono::milliseconds grace) {
  if (!poll()) signal_group(SIGTERM);
  if (!wait_for(grace)) signal_group(SIGKILL);
  const ExitStatus status = wait();
  signal_group(SIGKILL);  // grandchildren that outlived it
  return status;
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

}  // namespace tutti
