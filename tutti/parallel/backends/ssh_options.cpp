// The options of env ssh: Dask's SSHCluster names onto the OpenSSH client.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "tutti/config/schema.h"
#include "tutti/core/program.h"
#include "tutti/core/text.h"
#include "tutti/core/units.h"
#include "tutti/parallel/backends/backends.h"
#include "tutti/parallel/backends/ssh.h"

namespace tutti::parallel {
namespace {

using config::Node;
using config::Problems;
using config::Schema;

struct RawSsh {
  std::vector<std::string> hosts;
  Node connect_options;
  Node worker_options;
  Node scheduler_options, worker_class, security, silence_logs, asynchronous, loop,
      shutdown_on_close, scheduler_sync_interval, shutdown_scheduler;
  std::optional<std::string> remote_python;
  std::string remote_folder;
  std::optional<std::string> remote_program;
  std::vector<std::string> ssh_options;
  std::map<std::string, std::string> env;
  int connect_retries = 3;
  // the old class's names
  std::vector<std::string> worker_addrs;
  std::optional<std::string> ssh_username, ssh_private_key, memory_limit, local_directory;
  std::optional<int> ssh_port, nthreads, nprocs;
  Node scheduler_addr, scheduler_port, nohost, logdir, worker_port, nanny_port, remote_dask_worker;
};

Schema<RawSsh> ssh_schema() {
  Schema<RawSsh> s("ssh", "Workers on machines reachable by ssh.");
  s.field("hosts", &RawSsh::hosts,
          "hosts that get workers; a first one that is this machine is the driver's place");
  s.field("connect_options", &RawSsh::connect_options,
          "how to log in: a map, or a list with one map per host");
  s.field("worker_options", &RawSsh::worker_options,
          "n_workers (per host), nthreads, memory_limit, local_directory, death_timeout, env");
  s.field("remote_folder", &RawSsh::remote_folder,
          "folder to work in on the hosts; default: the one the driver works in");
  s.field("remote_program", &RawSsh::remote_program,
          "the tutti program on the hosts; default: the path of this one");
  s.field("remote_python", &RawSsh::remote_python,
          "Dask's name; a path of a tutti program is taken as remote_program");
  s.field("ssh_options", &RawSsh::ssh_options,
          "more options of ssh_config, as in ssh -o: [\"ProxyJump=gate\"]");
  s.field("env", &RawSsh::env, "environment variables of the workers");
  s.field("connect_retries", &RawSsh::connect_retries, "times a dead connection is made again",
          {.min = 0});
  for (const auto& [key, member] : std::initializer_list<std::pair<const char*, Node RawSsh::*>>{
           {"scheduler_options", &RawSsh::scheduler_options},
           {"worker_class", &RawSsh::worker_class},
           {"security", &RawSsh::security},
           {"silence_logs", &RawSsh::silence_logs},
           {"asynchronous", &RawSsh::asynchronous},
           {"loop", &RawSsh::loop},
           {"shutdown_on_close", &RawSsh::shutdown_on_close},
           {"scheduler_sync_interval", &RawSsh::scheduler_sync_interval},
           {"shutdown_scheduler", &RawSsh::shutdown_scheduler},
           {"scheduler_addr", &RawSsh::scheduler_addr},
           {"scheduler_port", &RawSsh::scheduler_port},
           {"nohost", &RawSsh::nohost},
           {"logdir", &RawSsh::logdir},
           {"worker_port", &RawSsh::worker_port},
           {"nanny_port", &RawSsh::nanny_port},
           {"remote_dask_worker", &RawSsh::remote_dask_worker}})
    s.field(key, member, "of Dask; accepted, has no effect");
  s.field("worker_addrs", &RawSsh::worker_addrs, "old name of hosts");
  s.field("ssh_username", &RawSsh::ssh_username, "old name of connect_options.username");
  s.field("ssh_port", &RawSsh::ssh_port, "old name of connect_options.port");
  s.field("ssh_private_key", &RawSsh::ssh_private_key, "old name of connect_options.client_keys");
  s.field("nthreads", &RawSsh::nthreads, "old name of worker_options.nthreads");
  s.field("nprocs", &RawSsh::nprocs, "old name of worker_options.n_workers");
  s.field("memory_limit", &RawSsh::memory_limit, "old name of worker_options.memory_limit");
  s.field("local_directory", &RawSsh::local_directory,
          "old name of worker_options.local_directory");
  s.elsewhere("n_workers",
              "belongs one level up (parallel.n_workers), or in worker_options.n_workers for the "
              "number per host");
  for (const char* key : {"queue", "account", "project", "walltime", "cores", "memory", "processes",
                          "job_extra_directives", "job_name"})
    s.elsewhere(key, "is an option of batch schedulers, not of ssh");
  s.elsewhere("password",
              "goes into no config file: use a key (connect_options.client_keys) or an ssh agent");
  return s;
}

// One connect_options map as arguments of ssh.
std::vector<std::string> connect_arguments(const Node& options, Problems& problems) {
  std::vector<std::string> out;
  const auto option = [&](const std::string& name, const std::string& value) {
    out.insert(out.end(), {"-o", name + "=" + value});
  };
  if (options.is_null()) return out;
  if (!options.is_map()) {
    problems.add(options, "got " + options.describe_value() + ", expected a map");
    return out;
  }
  const auto seconds = [&](const Node& node) {
    const auto value = node.is_scalar() ? parse_duration(node.raw()) : std::nullopt;
    if (!value) problems.add(node, "got " + node.describe_value() + ", expected seconds");
    return fmt::format("{:.0f}", std::max(1.0, value.value_or(1)));
  };
  static const std::vector<std::string> kKnown = {"username",
                                                  "port",
                                                  "client_keys",
                                                  "known_hosts",
                                                  "config",
                                                  "tunnel",
                                                  "keepalive_interval",
                                                  "keepalive_count_max",
                                                  "connect_timeout",
                                                  "login_timeout",
                                                  "agent_path",
                                                  "agent_forwarding",
                                                  "proxy_command",
                                                  "preferred_auth",
                                                  "host_key_alias",
                                                  "local_addr",
                                                  "compression_algs",
                                                  "encryption_algs",
                                                  "gss_auth",
                                                  "family",
                                                  "host_based_auth",
                                                  "public_key_auth"};
  std::map<std::string, std::string> refused = {
      {"password", "goes into no config file: use a key (client_keys) or an ssh agent"},
      {"passphrase", "goes into no config file: load the key into an ssh agent"},
      {"pkcs11_pin", "goes into no config file: load the key into an ssh agent"}};
  config::check_unknown_keys(options, kKnown, refused, problems);
  for (const auto& [key, node] : options.items()) {
    if (key == "known_hosts") {  // null in asyncssh: do not check host keys
      if (node.is_null()) {
        option("StrictHostKeyChecking", "no");
        option("UserKnownHostsFile", "/dev/null");
        option("LogLevel", "ERROR");
      } else if (node.is_scalar()) {
        option("UserKnownHostsFile", node.raw());
      } else {
        problems.add(node, "got " + node.describe_value() +
                               ", expected the path of a known_hosts file or null");
      }
      continue;
    }
    if (node.is_null()) continue;
    if (key == "client_keys" && node.is_list()) {
      for (const Node& element : node.elements())
        out.insert(out.end(), {"-i", element.as<std::string>()});
      option("IdentitiesOnly", "yes");
      continue;
    }
    if (key == "config" && node.is_list()) {
      if (node.size() == 1)
        out.insert(out.end(), {"-F", node[0].as<std::string>()});
      else
        problems.add(node, "got " + node.describe_value() + ", but ssh reads one config file",
                     "give one file");
      continue;
    }
    if (!node.is_scalar()) {
      problems.add(node, "got " + node.describe_value() + ", expected one value");
      continue;
    }
    const std::string& value = node.raw();
    if (key == "username")
      out.insert(out.end(), {"-l", value});
    else if (key == "port")
      out.insert(out.end(), {"-p", std::to_string(node.as<int>())});
    else if (key == "client_keys") {
      out.insert(out.end(), {"-i", value});
      option("IdentitiesOnly", "yes");
    } else if (key == "config")
      out.insert(out.end(), {"-F", value});
    else if (key == "tunnel")
      out.insert(out.end(), {"-J", value});
    else if (key == "keepalive_interval")
      option("ServerAliveInterval", seconds(node));
    else if (key == "keepalive_count_max")
      option("ServerAliveCountMax", value);
    else if (key == "connect_timeout" || key == "login_timeout")
      option("ConnectTimeout", seconds(node));
    else if (key == "agent_path")
      option("IdentityAgent", value);
    else if (key == "agent_forwarding")
      option("ForwardAgent", node.as<bool>() ? "yes" : "no");
    else if (key == "proxy_command")
      option("ProxyCommand", value);
    else if (key == "preferred_auth")
      option("PreferredAuthentications", value);
    else if (key == "host_key_alias")
      option("HostKeyAlias", value);
    else if (key == "local_addr")
      option("BindAddress", value);
    else if (key == "compression_algs")
      option("Compression", value == "none" ? "no" : "yes");
    else if (key == "encryption_algs")
      option("Ciphers", value);
    else if (key == "gss_auth")
      option("GSSAPIAuthentication", node.as<bool>() ? "yes" : "no");
    else if (key == "host_based_auth")
      option("HostbasedAuthentication", node.as<bool>() ? "yes" : "no");
    else if (key == "public_key_auth")
      option("PubkeyAuthentication", node.as<bool>() ? "yes" : "no");
    else if (key == "family")
      option("AddressFamily", value == "inet6" ? "inet6" : value == "inet" ? "inet" : "any");
  }
  return out;
}

bool is_this_machine(const std::string& host) {
  return host == "localhost" || host == "127.0.0.1" || host == "::1" || host == host_name();
}

void read_worker_options(const Node& node, SshSettings& out, std::optional<int>& per_host,
                         Problems& problems) {
  if (node.is_null()) return;
  if (!node.is_map()) {
    problems.add(node, "got " + node.describe_value() + ", expected a map");
    return;
  }
  config::check_unknown_keys(
      node,
      {"n_workers", "nthreads", "memory_limit", "local_directory", "death_timeout", "env",
       "lifetime", "lifetime_stagger", "lifetime_restart", "nanny", "preload", "protocol",
       "interface", "name", "resources"},
      {}, problems);
  for (const auto& [key, value] : node.items()) {
    if (value.is_null()) continue;
    if (key == "n_workers")
      per_host = value.as<int>();
    else if (key == "nthreads")
      out.threads = value.as<int>();
    else if (key == "memory_limit")
      out.memory_limit = value.raw() == "auto" ? 0 : value.as<config::Bytes>().count;
    else if (key == "local_directory")
      out.local_directory = value.as<std::string>();
    else if (key == "death_timeout")
      out.death_timeout = value.as<config::Duration>().seconds;
    else if (key == "env")
      out.env = value.as<std::map<std::string, std::string>>();
    else
      problems.warn(value, "has no effect: it is an option of Dask's worker", "remove it");
  }
  if (per_host && *per_host < 1)
    problems.add(node["n_workers"], fmt::format("got {}, expected 1 or more", *per_host));
}

}  // namespace

SshSettings parse_ssh_options(const Node& options, int n_workers, Problems& problems) {
  SshSettings out;
  RawSsh raw = ssh_schema().parse(options, problems);
  const auto old_name = [&](const char* key, const char* better) {
    if (!options[key].is_null())
      problems.warn(options[key], fmt::format("'{}' is an old name", key),
                    fmt::format("use '{}'", better));
  };
  for (const auto& [key, better] : std::initializer_list<std::pair<const char*, const char*>>{
           {"worker_addrs", "hosts"},
           {"ssh_username", "connect_options.username"},
           {"ssh_port", "connect_options.port"},
           {"ssh_private_key", "connect_options.client_keys"},
           {"nthreads", "worker_options.nthreads"},
           {"nprocs", "worker_options.n_workers"},
           {"memory_limit", "worker_options.memory_limit"},
           {"local_directory", "worker_options.local_directory"}})
    old_name(key, better);
  for (const Node* node :
       {&raw.scheduler_options, &raw.worker_class, &raw.security, &raw.silence_logs,
        &raw.asynchronous, &raw.loop, &raw.shutdown_on_close, &raw.scheduler_sync_interval,
        &raw.shutdown_scheduler, &raw.scheduler_addr, &raw.scheduler_port, &raw.nohost, &raw.logdir,
        &raw.worker_port, &raw.nanny_port, &raw.remote_dask_worker})
    if (!node->is_null())
      problems.warn(*node, "has no effect: it is about Dask's own processes", "remove it");
  if (raw.hosts.empty()) raw.hosts = raw.worker_addrs;
  if (raw.hosts.empty()) {
    problems.add(options, "key 'hosts' is missing or empty", "add hosts: [node1, node2]");
    return out;
  }
  for (const std::string& host : raw.hosts)
    if (host.empty() || host[0] == '-' || split_words(host).size() != 1)
      problems.add(options["hosts"], fmt::format("got '{}', expected a host name", host));

  std::vector<std::string> shared;  // arguments every connection has
  for (const std::string& option : raw.ssh_options) shared.insert(shared.end(), {"-o", option});
  if (raw.ssh_username) shared.insert(shared.end(), {"-l", *raw.ssh_username});
  if (raw.ssh_port) shared.insert(shared.end(), {"-p", std::to_string(*raw.ssh_port)});
  if (raw.ssh_private_key) shared.insert(shared.end(), {"-i", *raw.ssh_private_key});
  const bool one_each = raw.connect_options.is_list();
  if (one_each && raw.connect_options.size() != raw.hosts.size())
    problems.add(
        raw.connect_options,
        fmt::format("got {} maps for {} hosts", raw.connect_options.size(), raw.hosts.size()),
        "give one map, or one per host");
  const auto common =
      one_each ? std::vector<std::string>{} : connect_arguments(raw.connect_options, problems);
  for (std::size_t i = 0; i < raw.hosts.size(); ++i) {
    SshHost host{raw.hosts[i], shared};
    const auto own = one_each && i < raw.connect_options.size()
                         ? connect_arguments(raw.connect_options[i], problems)
                         : common;
    host.arguments.insert(host.arguments.end(), own.begin(), own.end());
    out.hosts.push_back(std::move(host));
  }
  if (out.hosts.size() > 1 && is_this_machine(out.hosts[0].name))
    out.hosts.erase(out.hosts.begin());

  std::optional<int> per_host;
  out.threads = raw.nthreads.value_or(0);
  per_host = raw.nprocs;
  if (raw.memory_limit) out.memory_limit = parse_bytes(*raw.memory_limit).value_or(0);
  out.local_directory = raw.local_directory.value_or("");
  out.env = raw.env;
  read_worker_options(raw.worker_options, out, per_host, problems);
  const int num_hosts = static_cast<int>(out.hosts.size());
  out.workers_per_host = per_host.value_or((n_workers + num_hosts - 1) / num_hosts);
  if (per_host && n_workers > *per_host * num_hosts)
    problems.add(options,
                 fmt::format("parallel.n_workers is {}, but {} hosts x {} workers = {}", n_workers,
                             num_hosts, *per_host, num_hosts * *per_host),
                 "raise worker_options.n_workers, or lower parallel.n_workers");
  out.remote_folder = raw.remote_folder;
  out.connect_retries = raw.connect_retries;
  if (raw.remote_program) out.remote_program = split_words(*raw.remote_program);
  if (raw.remote_python) {
    const bool ours = raw.remote_python->find("tutti") != std::string::npos;
    if (ours && out.remote_program.empty()) out.remote_program = split_words(*raw.remote_python);
    if (!ours)
      problems.warn(options["remote_python"], "has no effect: workers are the tutti program itself",
                    "use remote_program");
  }
  return out;
}

void check_ssh(const ParallelSettings& settings, const Node& options, Problems& problems) {
  parse_ssh_options(options, settings.n_workers, problems);
}

config::SchemaInfo ssh_options_info() { return ssh_schema().info(); }

}  // namespace tutti::parallel
