// The readers of Grid Engine's answers.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/parallel/backends/jobqueue.h"

namespace tutti::parallel {

// qsub -terse: "12" or "12.1-4:1", alone on its line. Task ids are "12.1" ...
std::vector<std::string> parse_qsub_terse(std::string_view out, int num_jobs);
// qstat -xml -g d; waiting tasks may come as "3-10:1".
std::map<std::string, QueueState> parse_qstat_xml(std::string_view out);
// qacct -j ID [-t TASK]: exit_status and failed of the last record.
QueueState parse_qacct(std::string_view out);

}  // namespace tutti::parallel
