// PBS (OpenPBS, PBS Pro, Torque) and Moab: the script they share and the readers of their answers.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/parallel/backends/jobqueue.h"

namespace tutti::parallel {

// The #PBS script of one submission; Moab reads the same.
SubmissionText pbs_script(SchedulerKind kind, const JobQueueOptions& options,
                          const WorkerLaunch& launch, const Submission& submission);
// "1234.server", "1234[].server", alone on the last such line; the server stays, for qdel.
std::vector<std::string> parse_qsub(std::string_view out, int num_jobs);
// qstat -x -f -F json, or the attribute list of qstat -x -f (Torque, old PBS).
std::map<std::string, QueueState> parse_qstat_json(std::string_view out);
std::map<std::string, QueueState> parse_qstat_full(std::string_view out);
QueueState pbs_state(std::string_view state, std::string_view exit_status,
                     std::string_view comment);

// msub: "1234" or "Moab.1234", alone on its line.
std::string parse_msub(std::string_view out);
// checkjob: "State: Idle" and what follows.
QueueState parse_checkjob(std::string_view out);

}  // namespace tutti::parallel
