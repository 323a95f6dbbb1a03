// What a worker finds in its environment, beside WorkerLaunch::env. Nothing secret travels this
// way, except where the user asks for it: job scripts are world-readable on many clusters.
#pragma once

namespace tutti::parallel::worker_env {

inline constexpr char kJobId[] = "TUTTI_JOB_ID";                     // the scheduler's own job id
inline constexpr char kThreads[] = "TUTTI_WORKER_THREADS";           // cores / processes
inline constexpr char kMemoryLimit[] = "TUTTI_WORKER_MEMORY_LIMIT";  // bytes, memory / processes
// Seconds without a driver before it leaves.
inline constexpr char kDeathTimeout[] = "TUTTI_WORKER_DEATH_TIMEOUT";
// Unix seconds: finish the running item and leave, because the job's walltime is near.
inline constexpr char kDrainAt[] = "TUTTI_WORKER_DRAIN_AT";
// Seconds that the running item may take after SIGTERM.
inline constexpr char kTermGrace[] = "TUTTI_WORKER_TERM_GRACE";
inline constexpr char kInterface[] = "TUTTI_WORKER_INTERFACE";  // network to reach the driver by
inline constexpr char kNice[] = "TUTTI_WORKER_NICE";
inline constexpr char kCpus[] = "TUTTI_WORKER_CPUS";      // "0,2,4"
inline constexpr char kCgroup[] = "TUTTI_WORKER_CGROUP";  // "0": make none
// Set by a worker for all that it starts and that shall die with it.
inline constexpr char kMark[] = "TUTTI_WORKER_MARK";
// The run folder, where it is the driver's own and goes with it, also when the driver is killed. Not just "yes": a
// driver that an item starts inherits it.
inline constexpr char kTemporary[] = "TUTTI_WORKER_TEMPORARY_RUN";
inline constexpr char kOpenFiles[] = "TUTTI_WORKER_OPEN_FILES";  // soft limit; the driver has more

}  // namespace tutti::parallel::worker_env
