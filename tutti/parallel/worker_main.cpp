// Process set-up of a worker, with a driver or without: arguments, limits, signals.
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/program.h"
#include "tutti/core/text.h"
#include "tutti/parallel/async/worker.h"
#include "tutti/parallel/client.h"
#include "tutti/parallel/wire/signals.h"
#include "tutti/parallel/wire/worker_env.h"
#include "tutti/parallel/worker/command_runner.h"
#include "tutti/parallel/worker/item_processes.h"
#include "tutti/parallel/worker/worker.h"

namespace tutti::parallel {
namespace {

double env_number(const char* name, double fallback) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' ? std::strtod(text, nullptr) : fallback;
}

void bind_to_cpus() {
  const char* text = std::getenv(worker_env::kCpus);
  if (text == nullptr) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const std::string& cpu : split(text, ','))
    CPU_SET(static_cast<std::size_t>(std::atoi(cpu.c_str())), &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0)
    log::warning("cannot bind to CPUs {}: {}", text, std::strerror(errno));
}

// The driver may have raised its own for the many connections it holds.
void restore_open_files() {
  const auto before = static_cast<rlim_t>(env_number(worker_env::kOpenFiles, 0));
  rlimit limit{};
  if (before == 0 || ::getrlimit(RLIMIT_NOFILE, &limit) != 0 || before >= limit.rlim_cur) return;
  limit.rlim_cur = before;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

std::optional<int> worker_main_if_requested(int argc, char** argv) {
  if (argc < 4 || std::strcmp(argv[1], "worker") != 0 || std::strcmp(argv[2], "--run") != 0)
    return std::nullopt;
  return worker_main(argc - 1, argv + 1);
}

int worker_main(int argc, char** argv) try {
  if (argc > 1 && (std::strcmp(argv[1], "--help") == 0 || std::strcmp(argv[1], "-h") == 0)) {
    std::puts(
        "Be a worker of a run; backends start it, not people.\n"
        "usage: tutti worker --run FOLDER --id N [--async GENERATION]");
    return 0;
  }
  WorkerOptions options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (flag == "--run")
      options.run_folder = argv[i + 1];
    else if (flag == "--id")
      options.id = std::atoi(argv[i + 1]);
    else if (flag == "--life")
      options.life = argv[i + 1];
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
  options.death_timeout_s = env_number(worker_env::kDeathTimeout, options.death_timeout_s);
  options.term_grace_s = env_number(worker_env::kTermGrace, options.term_grace_s);
  options.memory_limit = static_cast<std::uint64_t>(env_number(worker_env::kMemoryLimit, 0));
  options.drain_at = env_number(worker_env::kDrainAt, 0);
  if (!options.async_generation.empty() && options.async_name.empty()) {
    std::vector<std::string> command = {own_program().string(), "worker"};
    command.insert(command.end(), argv + 1, argv + argc);
    return supervise_async(command, options);
  }
  register_command_runner();
  const char* temporary = std::getenv(worker_env::kTemporary);
  answer_for_descendants(temporary != nullptr && options.run_folder == temporary
                             ? options.run_folder
                             : std::filesystem::path());
  // SIGTERM means "leave after this item" and is heard by the link; Ctrl-C is the driver's business.
  const SignalWatch signals({SIGTERM}, {SIGINT, SIGPIPE});
  options.term_fd = signals.fd();
  if (const int nice = static_cast<int>(env_number(worker_env::kNice, 0));
      nice != 0 && ::nice(nice) == -1)
    log::warning("cannot change the nice value by {}", nice);
  bind_to_cpus();
  restore_open_files();
  return run_worker(options, options.async_generation.empty() ? run_link : run_async_link);
} catch (...) {  // the top of a process: report_and_exit_code sorts them
  return report_and_exit_code();
}

}  // namespace tutti::parallel
