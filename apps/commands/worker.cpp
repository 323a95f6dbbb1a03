// tutti worker: the stock worker that backends start; not for people.
#include "tutti/parallel/worker/worker.h"

#include <cstdio>
#include <string_view>

#include "apps/command.h"

namespace tutti::apps {

int run_worker(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word != "--help" && word != "-h") continue;
    std::puts(
        "Be a worker of a run. Backends start workers by themselves; by hand only to look for a "
        "fault.\n"
        "Usage: tutti worker --run FOLDER --id N\n\n"
        "  --run FOLDER   the run's folder, with the driver's address and keys\n"
        "  --id N         number of this worker in the run, from 0\n"
        "  --async TEXT   the asynchronous run it belongs to\n"
        "  --name TEXT    its name there\n\n"
        "example:\n"
        "  tutti parallel script --config conf/parallel_slurm.yaml    # shows how workers are "
        "started");
    return 0;
  }
  return parallel::worker_main(argc, argv);
}

}  // namespace tutti::apps
