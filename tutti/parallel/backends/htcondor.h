// The readers of HTCondor's answers.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/parallel/backends/jobqueue.h"

namespace tutti::parallel {

// condor_submit -terse: "12.0 - 12.3".
std::vector<std::string> parse_condor_submit(std::string_view out, int num_jobs);
// condor_q -json or condor_history -json; nothing at all means no job.
std::map<std::string, QueueState> parse_condor_json(std::string_view out);
// condor_status -af Machine TotalMemory: the most MiB a machine has, and its line; 0: no machines.
std::pair<std::uint64_t, std::string> parse_condor_memory(std::string_view out);

}  // namespace tutti::parallel
