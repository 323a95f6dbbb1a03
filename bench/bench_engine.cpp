// The engine under the contract of the side-by-side harness: --case startup|noop|kill|skew, one
// JSON line on stdout. See docs/benchmarks-parallel.md.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <set>
#include <thread>

#include "tutti/core/file.h"
#include "tutti/parallel/parallel.h"

namespace {

using namespace tutti;
using namespace tutti::parallel;

Json noop(std::uint64_t index) { return index; }

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

Json skewed(std::uint64_t index) {
  sleep_for(index < 200 ? 0.005 : 1.0);
  return index;
}

// Every execution leaves a line "index pid" in a shared log.
Json logged(std::uint64_t index) {
  static const int fd =
      ::open(std::getenv("BENCH_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  char line[64];
  const int n = std::snprintf(line, sizeof line, "%llu %d\n",
                              static_cast<unsigned long long>(index), ::getpid());
  [[maybe_unused]] const auto written = ::write(fd, line, static_cast<std::size_t>(n));
  sleep_for(std::atof(std::getenv("BENCH_DUR")));
  return index;
}

TUTTI_REGISTER_FUNCTION(noop);
TUTTI_REGISTER_FUNCTION(skewed);
TUTTI_REGISTER_FUNCTION(logged);

double unix_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double status_mb(const char* key) {
  std::ifstream file("/proc/self/status");
  std::string line;
  while (std::getline(file, line))
    if (line.rfind(key, 0) == 0) return std::atof(line.c_str() + std::strlen(key) + 1) / 1024;
  return 0;
}

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Arguments {
  std::string test_case = "noop";
  std::uint64_t n = 10000;
  std::uint64_t chunk = 1;
  int workers = 2;
  double at = 0.3;
  double dur = 0.01;
  int signal = SIGKILL;
};

struct Timed {
  double seconds = 0;
  bool ok = true;
  RunReport report;
};

// Results in order, kept as numbers: what a caller of parallel_map would hold.
Timed run(Client& client, const std::string& function, std::uint64_t n,
          const std::function<void(const Outcome&)>& also = nullptr) {
  JobSpec job;
  job.function = function;
  std::vector<std::int64_t> results(n, -1);
  Timed timed;
  const double begin = unix_now();
  timed.report = client.run(job, {.indices = range(n)}, [&](const Outcome& outcome) {
    results[outcome.index] = std::strtoll(std::string(outcome.payload).c_str(), nullptr, 10);
    if (also) also(outcome);
  });
  timed.seconds = unix_now() - begin;
  for (std::uint64_t i = 0; i < n; ++i)
    timed.ok = timed.ok && results[i] == static_cast<std::int64_t>(i);
  return timed;
}

Json bench_startup(Client& client) {
  const Timed timed = run(client, "noop", 1);
  const char* begin = std::getenv("BENCH_T0");
  return {{"first_result_s", unix_now() - (begin != nullptr ? std::atof(begin) : 0)},
          {"ok", timed.ok}};
}

Json bench_noop(Client& client, const Arguments& arguments) {
  run(client, "noop", 200 * std::max<std::uint64_t>(1, arguments.chunk));
  const double cpu = cpu_seconds();
  const Timed timed = run(client, "noop", arguments.n);
  return {{"seconds", timed.seconds},
          {"items_per_s", static_cast<double>(arguments.n) / timed.seconds},
          {"us_per_item", 1e6 * timed.seconds / static_cast<double>(arguments.n)},
          {"driver_cpu_s", cpu_seconds() - cpu},
          {"driver_rss_mb", status_mb("VmRSS")},
          {"driver_hwm_mb", status_mb("VmHWM")},
          {"ok", timed.ok}};
}

Json bench_skew(Client& client) {
  run(client, "noop", 200);
  const Timed timed = run(client, "skewed", 204);
  return {{"seconds", timed.seconds}, {"vs_ideal", timed.seconds / 2.5}, {"ok", timed.ok}};
}

Json bench_kill(Client& client, const Arguments& arguments, const std::string& log) {
  run(client, "noop", 200);
  const Timed base = run(client, "logged", arguments.n);
  [[maybe_unused]] const int cut = ::truncate(log.c_str(), 0);
  std::uint64_t done = 0;
  double sent = 0;
  double first_other = 0;
  int victim = -1;
  int max_worker = 0;
  const Timed timed = run(client, "logged", arguments.n, [&](const Outcome& outcome) {
    ++done;
    if (victim >= 0 && outcome.worker > max_worker && first_other == 0)
      first_other = unix_now() - sent;
    if (victim < 0) max_worker = std::max(max_worker, outcome.worker);
    if (victim >= 0 || static_cast<double>(done) < arguments.at * static_cast<double>(arguments.n))
      return;
    // The worker that wrote the last line is alive and busy.
    std::ifstream file(log);
    std::string index;
    std::string pid;
    while (file >> index >> pid) victim = std::atoi(pid.c_str());
    sent = unix_now();
    ::kill(victim, arguments.signal);
  });
  std::ifstream file(log);
  std::set<std::string> distinct;
  std::string index;
  std::string pid;
  std::uint64_t executions = 0;
  for (; file >> index >> pid; ++executions) distinct.insert(index);
  return {{"base_s", base.seconds},
          {"total_s", timed.seconds},
          {"extra_s", timed.seconds - base.seconds},
          {"first_on_new_s", first_other},
          {"executions", executions},
          {"distinct", distinct.size()},
          {"reexecuted", executions - distinct.size()},
          {"ok", base.ok && timed.ok && distinct.size() == arguments.n}};
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = worker_main_if_requested(argc, argv)) return *code;
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--static") continue;
    if (i + 1 >= argc) break;
    const std::string value = argv[++i];
    if (flag == "--case") arguments.test_case = value;
    if (flag == "--n") arguments.n = std::strtoull(value.c_str(), nullptr, 10);
    if (flag == "--chunk") arguments.chunk = std::strtoull(value.c_str(), nullptr, 10);
    if (flag == "--workers") arguments.workers = std::atoi(value.c_str());
    if (flag == "--at") arguments.at = std::atof(value.c_str());
    if (flag == "--dur") arguments.dur = std::atof(value.c_str());
    if (flag == "--signal") arguments.signal = value == "STOP" ? SIGSTOP : SIGKILL;
  }
  const TempFolder folder("bench-engine");
  const std::string log = (folder.path() / "log").string();
  ::setenv("BENCH_LOG", log.c_str(), 1);
  ::setenv("BENCH_DUR", std::to_string(arguments.dur).c_str(), 1);
  ParallelSettings settings;
  settings.n_workers = arguments.workers;
  Json line = {{"engine", "tutti"},
               {"case", arguments.test_case},
               {"workers", arguments.workers},
               {"n", arguments.n},
               {"chunk", arguments.chunk}};
  {
    Client client(settings);
    Json measured;
    if (arguments.test_case == "startup")
      measured = bench_startup(client);
    else if (arguments.test_case == "skew")
      measured = bench_skew(client);
    else if (arguments.test_case == "kill")
      measured = bench_kill(client, arguments, log);
    else
      measured = bench_noop(client, arguments);
    line.update(measured);
  }
  std::printf("%s\n", line.dump().c_str());
  return 0;
}
