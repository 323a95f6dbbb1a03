// One piece of work cut into many, for as many threads as help.
//
//   in_threads(files.size(), 8, [&](std::size_t i) { read(files[i]); });
//
// The pieces are begun in order, each by whoever is free; the caller's thread works too. Returns
// when all are done. What a piece throws is thrown here (the first that did); pieces that were not
// begun by then are left out.
#pragma once

#include <cstddef>
#include <functional>

namespace tutti {

void in_threads(std::size_t count, std::size_t num_threads,
                const std::function<void(std::size_t)>& work);
// Processors this process may use: its affinity, and the quota of its container (cgroup v2).
int usable_cpus();
// The same, but at most `limit`.
std::size_t threads_at_most(std::size_t limit);

}  // namespace tutti
