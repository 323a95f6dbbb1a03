// Workers on this machine, shared by env local and local_gpu. Internal to the room.
#pragma once

#include <csignal>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/file.h"
#include "tutti/core/text.h"
#include "tutti/parallel/backends/backends.h"

namespace tutti::parallel {

struct LocalOptions {
  std::optional<int> threads_per_worker;
  bool processes = true;
  config::Node memory_limit;  // "4GB", 0.25 (of the machine), auto or null: none
  std::string local_directory;
  std::map<std::string, std::string> env;
  int niceness = 0;
  bool cpu_affinity = false;
  config::Duration death_timeout{60};
  config::Node cuda_visible_devices;  // local_gpu
  config::Node device_memory_limit;   // local_gpu
};

config::Schema<LocalOptions> local_schema(const std::string& env);
std::uint64_t memory_limit_bytes(const config::Node& node);  // 0: none

class LocalBackend : public Backend {
 public:
  LocalBackend(const ParallelSettings& settings, const WorkerLaunch& launch);
  ~LocalBackend() override;
  std::vector<JobStatus> submit(int n) override;
  std::vector<JobStatus> poll() override;
  bool cancel(const std::vector<std::string>& job_ids = {}) noexcept override;
  std::vector<ScriptPreview> scripts(int n) const override;

 protected:
  // The environment of the worker in `slot` (0 .. n_workers-1).
  virtual std::map<std::string, std::string> worker_env(int slot) const;
  std::filesystem::path log_path(int id) const;

  LocalOptions options_;
  WorkerLaunch launch_;
  int n_workers_ = 1;

 private:
  struct Job {
    int id = 0;
    int slot = 0;
    bool over = false;
    std::string name;
    Process process;
  };
  Command worker_command(int id, int slot) const;
  int free_slot() const;

  std::vector<Job> jobs_;
  int next_id_ = launch_.first_worker_id;
};

}  // namespace tutti::parallel
