// What a driver costs under many workers: heartbeats, leases and results of N workers that are
// connections only. All of them live in one process beside the driver and speak the wire with its
// encryption; an item is a pause. (1,200 real workers do not fit on a small machine, and would not
// change the driver's part.) The scheduler is a stand-in that calls every job running.
//
//   bench_many_workers WORKERS ITEMS_PER_WORKER SECONDS_PER_ITEM
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <fstream>
#include <thread>
#include <zmq.hpp>

#include "tutti/config/load.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/program.h"
#include "tutti/core/text.h"
#include "tutti/parallel/parallel.h"
#include "tutti/parallel/wire/secrets.h"

namespace {

using namespace tutti;
using namespace tutti::parallel;
using SteadyClock = std::chrono::steady_clock;

constexpr char kSbatch[] = R"sh(#!/bin/sh
for script; do :; done
id=$(($(cat $D/next 2>/dev/null || echo 100) + 1)); echo $id >$D/next
last=$(sed -n 's/^#SBATCH --array=0-\([0-9]*\)$/\1/p' "$script")
seq -f "${id}_%g|RUNNING|node|None" 0 ${last:-0} | if [ $last ]; then cat; else sed 's/_0//'; fi >>$D/queue
echo $id
)sh";
constexpr char kSqueue[] = "#!/bin/sh\ncase \"$*\" in *%o*) ;; *) cat $D/queue;; esac\n";

// One worker, as the driver sees it.
class Simulated {
 public:
  Simulated(zmq::context_t& context, const std::filesystem::path& run_folder, int id, double item_s)
      : socket_(context, ZMQ_DEALER), item_(std::chrono::duration<double>(item_s)) {
    const ConnectInfo info = read_connect_file(run_folder, id);
    socket_.set(zmq::sockopt::curve_serverkey, info.server_key);
    socket_.set(zmq::sockopt::curve_publickey, info.worker.public_key);
    socket_.set(zmq::sockopt::curve_secretkey, info.worker.secret_key);
    socket_.set(zmq::sockopt::linger, 500);
    socket_.connect(info.endpoint);
    send(wire::Hello{static_cast<std::uint32_t>(id), static_cast<std::uint64_t>(id + 1), "node"});
  }
  void* handle() { return socket_.handle(); }
  bool stopped() const { return stopped_; }

  void receive() {
    zmq::message_t part;
    while (socket_.recv(part, zmq::recv_flags::dontwait)) {
      const auto message = wire::decode(part.to_string_view());
      if (!message) throw CommError("a message that is not ours");
      if (const auto* welcome = std::get_if<wire::Welcome>(&*message))
        beat_every_ = std::chrono::milliseconds(welcome->heartbeat_ms);
      else if (const auto* job = std::get_if<wire::Job>(&*message))
        send(wire::EnvReady{job->job, 1});
      else if (const auto* lease = std::get_if<wire::Lease>(&*message))
        leases_.push_back({lease->lease, lease->ranges});
      else if (const auto* recall = std::get_if<wire::Recall>(&*message))
        give_back(*recall);
      else if (std::holds_alternative<wire::Stop>(*message))
        stopped_ = true;
    }
  }

  void tick(SteadyClock::time_point now) {
    if (running_ && now >= ends_) {
      builder_.add({.index = index_, .run_ns = 1000000, .payload = "1"});
      socket_.send(zmq::buffer(builder_.finish(lease_)), zmq::send_flags::dontwait);
      running_ = false;
    }
    if (!running_ && !leases_.empty()) {
      auto& [id, ranges] = leases_.front();
      lease_ = id;
      index_ = ranges.front().first++;
      if (--ranges.front().count == 0) ranges.erase(ranges.begin());
      if (ranges.empty()) leases_.pop_front();
      running_ = true;
      ends_ = now + std::chrono::duration_cast<SteadyClock::duration>(item_);
    }
    if (now < next_beat_) return;
    next_beat_ = now + beat_every_;
    std::uint64_t unfinished = running_ ? 1 : 0;
    for (const auto& [id, ranges] : leases_) unfinished += wire::total_items(ranges);
    send(wire::Heartbeat{50 << 20, unfinished, 0});
  }

 private:
  void send(const wire::Message& message) {
    socket_.send(zmq::buffer(wire::encode(message)), zmq::send_flags::dontwait);
  }
  void give_back(const wire::Recall& recall) {
    std::vector<wire::IndexRange> back;
    for (auto lease = leases_.begin(); lease != leases_.end(); ++lease) {
      if (lease->first != recall.lease) continue;
      back = wire::cut_tail(lease->second,
                            std::min(recall.max_items, wire::total_items(lease->second)));
      if (lease->second.empty()) leases_.erase(lease);
      break;
    }
    send(wire::Released{recall.lease, back});
  }

  zmq::socket_t socket_;
  const std::chrono::duration<double> item_;
  std::chrono::milliseconds beat_every_{500};
  SteadyClock::time_point next_beat_;
  std::deque<std::pair<std::uint64_t, std::vector<wire::IndexRange>>> leases_;
  bool running_ = false;
  bool stopped_ = false;
  std::uint64_t lease_ = 0;
  std::uint64_t index_ = 0;
  SteadyClock::time_point ends_;
  wire::ResultsBuilder builder_;
};

std::size_t lines_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::size_t count = 0;
  while (std::getline(file, line)) ++count;
  return count;
}

int be_the_workers(const std::filesystem::path& folder, int n, double item_s) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  while (lines_of(folder / "queue") < static_cast<std::size_t>(n))
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  zmq::context_t context;
  context.set(zmq::ctxopt::max_sockets, n + 64);
  std::deque<Simulated> workers;
  for (int id = 0; id < n; ++id) workers.emplace_back(context, folder / "run", id, item_s);
  std::vector<zmq::pollitem_t> items;
  for (Simulated& worker : workers) items.push_back({worker.handle(), 0, ZMQ_POLLIN, 0});
  for (std::size_t num_stopped = 0; num_stopped < workers.size();) {
    ::zmq_poll(items.data(), static_cast<int>(items.size()), 5);
    const auto now = SteadyClock::now();
    num_stopped = 0;
    for (std::size_t i = 0; i < workers.size(); ++i) {
      if (items[i].revents != 0) workers[i].receive();
      if (!workers[i].stopped()) workers[i].tick(now);
      num_stopped += workers[i].stopped() ? 1 : 0;
    }
  }
  return 0;
}

Json nothing(std::uint64_t index) { return index; }
TUTTI_REGISTER_FUNCTION(nothing);

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

int drive(int n, int items_each, const std::string& item_s) {
  const TempFolder folder("tutti-many");
  make_folders(folder.path() / "bin");
  write_file_atomic(folder.path() / "bin/sbatch", kSbatch, 0755);
  write_file_atomic(folder.path() / "bin/squeue", kSqueue, 0755);
  write_file_atomic(folder.path() / "bin/scancel", "#!/bin/sh\nexit 0\n", 0755);
  ::setenv("D", folder.path().c_str(), 1);
  ::setenv("PATH", ((folder.path() / "bin").string() + ":" + std::getenv("PATH")).c_str(), 1);
  Process workers = Process::start({.argv = {own_program().string(), "workers",
                                             folder.path().string(), std::to_string(n), item_s}});
  config::Problems problems;
  const auto settings = parse_parallel(
      config::parse_yaml("{env: slurm, interface: lo, n_workers: " + std::to_string(n) +
                             ", options: {cores: 1, processes: 1, memory: 1GB, walltime: 1h}}",
                         "block"),
      problems);
  problems.throw_if_any();
  RunReport report;
  double cpu = 0;
  double cpu_at_first = 0;
  const auto begin = SteadyClock::now();
  SteadyClock::time_point first;
  SteadyClock::time_point last;
  {
    Client client(settings, {.run_folder = folder.path() / "run"});
    JobSpec job;
    job.function = "nothing";
    bool any = false;
    report = client.run(
        job, {.indices = range(static_cast<std::uint64_t>(n) * static_cast<unsigned>(items_each))},
        [&](const Outcome&) {
          if (std::exchange(any, true)) return;
          first = SteadyClock::now();
          cpu_at_first = cpu_seconds();
        });
    last = SteadyClock::now();
    cpu = cpu_seconds() - cpu_at_first;
  }
  workers.wait_for(std::chrono::seconds(5));
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](auto duration) {
    return std::chrono::duration<double>(duration).count();
  };
  std::printf(
      "%d workers, %llu items of %s s: first result after %.1f s (%.1f s of driver CPU), then %.1f "
      "s "
      "(%.0f items/s), driver CPU %.2f s = %.1f %%, driver memory %ld MB, workers lost %llu\n",
      n, static_cast<unsigned long long>(report.done), item_s.c_str(), seconds(first - begin),
      cpu_at_first, seconds(last - first), static_cast<double>(report.done) / seconds(last - first),
      cpu, 100 * cpu / seconds(last - first), usage.ru_maxrss / 1024,
      static_cast<unsigned long long>(report.workers_lost));
  return report.workers_lost == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc == 5 && std::string_view(argv[1]) == "workers")
    return be_the_workers(argv[2], std::atoi(argv[3]), std::atof(argv[4]));
  if (argc != 4)
    throw ConfigError("usage: bench_many_workers WORKERS ITEMS_PER_WORKER SECONDS_PER_ITEM");
  return drive(std::atoi(argv[1]), std::atoi(argv[2]), argv[3]);
} catch (...) {
  return tutti::report_and_exit_code();
}
