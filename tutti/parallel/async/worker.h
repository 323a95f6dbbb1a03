// The worker's side of an asynchronous run. Internal to the room.
#pragma once

#include <string>
#include <vector>

#include "tutti/parallel/worker/worker_state.h"

namespace tutti::parallel {

// In place of the wire: claims pieces, hands them to the compute thread, journals what it gives
// back.
LinkFunction run_async_link;

// A worker that asks to be started again: its compute thread hangs in an item.
inline constexpr int kRestartMe = 75;

// Runs `command` (this program as a worker, without --name) and runs it again when it dies, for
// there is no driver to replace it. Gives up, and stops the run, after three deaths in a row before
// the env was built. SIGTERM is passed on.
int supervise_async(const std::vector<std::string>& command, const WorkerOptions& options);

}  // namespace tutti::parallel
