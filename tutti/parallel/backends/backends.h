// The table of `env` names: each backend file offers one pair of functions, named here, and one row
// in backend.cpp. Internal to the room.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/config/problem.h"
#include "tutti/config/schema.h"
#include "tutti/parallel/backends/backend.h"

namespace tutti::parallel {

struct BackendRow {
  const char* env;
  // Checks settings.options (and n_workers where the backend knows a limit); reports every problem.
  void (*check)(const ParallelSettings& settings, const config::Node& block,
                config::Problems& problems);
  std::unique_ptr<Backend> (*create)(const ParallelSettings& settings, const WorkerLaunch& launch,
                                     CommandRunner& runner);
  // The table of `options` for the reference.
  config::SchemaInfo (*options)(const std::string& env);
};

const std::vector<BackendRow>& backend_rows();

// Options of Dask's own classes that have no meaning without Python or its web server: accepted
// with a notice, so that existing config files run.
const std::vector<std::string>& options_without_meaning();
// Drops those (with a warning) and returns the block that remains.
config::Node drop_options_without_meaning(const config::Node& options, config::Problems& problems);

config::SchemaInfo ssh_options_info();   // ssh_options.cpp
config::SchemaInfo kube_options_info();  // kube_options.cpp

// local_gpu.cpp
config::SchemaInfo local_gpu_options_info(const std::string& env);
void check_local_gpu(const ParallelSettings& settings, const config::Node& block,
                     config::Problems& problems);
std::unique_ptr<Backend> make_local_gpu(const ParallelSettings& settings,
                                        const WorkerLaunch& launch, CommandRunner& runner);

// local.cpp
config::SchemaInfo local_options_info(const std::string& env);
void check_local(const ParallelSettings& settings, const config::Node& block,
                 config::Problems& problems);
std::unique_ptr<Backend> make_local(const ParallelSettings& settings, const WorkerLaunch& launch,
                                    CommandRunner& runner);

}  // namespace tutti::parallel
