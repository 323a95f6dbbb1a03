// Shared between the files that implement detect(). Not a public header.
#pragma once

#include <optional>
#include <string>

#include "tutti/launch/rank.h"

namespace tutti::launch::internal {

// The environment with the launcher's name for errors. Keeps a reference.
class Variables {
 public:
  Variables(const Environment& environment, std::string launcher)
      : environment_(environment), launcher_(std::move(launcher)) {}
  bool has(const char* name) const;  // set and not empty
  std::string text(const char* name, const std::string& fallback = {}) const;
  int number(const char* name) const;  // ConfigError when missing or not a number
  std::optional<int> optional_number(const char* name) const;

 private:
  const Environment& environment_;
  std::string launcher_;
};

// ConfigError "devices: got 4, but <source>".
void check_equal(const char* key, std::optional<int> wanted, int found, const std::string& source,
                 const std::string& fix = {});
void check_world(const LaunchRequest& request, const RankContext& rank);
void assign_device(const LaunchRequest& request, RankContext& rank);
void take_master(const Variables& variables, RankContext& rank);

bool in_slurm(const Environment& environment);
// MPICH's Hydra starts one proxy per node with srun; its ranks then see the proxies' SLURM_*.
bool hydra_in_slurm(const Environment& environment);
Detection from_slurm(const Environment& environment, const LaunchRequest& request);

}  // namespace tutti::launch::internal
