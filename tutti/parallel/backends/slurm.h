// The readers of Slurm's answers; pure functions, so that odd answers can be tested as text.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/parallel/backends/jobqueue.h"

namespace tutti::parallel {

// A state word of squeue, sacct or scontrol ("CANCELLED by 0", "CANCELLED+") with the reason beside
// it.
QueueState slurm_state(std::string_view state, std::string_view reason);
// sbatch --parsable: "123" or "123;cluster" on a line of its own, whatever a site prints around it.
std::vector<std::string> parse_sbatch(std::string_view out, int num_jobs);
// "0-3,7%2" -> {0,3}, {7,7}
std::vector<std::pair<int, int>> parse_task_ranges(std::string_view text);
std::map<std::string, QueueState> parse_squeue(std::string_view out);  // -o "%i|%T|%N|%r"
std::map<std::string, QueueState> parse_sacct(std::string_view out);   // -P -o JobID,State,ExitCode
std::map<std::string, QueueState> parse_scontrol(std::string_view out);  // -o show job

}  // namespace tutti::parallel
