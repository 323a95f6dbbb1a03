#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "apps/arguments.h"
#include "apps/command.h"
#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/launch/agent.h"
#include "tutti/launch/auth.h"

namespace tutti::apps {
namespace {

// "4", or "2:4": as few as two when nodes are lost.
void take_nodes(const std::string& text, launch::AgentOptions& options) {
  const std::size_t colon = text.find(':');
  const auto number = [&](std::string_view digits) {
    int value = 0;
    const auto [end, error] = std::from_chars(digits.begin(), digits.end(), value);
    if (error != std::errc() || end != digits.end() || value < 1)
      throw ConfigError("nnodes: got '" + text + "', expected a number, or MIN:MAX such as 2:4");
    return value;
  };
  const std::string_view all = text;
  options.num_nodes = number(colon == std::string::npos ? all : all.substr(colon + 1));
  if (colon == std::string::npos) return;
  options.min_nodes = number(all.substr(0, colon));
  if (options.min_nodes > options.num_nodes)
    throw ConfigError("nnodes: got '" + text + "', expected MIN:MAX with MIN at most MAX");
}

}  // namespace

int run_launch(int argc, char** argv) {
  // Everything after "--" is the user's program; its options are none of our business.
  char** const end = argv + argc;
  char** const dashes =
      std::find_if(argv, end, [](const char* word) { return std::strcmp(word, "--") == 0; });

  CLI::App app{
      "Start a program as several ranks on this node (and others), as torchrun does:\n"
      "tutti launch --nproc_per_node N [OPTIONS] -- COMMAND...",
      "tutti launch"};
  launch::AgentOptions options;
  double grace_s = options.grace.count();
  double join_timeout_s = options.join_timeout.count();
  std::string secret_file;
  bool quiet = false;
  bool no_prefix = false;
  app.add_option("--nproc_per_node,--nproc-per-node", options.nproc_per_node, "ranks on each node")
      ->required();
  std::string nodes = "1";
  std::optional<int> node_rank;
  app.add_option(
      "--nnodes", nodes,
      "nodes; start the command once on each. MIN:MAX: when nodes are lost, go on with as "
      "few as MIN");
  app.add_option("--node_rank,--node-rank", node_rank, "this node's number, from 0");
  app.add_option("--master_addr,--master-addr", options.master_addr, "host of node 0");
  app.add_option("--master_port,--master-port", options.master_port, "a free port of node 0");
  app.add_option("--run_folder,--run-folder", options.run_folder,
                 "shared folder in which node 0 publishes its address (instead of --master_addr)");
  app.add_option("--run_id,--run-id", options.run_id, "tells runs that share a folder apart");
  app.add_option("--interface", options.interface, "network interface between the nodes");
  app.add_option("--secret_file,--secret-file", secret_file,
                 "file (mode 0600) with the secret of the nodes; else TUTTI_SECRET");
  app.add_option("--max_restarts,--max-restarts", options.max_restarts,
                 "how often to start all ranks again after a failure");
  app.add_option("--grace", grace_s, "seconds between passing on a stop signal and SIGKILL");
  app.add_option("--join_timeout,--join-timeout", join_timeout_s,
                 "seconds to wait for other nodes");
  app.add_flag("--no_prefix,--no-prefix", no_prefix, "do not put [rank N] before the ranks' lines");
  app.add_flag("--quiet", quiet, "warnings and errors only");
  app.footer(example("tutti launch --nproc_per_node 2 -- ./my_program --its-option"));
  if (const auto code = parse_arguments(app, static_cast<int>(dashes - argv), argv)) return *code;

  if (dashes == end || dashes + 1 == end) {
    throw ConfigError("no command to run",
                      "tutti launch --nproc_per_node 2 -- ./my_program --its-option");
  }
  options.command.assign(dashes + 1, end);
  take_nodes(nodes, options);
  if (options.num_nodes > 1 && !node_rank) {
    throw ConfigError(
        "node_rank: missing, with --nnodes " + nodes + " every node must say which one it is",
        "give --node_rank 0 on the host of --master_addr (or on one of those that share "
        "--run_folder), --node_rank 1, 2, ... on the others");
  }
  options.node_rank = node_rank.value_or(0);
  if (const std::string& word = options.command[0];
      options.command.size() == 1 && word.find_first_of(" \t|;&<>$") != std::string::npos &&
      ::access(word.c_str(), X_OK) != 0)
    throw ConfigError(
        "launch: there is no program '" + word + "'",
        "words without quotes: -- " + word + " , or a line for a shell: -- sh -c '" + word + "'");
  options.grace = launch::Timeout(grace_s);
  options.join_timeout = launch::Timeout(join_timeout_s);
  options.prefix_output = !no_prefix;
  log::configure({.level = quiet ? log::Level::kWarning : log::Level::kInfo, .stage = "launch"});
  if (!secret_file.empty()) {
    options.secret = launch::read_secret_file(secret_file);
  } else if (const char* secret = ::getenv("TUTTI_SECRET"); secret != nullptr && *secret != '\0') {
    options.secret = secret;
  }
  return launch::run_agent(options);
}

}  // namespace tutti::apps
