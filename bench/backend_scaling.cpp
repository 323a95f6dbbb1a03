// One row of backend_scaling.sh: 1,000 items of 20 ms on a parallel block; the whole call, with
// start-up, queueing, merge and, when synchronous, the closing of the pool.
//
//   bench_backend_scaling FOLDER sync|async '{env: slurm, n_workers: 4, options: {...}}'
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "tutti/config/load.h"
#include "tutti/core/error.h"
#include "tutti/parallel/async/run.h"
#include "tutti/parallel/parallel.h"
#include "tutti/parallel/run/folder_run.h"
#include "tutti/parallel/worker/worker.h"

namespace {

using namespace tutti;
using namespace tutti::parallel;

Json nap(std::uint64_t index) {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return index;
}
TUTTI_REGISTER_FUNCTION(nap);

double seconds_of(const std::filesystem::path& path, bool async, const ParallelSettings& settings) {
  const auto begin = std::chrono::steady_clock::now();
  const Indices items = range(1000);
  JobSpec job;
  job.function = "nap";
  {
    RunFolder folder(path, {{"function", "nap"}}, items, {});
    if (async) {
      submit_async(folder, settings, job, items, {}, {});
    } else {
      Client client(settings, {.run_folder = path});
      run_in_folder(folder, [&]() -> Client& { return client; }, job, items, {});
    }
  }
  while (read_manifest(path).value("state", "") != "done")
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) try {
  if (const auto code = worker_main_if_requested(argc, argv)) return *code;
  if (argc != 4) throw ConfigError("usage: bench_backend_scaling FOLDER sync|async BLOCK");
  config::Problems problems;
  const auto settings = parse_parallel(config::parse_yaml(argv[3], "block"), problems);
  problems.throw_if_any();
  std::printf("%.3f\n", seconds_of(argv[1], std::strcmp(argv[2], "async") == 0, settings));
  return 0;
} catch (...) {
  return tutti::report_and_exit_code();
}
