// env: ssh. Workers on machines reachable by the OpenSSH client; nothing is needed there but the
// `tutti` program.
//
//   parallel:
//     env: ssh
//     n_workers: 6
//     options:
//       hosts: [node1, node2, node3]
//       connect_options: {username: me, client_keys: ~/.ssh/id_ed25519}
//       worker_options: {n_workers: 2, nthreads: 4}
//
// One connection per host starts all its workers (sshd limits connections, not processes). The
// remote side watches its standard input: when the connection goes, for whatever reason, the
// workers are ended, and they also leave by themselves after `death_timeout`. So nothing is left
// running. The system's ssh is called, so ~/.ssh/config, agents, jump hosts and every way of
// logging in work; it never asks (BatchMode). As in Dask, a first host that is this very machine is
// the driver's place and gets no worker when there are others.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/core/clock.h"
#include "tutti/core/file.h"
#include "tutti/parallel/backends/backend.h"

namespace tutti::parallel {

struct SshHost {
  std::string name;
  std::vector<std::string> arguments;  // of ssh, before the host: {"-l", "me", "-p", "2222"}
};

struct SshSettings {
  std::vector<SshHost> hosts;  // those that get workers
  int workers_per_host = 1;
  int threads = 0;  // 0: not limited
  std::uint64_t memory_limit = 0;
  double death_timeout = 60;
  std::string remote_folder;                // empty: the driver's working folder
  std::vector<std::string> remote_program;  // instead of the path of this tutti
  std::string local_directory;
  std::map<std::string, std::string> env;
  int connect_retries = 3;
};

// Reads `parallel.options` of env ssh; adds every problem and warning.
SshSettings parse_ssh_options(const config::Node& options, int n_workers,
                              config::Problems& problems);
// What runs on the host, for `sh -c`. Its first line of input is the connect variable
// (wire/secrets.h), which its workers find in their environment; the end of its input means that the
// connection is gone.
std::string ssh_remote_script(const SshSettings& settings, const WorkerLaunch& launch,
                              const std::vector<int>& worker_ids);
std::vector<std::string> ssh_command(const SshHost& host, const std::string& remote_script);

void check_ssh(const ParallelSettings& settings, const config::Node& options,
               config::Problems& problems);
std::unique_ptr<Backend> make_ssh(const ParallelSettings& settings, const WorkerLaunch& launch,
                                  CommandRunner& runner);

}  // namespace tutti::parallel
