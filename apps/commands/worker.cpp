// tutti worker: the stock worker that backends start; not for people.
#include "tutti/parallel/worker/worker.h"
#include "apps/command.h"

namespace tutti::apps {

int run_worker(int argc, char** argv) { return parallel::worker_main(argc, argv); }

}  // namespace tutti::apps
