// What a driver has in a scheduler's queue, noted in its run folder (.tutti/jobs.json), so that the
// next driver there finds what a killed one has left and takes it out of the queue. Internal to the
// room.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/parallel/backends/backend.h"

namespace tutti::parallel {

struct JobRecord {
  ParallelSettings settings;  // whose ids these are, and how to talk to it
  std::string life;           // of the driver (backend.h)
  std::vector<std::string> job_ids;

  static std::filesystem::path path(const std::filesystem::path& run_folder);
  // Empty when there is none, or when it cannot be read: it only helps to clean up.
  static JobRecord read(const std::filesystem::path& run_folder);
  void write(const std::filesystem::path& run_folder) const;
  // Ends what is still there of it.
  LeftOver end_jobs(const std::filesystem::path& run_folder, CommandRunner& runner) const;
};

// Ends what a driver of this folder has noted and is still there, and forgets the record when nothing may be
// left. REQUIRES: no driver is at work there.
LeftOver cancel_left_over(const std::filesystem::path& run_folder, CommandRunner& runner);

}  // namespace tutti::parallel
