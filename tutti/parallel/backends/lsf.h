// LSF's units and the readers of its answers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/parallel/backends/jobqueue.h"

namespace tutti::parallel {

// The value of LSF_UNIT_FOR_LIMITS in the text of an lsf.conf, lower case ("mb"); "" when absent.
std::string parse_lsf_conf(std::string_view text);
// `num_bytes` in LSF units ("kb", "mb", "gb", "tb": powers of 1024), rounded up.
std::uint64_t lsf_memory(std::uint64_t num_bytes, std::string_view unit);
// "Job <123> is submitted to queue <q>." wherever a site's banners put it. Tasks are "123[1]" ...
std::vector<std::string> parse_bsub(std::string_view out, int num_jobs);
// bjobs -o "jobid jobindex stat exit_code exit_reason pend_reason delimiter='|'"
std::map<std::string, QueueState> parse_bjobs(std::string_view out);

}  // namespace tutti::parallel
