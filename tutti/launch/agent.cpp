#include "tutti/launch/agent.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/held_signals.h"
#include "tutti/core/log.h"
#include "tutti/core/program.h"
#include "tutti/core/status.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"
#include "tutti/core/threads.h"
#include "tutti/launch/nodes.h"
#include "tutti/launch/orphan_guard.h"
#include "tutti/launch/output.h"

namespace tutti::launch {
namespace {

constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

// Turns signals into readable events for the scope's thread, and puts the old state back after.
class SignalInbox {
 public:
  SignalInbox() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : kForwarded)
      if (!is_ignored(signal)) sigaddset(&set, signal);  // one that is blocked would arrive
    sigaddset(&set, SIGCHLD);
    ::pthread_sigmask(SIG_BLOCK, &set, &previous_);
    fd_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd_) throw_errno("cannot make a signalfd", errno);
    old_pipe_ = ::signal(SIGPIPE, SIG_IGN);
  }
  ~SignalInbox() {
    ::signal(SIGPIPE, old_pipe_);
    ::pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
  }
  int fd() const noexcept { return fd_.get(); }
  int next() noexcept {  // 0: none
    signalfd_siginfo info{};
    if (::read(fd_.get(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return 0;
    return static_cast<int>(info.ssi_signo);
  }

 private:
  sigset_t previous_{};
  UniqueFd fd_;
  void (*old_pipe_)(int) = SIG_DFL;
};

struct LocalRank {
  int rank = 0;
  int local_rank = 0;
  Process process;
  LinePump out;
  LinePump err;
  std::optional<ExitStatus> ended;
  bool after_our_signal = false;  // its end is our doing, not a cause
};

// A rank that stopped because it was asked to, and can go on later.
bool stopped_on_request(int exit_code) {
  return exit_code == static_cast<int>(ExitCode::kStoppedResumable) ||
         exit_code == static_cast<int>(ExitCode::kInterrupted);
}

class Agent {
 public:
  explicit Agent(const AgentOptions& options) : options_(options) {}

  int run() {
    nodes_.emplace(options_, [this] { return read_signals(), stop_signal_ != 0; });
    std::optional<Failure> failure;
    int restarts = 0;
    bool again = true;
    for (int next = nodes_->first_round();; next = round_.number + 1) {
      const int ranks_before = world_size();
      const std::optional<Round> round = nodes_->begin_round(next, /*only_if_lost=*/!again);
      if (!round) {
        if (stop_signal_ == SIGINT) log::info("stopped by SIGINT before the ranks were started");
        return 128 + stop_signal_;
      }
      if (round->members.empty()) {  // all nodes are there, and the restarts are spent
        nodes_->leave();
        return failure ? failure->exit_code : 0;
      }
      round_ = *round;
      if (!round_.lost.empty())
        log::warning("node{} {} {} lost: going on with node{} {} ({} rank{} instead of {})",
                     round_.lost.size() == 1 ? "" : "s", fmt::join(round_.lost, ", "),
                     round_.lost.size() == 1 ? "is" : "are", round_.members.size() == 1 ? "" : "s",
                     fmt::join(round_.members, ", "), world_size(), world_size() == 1 ? "" : "s",
                     ranks_before);
      else if (failure)
        ++restarts;
      start();
      failure = supervise();
      if (!failure) {
        nodes_->leave();
        return 0;
      }
      if (interrupted_twice_) {
        nodes_->leave();
        return static_cast<int>(ExitCode::kInterrupted);
      }
      const bool on_request = stopped_on_request(failure->exit_code);
      // Ranks that can hear it say so themselves.
      if (failure->how == ExitStatus{.exit_code = 128 + SIGINT, .signal = SIGINT}.describe())
        log::info("stopped by SIGINT before the ranks were ready");
      again = restarts < options_.max_restarts && stop_signal_ == 0 && !on_request;
      // Those that stopped because they were asked to have said how to go on.
      if (!on_request)
        print(*failure,
              again ? fmt::format("restart {} of {}", restarts + 1, options_.max_restarts) : "");
      // Lost peers look like a failure of ranks too: who is lost shows when the others have met.
      const bool may_be_smaller = options_.min_nodes > 0 && stop_signal_ == 0 && !on_request;
      if (again || may_be_smaller) continue;
      nodes_->leave();
      return failure->exit_code;
    }
  }

 private:
  int world_size() const {
    return static_cast<int>(round_.members.size()) * options_.nproc_per_node;
  }

  void start() {
    ranks_.clear();
    guard_groups_.clear();
    suspect_ = nullptr;
    believe_at_.reset();
    stop_sent_ = false;
    kill_at_.reset();
    for (int local = 0; local < options_.nproc_per_node; ++local) {
      const int rank = round_.place * options_.nproc_per_node + local;
      const std::string prefix =
          options_.prefix_output && world_size() > 1 ? fmt::format("[rank {}] ", rank) : "";
      LocalRank entry{.rank = rank,
                      .local_rank = local,
                      .out = LinePump(prefix, 1),
                      .err = LinePump(prefix, 2)};
      const UniqueFd out = entry.out.open();
      const UniqueFd err = entry.err.open();
      entry.process = Process::start({.argv = options_.command,
                                      .env = environment(rank, local, err.get()),
                                      .unset_env = {"TORCHELASTIC_USE_AGENT_STORE"},
                                      .stdout_fd = out.get(),
                                      .stderr_fd = err.get(),
                                      .announce_fd = guard_.announce_fd()});
      guard_groups_.push_back(entry.process.pid());
      ranks_.push_back(std::move(entry));
    }
    log::debug("node {} of {} ({}): started ranks {}-{} of {}", options_.node_rank,
               options_.num_nodes, host_name(), ranks_.front().rank, ranks_.back().rank,
               world_size());
  }

  std::map<std::string, std::string> environment(int rank, int local, int err) const {
    const auto text = [](auto value) { return std::to_string(value); };
    const int restarts = options_.restart_count + round_.number;
    std::map<std::string, std::string> env = {
        {"RANK", text(rank)},
        {"WORLD_SIZE", text(world_size())},
        {"LOCAL_RANK", text(local)},
        {"LOCAL_WORLD_SIZE", text(options_.nproc_per_node)},
        {"NODE_RANK", text(round_.place)},
        {"MASTER_ADDR", round_.master.host},
        {"MASTER_PORT", text(round_.master.port)},
        // torchrun's names, so that programs written for it need no change.
        {"GROUP_RANK", text(round_.place)},
        {"GROUP_WORLD_SIZE", text(round_.members.size())},
        {"ROLE_NAME", "default"},
        {"ROLE_RANK", text(rank)},
        {"ROLE_WORLD_SIZE", text(world_size())},
        {"TORCHELASTIC_RUN_ID", options_.run_id},
        {"TORCHELASTIC_RESTART_COUNT", text(round_.number)},
        {"TORCHELASTIC_MAX_RESTARTS", text(options_.max_restarts)},
        // Ours.
        {"TUTTI_RUN_ID", options_.run_id},
        {"TUTTI_NUM_NODES", text(round_.members.size())},
        {"TUTTI_RESTART_COUNT", text(restarts)},
        {"TUTTI_FOUND_BY", options_.found_by},
        {"TUTTI_STORE", nodes_->store_address()},
        {"TUTTI_SECRET", nodes_->secret()},
        {log::kPassedOnVariable, log::file_name(err)},
    };
    if (options_.min_nodes > 0) env["TUTTI_MAX_NODES"] = text(options_.num_nodes);
    if (const int columns = log::terminal_columns(); columns > 0)
      env[log::kTerminalVariable] = text(columns);
    if (::getenv("OMP_NUM_THREADS") == nullptr) {
      env["OMP_NUM_THREADS"] = text(std::max(1, usable_cpus() / options_.nproc_per_node));
    }
    for (const auto& [name, value] : options_.env) env[name] = value;
    return env;
  }

  // Until all local ranks have ended and the other nodes have too. The failure is the cause, over
  // all nodes.
  std::optional<Failure> supervise() {
    std::optional<Failure> failure;
    bool reported_done = false;
    for (;;) {
      wait_for_events();
      read_signals();
      for (LocalRank& rank : ranks_) rank.out.pump(), rank.err.pump();
      reap(failure);
      if (!failure) {
        if (const auto remote = nodes_->remote_failure()) failure = remote;
      }
      const bool running =
          std::any_of(ranks_.begin(), ranks_.end(), [](const LocalRank& r) { return !r.ended; });
      // After a stop signal everyone has been told already, and has its own grace.
      if (failure && running && !stop_sent_ && stop_signal_ == 0) {
        stop_sent_ = true;
        // Those that stop on request do so together; the rest is told.
        const bool on_request = stopped_on_request(failure->exit_code);
        if (!on_request) signal_ranks(SIGTERM);
        kill_at_ = deadline_in(on_request ? options_.grace : options_.failure_grace);
      }
      if (kill_at_ && std::chrono::steady_clock::now() >= *kill_at_) signal_ranks(SIGKILL);
      if (running || (suspect_ != nullptr && !failure)) continue;
      if (!failure && !reported_done) {
        nodes_->report_done(round_.number);
        reported_done = true;
      }
      if (failure || nodes_->all_done()) break;
      if (stop_signal_ != 0) break;  // the other nodes have their own signals
    }
    for (LocalRank& rank : ranks_) {
      rank.process.signal_group(SIGKILL);  // what the rank left running
      rank.out.finish();
      rank.err.finish();
    }
    for (const pid_t group : guard_groups_) guard_.forget(group);
    return failure;
  }

  void wait_for_events() {
    std::vector<pollfd> fds = {{inbox_.fd(), POLLIN, 0}};
    for (const LocalRank& rank : ranks_) {
      for (const LinePump* pump : {&rank.out, &rank.err}) {
        // After a rank's end a child of its may still hold the pipe; it is drained at the end.
        if (pump->fd() >= 0 && !rank.ended) fds.push_back({pump->fd(), POLLIN, 0});
      }
    }
    ::poll(fds.data(), fds.size(), 200);
    // A rank that has closed its output while running would make poll return at once, for ever.
    const bool only_hangups = std::all_of(fds.begin(), fds.end(), [](const pollfd& p) {
      return p.revents == 0 || (p.revents & POLLIN) == 0;
    });
    if (only_hangups &&
        std::any_of(fds.begin(), fds.end(), [](const pollfd& p) { return p.revents != 0; })) {
      pollfd signals{inbox_.fd(), POLLIN, 0};
      ::poll(&signals, 1, 20);
    }
  }

  void read_signals() {
    for (int signal = inbox_.next(); signal != 0; signal = inbox_.next()) {
      if (signal == SIGCHLD) continue;
      const bool ends = signal == SIGINT || signal == SIGTERM;
      if (signal == SIGINT && stop_signal_ == SIGINT) {
        if (!std::exchange(interrupted_twice_, true))
          log::info("interrupted again: the ranks are killed at once");
        signal_ranks(SIGKILL);
        continue;
      }
      signal_ranks(signal);
      if (!ends && !ranks_.empty()) continue;  // without ranks it ends the agent, as any program
      if (stop_signal_ == 0) kill_at_ = deadline_in(options_.grace);
      stop_signal_ = signal;
    }
  }

  void signal_ranks(int signal) {
    for (LocalRank& rank : ranks_) {
      if (rank.ended) continue;
      if (signal == SIGTERM || signal == SIGINT || signal == SIGKILL) rank.after_our_signal = true;
      rank.process.signal_group(signal);
      if (signal == SIGTERM) rank.process.signal_group(SIGCONT);  // a stopped rank cannot hear
    }
  }

  // Notes who has ended and finds the cause: not the first exit seen, for a dying process closes
  // its sockets before it can be waited for, and the ranks that lost it may be quicker to end. So a
  // rank that merely lost its peers is believed only after a second in which nothing worse came.
  void reap(std::optional<Failure>& failure) {
    bool running = false;
    for (LocalRank& rank : ranks_) {
      if (!rank.ended && (rank.ended = rank.process.poll()) && !rank.ended->ok() &&
          !rank.after_our_signal) {
        if (suspect_ == nullptr || (lost_its_peers(*suspect_) && !lost_its_peers(rank)))
          suspect_ = &rank;
        if (!believe_at_) believe_at_ = deadline_in(Timeout(1));
      }
      // Ended by our signal: a failure only if there is no other (a stop asked for from outside).
      if (rank.ended && !rank.ended->ok() && suspect_ == nullptr) suspect_ = &rank;
      running = running || !rank.ended;
    }
    if (suspect_ == nullptr || failure) return;
    const bool more_may_come = running || round_.members.size() > 1;
    if (lost_its_peers(*suspect_) && more_may_come &&
        std::chrono::steady_clock::now() < *believe_at_)
      return;
    suspect_->err.pump();
    suspect_->out.pump();
    std::string tail = suspect_->err.tail();
    if (trim(tail).empty()) tail = suspect_->out.tail();
    failure = nodes_->report(round_.number, {.rank = suspect_->rank,
                                             .node = options_.node_rank,
                                             .host = host_name(),
                                             .exit_code = suspect_->ended->exit_code,
                                             .how = suspect_->ended->describe(),
                                             .tail = tail});
  }

  static bool lost_its_peers(const LocalRank& rank) {
    return !rank.after_our_signal &&
           rank.ended->exit_code == static_cast<int>(ExitCode::kCommunication);
  }

  static void print(const Failure& failure, const std::string& restart) {
    const std::string who = failure.rank >= 0
                                ? fmt::format("rank {} on {}", failure.rank, failure.host)
                                : fmt::format("node {}", failure.node);
    std::string text =
        fmt::format("\n{}: {}{}{}\n", who, failure.how, restart.empty() ? "" : "; ", restart);
    if (!trim(failure.tail).empty()) text += "its last lines:\n" + failure.tail;
    if (text.back() != '\n') text.push_back('\n');
    ::fflush(stdout);
    [[maybe_unused]] const auto n = ::write(2, text.data(), text.size());
  }

  const AgentOptions& options_;
  OrphanGuard guard_;  // forks: before any thread
  SignalInbox inbox_;
  std::optional<Nodes> nodes_;
  std::vector<LocalRank> ranks_;
  std::vector<pid_t> guard_groups_;
  int stop_signal_ = 0;
  bool interrupted_twice_ = false;
  Round round_;  // the present one, or the one before while the next begins
  // Of the present round.
  LocalRank* suspect_ = nullptr;  // points into ranks_
  std::optional<Deadline> believe_at_;
  bool stop_sent_ = false;
  std::optional<Deadline> kill_at_;
};

void check(const AgentOptions& options) {
  const auto require = [](bool good, const std::string& message) {
    if (!good) throw ConfigError(message);
  };
  require(!options.command.empty(), "no command to run was given");
  require(options.nproc_per_node >= 1 && options.nproc_per_node <= 4096,
          fmt::format("nproc_per_node: got {}, expected 1 to 4096", options.nproc_per_node));
  require(options.num_nodes >= 1,
          fmt::format("nnodes: got {}, expected 1 or more", options.num_nodes));
  require(
      options.node_rank >= 0 && options.node_rank < options.num_nodes,
      fmt::format("node_rank: got {}, expected 0 to {}", options.node_rank, options.num_nodes - 1));
  require(options.min_nodes >= 0 && options.min_nodes <= options.num_nodes,
          fmt::format("nnodes: got {}:{}, expected MIN:MAX with MIN at most MAX", options.min_nodes,
                      options.num_nodes));
  require(options.max_restarts >= 0, fmt::format("max_restarts: got {}", options.max_restarts));
  if (options.num_nodes > 1 && options.run_folder.empty() &&
      (options.master_addr.empty() || options.master_port == 0)) {
    throw ConfigError(
        fmt::format("{} nodes have no way to meet", options.num_nodes),
        "give --master_addr and --master_port, or --run_folder on a shared file system");
  }
}

}  // namespace

int run_agent(const AgentOptions& options) {
  check(options);
  return Agent(options).run();
}

Entry enter(const LaunchRequest& request, const std::vector<std::string>& command,
            AgentOptions defaults) {
  std::vector<std::string> own_command = command;
  // srun would take the link for itself.
  if (!own_command.empty() && own_command[0] == "/proc/self/exe") {
    own_command[0] = own_program().string();
  }
  const Detection found = detect(current_environment(), request);
  if (found.kind == Detection::Kind::kRank) return {found.rank, 0};
  if (found.kind == Detection::Kind::kStartStep) {
    Command step{.argv = found.step_command};
    step.argv.insert(step.argv.end(), own_command.begin(), own_command.end());
    log::info("inside a Slurm allocation but not in a step; running: {}", step.describe());
    std::vector<char*> argv;
    for (std::string& word : step.argv) argv.push_back(word.data());
    argv.push_back(nullptr);
    // exec: signals and the exit code are srun's own affair, and nothing is left to supervise.
    release_stop_signals();
    ::execvp(argv[0], argv.data());
    throw SchedulerError(fmt::format("cannot run srun: {}", ::strerror(errno)),
                         "start it with srun yourself, or set TUTTI_LAUNCHER=local");
  }
  defaults.command = own_command;
  defaults.nproc_per_node = found.num_local_ranks;
  defaults.num_nodes = found.rank.num_nodes;
  defaults.node_rank = found.rank.node_rank;
  defaults.master_addr = found.rank.master_addr;
  defaults.master_port = found.rank.master_port;
  defaults.secret = found.rank.secret;
  defaults.run_id = found.rank.run_id;
  defaults.restart_count = found.rank.restart_count;
  defaults.found_by = found.rank.found_by;
  return {std::nullopt, run_agent(defaults)};
}

}  // namespace tutti::launch
