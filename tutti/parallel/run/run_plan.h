// What a run will do, with the settings' defaults filled in: read by the driver of a run and by the
// workers of one that has none, so that both do the same.
//
//   RunPlan plan = make_plan(settings, job, options, folder.remaining());
//
// Internal to the room.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/parallel/backends/backend.h"
#include "tutti/parallel/client.h"
#include "tutti/parallel/wire/job_spec.h"

namespace tutti::parallel {

struct RunPlan {
  JobSpec spec;                        // as workers get it: batch size, time limit, libraries
  std::vector<wire::IndexRange> work;  // in the order in which items should start
  std::uint64_t num_items = 0;         // of `work`
  int n_workers = 1;                   // never more than items
  int max_retries = 3;
  std::string on_error;
};

RunPlan make_plan(const ParallelSettings& settings, const JobSpec& job, const RunOptions& options,
                  std::vector<wire::IndexRange> work);

}  // namespace tutti::parallel
