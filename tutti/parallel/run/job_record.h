// What a driver has in a scheduler's queue, noted in its run folder (.tutti/jobs.json), so that the
// next driver there finds what a killed one has left and takes it out of the queue. Internal to the
// room.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tutti::parallel {

struct JobRecord {
  std::string env;   // whose ids these are
  std::string life;  // of the driver (backend.h)
  std::vector<std::string> job_ids;

  static std::filesystem::path path(const std::filesystem::path& run_folder);
  // Empty when there is none, or when it cannot be read: it only helps to clean up.
  static JobRecord read(const std::filesystem::path& run_folder);
  void write(const std::filesystem::path& run_folder) const;
};

}  // namespace tutti::parallel
