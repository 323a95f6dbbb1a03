#include "tutti/parallel/backends/ssh.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <set>
#include <thread>

#include "tutti/core/error.h"
#include "tutti/core/file_trust.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/parallel/backends/cluster.h"
#include "tutti/parallel/wire/secrets.h"

namespace tutti::parallel {
namespace {

using namespace std::chrono_literals;

constexpr int kNoFolder = 97;                      // of the remote script
constexpr char kConnected[] = "tutti: connected";  // its first words
constexpr auto kGrace = 10s;                       // for the remote side to end its workers

struct LogWords {
  std::string last;  // the line in which ssh says why it failed
  bool connected = false;
};

LogWords words_of(const std::filesystem::path& path) {
  LogWords words;
  try {
    for (const std::string& line : split(read_file(path), '\n')) {
      const std::string text(trim(line));
      if (text == kConnected)
        words.connected = true;
      else if (!text.empty())
        words.last = text;
    }
  } catch (const IoError&) {  // no log, no words
  }
  return words;
}

class SshBackend final : public Backend {
 public:
  SshBackend(SshSettings settings, WorkerLaunch launch, const Clock& clock = Clock::system())
      : settings_(std::move(settings)),
        launch_(std::move(launch)),
        clock_(clock),
        failures_(settings_.hosts.size(), 0),
        reached_(settings_.hosts.size(), 0),
        never_reached_(settings_.hosts.size()) {}
  ~SshBackend() override { cancel(); }

  std::vector<JobStatus> submit(int n) override {
    give_up_if_no_host_answers();
    make_own_folder(launch_.run_folder / "logs");
    // Least loaded host first, and those that failed us last.
    std::vector<std::vector<int>> shares(settings_.hosts.size());
    for (int i = 0; i < n; ++i) {
      std::size_t best = 0;
      const auto load = [&](std::size_t h) {
        const bool bad = avoid_.contains(settings_.hosts[h].name);
        return std::tuple(bad, failures_[h], live_workers(h) + shares[h].size());
      };
      for (std::size_t h = 1; h < shares.size(); ++h)
        if (load(h) < load(best)) best = h;
      shares[best].push_back(next_worker_id_++);
    }
    std::vector<JobStatus> out;
    for (std::size_t h = 0; h < shares.size(); ++h) {
      if (shares[h].empty()) continue;
      Job job;
      job.host = h;
      job.worker_ids = shares[h];
      job.id = fmt::format("{}#{}", settings_.hosts[h].name, next_job_++);
      job.log = launch_.run_folder / "logs" / fmt::format("ssh-{}.log", job.id);
      start(job);
      out.push_back(status(job, JobPhase::kRunning, ""));
      jobs_.push_back(std::move(job));
    }
    if (launch_.outlives_driver) wait_for_starts(out);
    return out;
  }

  std::vector<JobStatus> poll() override {
    std::vector<JobStatus> out;
    for (Job& job : jobs_) {
      if (job.waits) {
        if (clock_.steady() >= job.retry_at) start(job);
        out.push_back(status(job, job.waits ? JobPhase::kPending : JobPhase::kRunning,
                             job.waits ? job.reason : ""));
        continue;
      }
      const auto ended = job.process.poll();
      if (!ended) {
        if (job.cancelled && clock_.steady() >= job.kill_at) job.process.signal_group(SIGKILL);
        out.push_back(status(job, JobPhase::kRunning, ""));
        continue;
      }
      job.hold.reset();
      const auto [words, connected] = words_of(job.log);
      const std::string& host = settings_.hosts[job.host].name;
      if (ended->exit_code == 255 && job.tries <= settings_.connect_retries &&
          !job.cancelled) {  // ssh's own failures
        job.waits = true;
        job.retry_at = clock_.steady() + std::chrono::seconds(1 << std::min(job.tries - 1, 4));
        job.reason = fmt::format("connection to {} failed ({}); try {} of {}", host, words,
                                 job.tries, settings_.connect_retries);
        log::warning("{}", job.reason);
        out.push_back(status(job, JobPhase::kPending, job.reason));
        continue;
      }
      job.over = true;
      if (ended->ok()) {
        note_reach(job.host, true, "");
        out.push_back(status(job, JobPhase::kEnded, ""));
        continue;
      }
      ++failures_[job.host];
      note_reach(job.host, connected || ended->exit_code != 255, words);
      std::string reason =
          ended->exit_code == 255 ? fmt::format("connection to {} failed: {}", host, words)
          : ended->exit_code == kNoFolder
              ? fmt::format("{}: {}", host, words.empty() ? "no such folder" : words)
              : fmt::format("{}: {}{}{}", host, ended->describe(), words.empty() ? "" : ": ",
                            words);
      out.push_back(status(job, JobPhase::kFailed, std::move(reason)));
      // A lost connection is the network's or the host's doing, not the item's.
      out.back().host_away = ended->exit_code == 255;
      out.back().preempted = out.back().host_away || job.cancelled;
    }
    std::erase_if(jobs_, [](const Job& job) { return job.over; });
    return out;
  }

  bool cancel(const std::vector<std::string>& job_ids = {}) noexcept override {
    const auto deadline = clock_.steady() + kGrace;
    for (Job& job : jobs_) {
      if (job.cancelled ||
          (!job_ids.empty() && std::find(job_ids.begin(), job_ids.end(), job.id) == job_ids.end()))
        continue;
      job.cancelled = true;
      job.waits = false;
      job.kill_at = deadline;
      job.hold.reset();  // end of input: the remote side ends its workers
    }
    if (!job_ids.empty()) return true;  // poll sees their end
    for (Job& job : jobs_) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - clock_.steady());
      if (!job.process.wait_for(std::max(left, 0ms))) job.process.signal_group(SIGKILL);
    }
    return true;
  }

  void avoid(const std::vector<std::string>& nodes) override {
    avoid_ = {nodes.begin(), nodes.end()};
  }

  std::vector<ScriptPreview> scripts(int n) const override {
    std::vector<ScriptPreview> out;
    const int num_hosts = static_cast<int>(settings_.hosts.size());
    for (int h = 0; h < std::min(n, num_hosts); ++h) {
      std::vector<int> ids;
      for (int id = h; id < n; id += num_hosts) ids.push_back(id);
      const auto argv = ssh_command(settings_.hosts[static_cast<std::size_t>(h)], "SCRIPT");
      std::vector<std::string> words;
      for (const auto& word : argv) words.push_back(shell_quote(word));
      out.push_back({ssh_remote_script(settings_, launch_, ids), join(words, " ")});
    }
    return out;
  }

 private:
  // A host that has been there may come back; one that never answered is most likely misspelt.
  void note_reach(std::size_t host, bool reached, const std::string& words) {
    if (reached) reached_[host] = 1;
    never_reached_[host].reset();
    if (reached_[host] == 0)
      never_reached_[host] = words.empty() ? "ssh ended without a word" : words;
  }

  void give_up_if_no_host_answers() const {
    std::string story;
    for (std::size_t h = 0; h < settings_.hosts.size(); ++h) {
      if (!never_reached_[h] || live_workers(h) > 0) return;
      story += fmt::format("{}{}: {}", story.empty() ? "" : "; ", settings_.hosts[h].name,
                           *never_reached_[h]);
    }
    throw SchedulerError(
        fmt::format("no host can be reached: {}", story),
        "look at the names in hosts; `ssh HOST true` must work without a password");
  }

  // The connections of an asynchronous run end as soon as the workers are on their own. Hosts that
  // cannot be had are left out; when none can, that is an error.
  void wait_for_starts(std::vector<JobStatus>& started) {
    std::vector<JobStatus> good;
    std::string words;
    while (!jobs_.empty()) {
      for (const JobStatus& job : poll()) {
        if (job.phase == JobPhase::kEnded) good.push_back(job);
        if (job.phase != JobPhase::kFailed) continue;
        log::warning("no workers on a host: {}", job.reason);
        words += (words.empty() ? "" : "; ") + job.reason;
      }
      std::this_thread::sleep_for(20ms);
    }
    if (good.empty()) throw SchedulerError("no host can be used: " + words);
    started = std::move(good);
  }

  struct Job {
    std::string id;
    std::size_t host = 0;
    std::vector<int> worker_ids;
    Process process;
    UniqueFd hold;  // the write end of ssh's input; closed: the remote side ends
    std::filesystem::path log;
    int tries = 0;
    bool waits = false;  // for the next try
    bool over = false;
    bool cancelled = false;
    Clock::TimePoint kill_at{};  // cancelled: no longer patient after this
    Clock::TimePoint retry_at{};
    std::string reason;
  };

  std::size_t live_workers(std::size_t host) const {
    std::size_t n = 0;
    for (const Job& job : jobs_)
      if (job.host == host && !job.over) n += job.worker_ids.size();
    return n;
  }

  JobStatus status(const Job& job, JobPhase phase, std::string reason) const {
    const auto worker_log =
        launch_.run_folder / "logs" / fmt::format("worker-{}.log", job.worker_ids.front());
    std::error_code none;
    return {.job_id = job.id,
            .phase = phase,
            .reason = std::move(reason),
            .log = std::filesystem::exists(worker_log, none) ? worker_log : job.log,
            .worker_ids = job.worker_ids,
            .node = settings_.hosts[job.host].name};
  }

  void start(Job& job) {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) throw_errno("cannot make a pipe", errno);
    const UniqueFd read_end(fds[0]);
    job.hold = UniqueFd(fds[1]);
    // The key travels inside the connection and is never a file over there, where a folder of this
    // name may be of another user, or of a run of ours that died.
    std::string connect = "\n";
    if (launch_.keys != nullptr) {
      launch_.keys->issue(job.worker_ids);
      connect = launch_.keys->variable(job.worker_ids) + "\n";
    }
    // The pipe must hold it all: nobody reads yet.
    if (const int size = static_cast<int>(connect.size());
        ::fcntl(fds[1], F_GETPIPE_SZ) < size && ::fcntl(fds[1], F_SETPIPE_SZ, size) < size)
      throw_errno(fmt::format("no pipe holds the keys of {} workers", job.worker_ids.size()),
                  errno);
    write_all(job.hold.get(), connect, "ssh's input");
    Command command{.argv = ssh_command(settings_.hosts[job.host],
                                        ssh_remote_script(settings_, launch_, job.worker_ids))};
    command.stdin_fd = read_end.get();
    command.stdout_path = job.log;
    ++job.tries;
    job.waits = false;
    try {
      job.process = Process::start(command);
    } catch (const IoError& error) {
      throw SchedulerError(error.what(), "install the OpenSSH client");
    }
  }

  // constant after construction
  const SshSettings settings_;
  const WorkerLaunch launch_;
  const Clock& clock_;

  std::vector<Job> jobs_;
  std::vector<int> failures_;                              // per host
  std::vector<char> reached_;                              // per host: it has had a connection
  std::vector<std::optional<std::string>> never_reached_;  // per host: ssh's words after all tries
  std::set<std::string> avoid_;
  int next_worker_id_ = launch_.first_worker_id;
  int next_job_ = 0;
};

}  // namespace

std::string ssh_remote_script(const SshSettings& settings, const WorkerLaunch& launch,
                              const std::vector<int>& worker_ids) {
  const std::string folder = settings.remote_folder.empty()
                                 ? std::filesystem::current_path().string()
                                 : settings.remote_folder;
  const std::string run = shell_quote(launch.run_folder.string());
  std::vector<std::string> words;
  if (settings.remote_program.empty()) {
    for (const auto& word : launch.command) words.push_back(shell_quote(word));
  } else {
    for (const auto& word : settings.remote_program) words.push_back(shell_quote(word));
    for (std::size_t i = 1; i < launch.command.size(); ++i)
      words.push_back(shell_quote(launch.command[i]));
  }
  std::string text = fmt::format("echo '{1}'\nIFS= read -r {0}\n[ -z \"${0}\" ] || export {0}\n",
                                 kConnectVariable, kConnected);
  text += fmt::format("cd {} || exit {}\n", shell_quote(folder), kNoFolder);
  text += fmt::format(
      "(umask 077; mkdir -p {0}/logs) || exit {1}\n"
      // Whoever made the folder before us can lead what is written in it to any file of ours.
      "[ -O {0} ] && [ -O {0}/logs ] || {{ echo {0}\" is not to be trusted: it belongs to another "
      "\"\\\n"
      "\"user\" >&2; exit {1}; }}\n",
      run, kNoFolder);
  auto env = launch.env;
  for (const auto& [name, value] : settings.env) env[name] = value;
  for (const auto& [name, value] : env)
    text += fmt::format("export {}={}\n", name, shell_quote(value));
  if (settings.threads > 0)
    text += fmt::format(
        "export {0}={1} OMP_NUM_THREADS={1} MKL_NUM_THREADS={1} OPENBLAS_NUM_THREADS={1}\n",
        worker_env::kThreads, settings.threads);
  if (settings.memory_limit > 0)
    text += fmt::format("export {}={}\n", worker_env::kMemoryLimit, settings.memory_limit);
  text += fmt::format("export {}={:g}\n", worker_env::kDeathTimeout, settings.death_timeout);
  if (!settings.local_directory.empty())
    text += fmt::format("export TMPDIR={}\n", shell_quote(settings.local_directory));
  std::string ids;
  for (const int id : worker_ids) ids += fmt::format(" {}", id);
  if (launch.outlives_driver) {
    // Sessions of their own: nothing of the connection holds them, and its end does not end them.
    text += fmt::format(
        "[ -r {0}/.tutti/async/job.json ] || {{ echo \"the output folder is not visible here: "
        "\"{0} "
        ">&2; exit {1}; }}\n"
        "for tutti_id in{2}; do\n"
        "  setsid {3} --id $tutti_id </dev/null >>{0}/logs/worker-$tutti_id.log 2>&1 &\n"
        "done\nexit 0\n",
        run, kNoFolder, ids, join(words, " "));
    return text;
  }
  // The shell gives /dev/null to what runs in the background, so the connection is kept as
  // descriptor 3.
  text += fmt::format(
      "exec 3<&0\ntutti_pids=\nfor tutti_id in{}; do\n"
      "  {} --id $tutti_id </dev/null >>{}/logs/worker-$tutti_id.log 2>&1 3<&- &\n"
      "  tutti_pids=\"$tutti_pids $!\"\ndone\n"
      "(cat <&3; kill -TERM $tutti_pids; sleep 5; kill -KILL $tutti_pids) >/dev/null 2>&1 &\n"
      "tutti_watch=$!\n"
      "exec 3<&-\n"
      "tutti_status=0\n"
      "for tutti_pid in $tutti_pids; do\n"
      "  wait \"$tutti_pid\"; tutti_code=$?\n"
      "  [ \"$tutti_code\" -le \"$tutti_status\" ] || tutti_status=$tutti_code\n"
      "done\n"
      "kill $tutti_watch 2>/dev/null\n"
      "[ \"$tutti_status\" != 255 ] || tutti_status=254\n"  // 255 is ssh's own
      "exit $tutti_status\n",
      ids, join(words, " "), run);
  return text;
}

std::vector<std::string> ssh_command(const SshHost& host, const std::string& remote_script) {
  std::vector<std::string> argv = {"ssh", "-T"};
  argv.insert(argv.end(), host.arguments.begin(), host.arguments.end());
  // After the user's: ssh takes the first value it finds.
  for (const char* option :
       {"BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3"})
    argv.insert(argv.end(), {"-o", option});
  argv.insert(argv.end(), {"--", host.name, "exec sh -c " + shell_quote(remote_script)});
  return argv;
}

std::unique_ptr<Backend> make_ssh(const ParallelSettings& settings, const WorkerLaunch& launch,
                                  CommandRunner&) {
  config::Problems ignored;  // check_ssh has reported them
  return std::make_unique<SshBackend>(
      parse_ssh_options(settings.options, settings.n_workers, ignored), launch);
}

}  // namespace tutti::parallel
