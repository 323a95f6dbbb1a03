// The readers of OAR's answers.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/parallel/backends/jobqueue.h"

namespace tutti::parallel {

// Every "OAR_JOB_ID=123" line: an array prints one per job.
std::vector<std::string> parse_oarsub(std::string_view out, int num_jobs);
// oarstat -J -f -j ...: a map from job id to its facts.
std::map<std::string, QueueState> parse_oarstat(std::string_view out);

}  // namespace tutti::parallel
