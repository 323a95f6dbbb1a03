// Process set-up of a worker: arguments, limits, the keeper.
#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/program.h"
#include "tutti/core/text.h"
#include "tutti/parallel/async/worker.h"
#include "tutti/parallel/client.h"
#include "tutti/parallel/worker/command_runner.h"
#include "tutti/parallel/worker/worker.h"

namespace tutti::parallel {
namespace {

double env_number(const char* name, double fallback) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' ? std::strtod(text, nullptr) : fallback;
}

void bind_to_cpus() {
  const char* text = std::getenv("TUTTI_WORKER_CPUS");
  if (text == nullptr) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const std::string& cpu : split(text, ','))
    CPU_SET(static_cast<std::size_t>(std::atoi(cpu.c_str())), &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0)
    log::warning("cannot bind to CPUs {}: {}", text, std::strerror(errno));
}

// Leaves a small process behind whose only job is to end this worker's process group when the
// worker is gone, however it went: kill -9 of a worker must not orphan the commands it had started.
// (PDEATHSIG reaches children only, not grandchildren.) Must run before any thread exists.
void start_keeper() {
  if (::getpgrp() != ::getpid()) return;  // not a group leader: started by hand, nothing to keep
  int fds[2];
  if (::pipe(fds) != 0) return;
  const pid_t group = ::getpgrp();
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(fds[1]);
    ::prctl(PR_SET_NAME, "tutti-keeper");
    // Nothing but the pipe: the keeper must not hold the worker's log or terminal open.
    for (int fd = 0; fd < 256; ++fd)
      if (fd != fds[0]) ::close(fd);
    sigset_t all;
    sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, nullptr);  // only SIGKILL and the pipe end it
    char byte = 0;
    while (::read(fds[0], &byte, 1) < 0 && errno == EINTR) {
    }
    ::kill(-group, SIGKILL);  // itself included
    ::_exit(0);
  }
  ::close(fds[0]);
  ::fcntl(fds[1], F_SETFD, FD_CLOEXEC);  // held until this process ends
}

}  // namespace

std::optional<int> worker_main_if_requested(int argc, char** argv) {
  if (argc < 4 || std::strcmp(argv[1], "worker") != 0 || std::strcmp(argv[2], "--run") != 0)
    return std::nullopt;
  return worker_main(argc - 1, argv + 1);
}

int worker_main(int argc, char** argv) try {
  WorkerOptions options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (flag == "--run")
      options.run_folder = argv[i + 1];
    else if (flag == "--id")
      options.id = std::atoi(argv[i + 1]);
    else if (flag == "--async")
      options.async_generation = argv[i + 1];
    else if (flag == "--name")
      options.async_name = argv[i + 1];
    else
      throw ConfigError("worker: unknown option " + std::string(flag),
                        "usage: worker --run FOLDER --id N");
  }
  if (options.run_folder.empty())
    throw ConfigError("worker: --run is missing", "usage: worker --run FOLDER --id N");
  options.death_timeout_s = env_number("TUTTI_WORKER_DEATH_TIMEOUT", options.death_timeout_s);
  options.memory_limit = static_cast<std::uint64_t>(env_number("TUTTI_WORKER_MEMORY_LIMIT", 0));
  options.drain_at = env_number("TUTTI_WORKER_DRAIN_AT", 0);
  if (!options.async_generation.empty() && options.async_name.empty()) {
    std::vector<std::string> command = {own_program().string(), "worker"};
    command.insert(command.end(), argv + 1, argv + argc);
    return supervise_async(command, options);
  }
  register_command_runner();
  start_keeper();
  // SIGTERM means "leave after this item" and is read by the link; Ctrl-C is the driver's business.
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGINT, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  if (const int nice = static_cast<int>(env_number("TUTTI_WORKER_NICE", 0));
      nice != 0 && ::nice(nice) == -1)
    log::warning("cannot change the nice value by {}", nice);
  bind_to_cpus();
  return run_worker(options);
} catch (...) {  // the top of a process: report_and_exit_code sorts them
  return report_and_exit_code();
}

}  // namespace tutti::parallel
