// The parallel block of config files, for commands that need nothing else of them.
#pragma once

#include <string>
#include <vector>

#include "tutti/parallel/backends/backend.h"

namespace tutti::apps {

// A file is a whole config, or holds nothing but a `parallel:` block; `name` chooses a named one. Without files and
// overrides: env local, one worker. A top-level key that nobody knows is a problem: it may be the block, misspelt.
// Throws ConfigError with every problem; logs warnings unless quiet.
parallel::ParallelSettings read_parallel_block(const std::vector<std::string>& files,
                                               const std::vector<std::string>& overrides,
                                               const std::string& name, bool quiet = false);

// `--config a.yaml b.yaml key=value`: an option that takes several files also takes what follows them.
void part_overrides(std::vector<std::string>& files, std::vector<std::string>& overrides);

}  // namespace tutti::apps
