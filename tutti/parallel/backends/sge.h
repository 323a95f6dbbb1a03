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
// qstat -j ID: the first line of "scheduling info", why the job waits; "" when there is none.
std::string parse_scheduling_info(std::string_view out);
// qhost: memory of the host that has most, in bytes and as qhost writes it; 0 when it names none.
struct LargestHost {
  std::uint64_t bytes = 0;
  std::string name;
  std::string memory;
};
LargestHost parse_qhost(std::string_view out);

}  // namespace tutti::parallel
