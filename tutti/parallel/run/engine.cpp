#include "tutti/parallel/run/engine.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/file_trust.h"
#include "tutti/core/log.h"
#include "tutti/core/program.h"
#include "tutti/parallel/wire/worker_env.h"

namespace tutti::parallel {
namespace {

using std::chrono::steady_clock;

std::string make_life() {
  std::random_device random;
  return fmt::format("{:08x}", random());
}

// Each worker is a connection. Without descriptors libzmq would turn them away without a word.
// Returns the limit as it was, which the workers get back: programs may loop over all of them.
std::uint64_t make_room_for(int n_workers) {
  constexpr rlim_t kOthers = 64;  // files, pipes, libzmq's own
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlim_t before = limit.rlim_cur;
  const rlim_t need = static_cast<rlim_t>(n_workers) + kOthers;
  if (limit.rlim_cur >= need) return before;
  if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < need)
    throw ConfigError(
        fmt::format("parallel.n_workers: {} workers need {} open files in the driver, the limit is "
                    "{}",
                    n_workers, need, limit.rlim_max),
        "raise it (ulimit -Hn), or use fewer workers");
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, need + 1024);
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0)
    log::warning("cannot raise the limit of open files to {}", need);
  return before;
}

}  // namespace

Engine::Engine(ParallelSettings settings, ClientOptions options, ThreadWorker thread_worker)
    : settings_(std::move(settings)),
      options_(std::move(options)),
      local_(settings_.env == "local" || settings_.env == "local_gpu") {
  const std::uint64_t files = make_room_for(settings_.n_workers);
  if (options_.run_folder.empty()) {
    // Workers of other hosts see the folder we are in, hardly ever our temporary one.
    if (local_)
      own_folder_.emplace("tutti-run");
    else
      own_folder_.emplace(".tutti-run", std::filesystem::current_path());
    options_.run_folder = own_folder_->path();
  }
  options_.run_folder = std::filesystem::absolute(options_.run_folder);
  const std::string life = make_life();
  if (options_.worker_command.empty()) options_.worker_command = {own_program().string()};
  options_.worker_command.insert(options_.worker_command.end(),
                                 {"worker", "--run", options_.run_folder.string(), "--life", life});
  make_own_folder(options_.run_folder);
  make_private_folder(options_.run_folder / ".tutti");
  socket_ = std::make_unique<DriverSocket>(DriverSocket::Options{.run_folder = options_.run_folder,
                                                                 .life = life,
                                                                 .local = local_,
                                                                 .interface = settings_.interface,
                                                                 .n_workers = settings_.n_workers});
  WorkerLaunch launch{.command = options_.worker_command,
                      .run_folder = options_.run_folder,
                      .life = life,
                      .keys = &socket_->keys(),
                      .thread_worker = std::move(thread_worker)};
  if (local_) launch.env[worker_env::kOpenFiles] = std::to_string(files);
  if (local_ && own_folder_) launch.env[worker_env::kTemporary] = options_.run_folder.string();
  pool_ = std::make_unique<Pool>(Pool::Options{.settings = settings_,
                                               .client = options_,
                                               .own_host = host_name(),
                                               .life = life,
                                               .local = local_},
                                 *socket_, mailbox_, *this, [&](CommandRunner& runner) {
                                   return make_backend(settings_, launch, runner);
                                 });
  thread_ = std::thread([this] { loop(); });
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  mailbox_.wake();
  thread_.join();
}

void Engine::begin(std::shared_ptr<RunState> run) {
  const std::lock_guard lock(mutex_);
  next_run_ = std::move(run);
  mailbox_.wake();
}

void Engine::abandon() {
  const std::lock_guard lock(mutex_);
  abandon_ = true;
  mailbox_.wake();
}

void Engine::start_workers() {
  const std::lock_guard lock(mutex_);
  want_workers_ = true;
  mailbox_.wake();
}

void Engine::loop() {
  auto last_pass = steady_clock::now();
  for (;;) {
    socket_->wait(mailbox_.fd(), dispatcher_.has_run() ? 10 : 100);
    const auto now = steady_clock::now();
    // If we ourselves were stopped or starved, the workers' silence means nothing.
    if (const auto gap = now - last_pass; gap > std::chrono::seconds(1)) pool_->forgive(gap);
    last_pass = now;
    {
      const std::lock_guard lock(mutex_);
      if (closing_) break;
    }
    try {
      pass(now);
    } catch (const Error&) {  // the run folder is gone: the run's error
      if (dispatcher_.has_run())
        dispatcher_.finish(std::current_exception(), *pool_);
      else
        report_and_exit_code();
    }
  }
  if (dispatcher_.has_run())
    dispatcher_.finish(
        std::make_exception_ptr(Cancelled(Cancelled::By::kUser, "the client was closed")), *pool_);
  pool_->close([this] { receive_all(); });
}

void Engine::pass(SteadyTime now) {
  take_commands();
  receive_all();
  mailbox_.open();
  const DriverSocket::Events events = socket_->take_events();
  if (events.disconnected > 0) pool_->look_soon();  // somebody left: look at the processes now
  refused_peers_ += static_cast<std::uint64_t>(events.refused);
  if (dispatcher_.drain_if_asked(*pool_)) pool_->cancel_all();
  pool_->want(num_wanted());
  pool_->tick(now);
  dispatcher_.hand_out(*pool_, now);
  dispatcher_.publish(*pool_, now, refused_peers_);
}

int Engine::num_wanted() const {
  if (dispatcher_.draining()) return 0;
  if (!dispatcher_.has_run()) return keep_workers_ ? settings_.n_workers : 0;
  // Never more workers than items; a queue position costs hours on a cluster.
  return static_cast<int>(std::min<std::uint64_t>(static_cast<std::uint64_t>(settings_.n_workers),
                                                  dispatcher_.num_unfinished()));
}

void Engine::take_commands() {
  std::shared_ptr<RunState> next;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(abandon_, false)) dispatcher_.abandon();
    if (std::exchange(want_workers_, false)) keep_workers_ = true;
    next = std::exchange(next_run_, nullptr);
  }
  if (!next) return;
  dispatcher_.begin(std::move(next));
  pool_->begin_run();
  if (dispatcher_.num_unfinished() == 0) dispatcher_.finish(nullptr, *pool_);
}

void Engine::receive_all() {
  // Bounded, so that a flood of results cannot keep the loop from handing out leases.
  for (int i = 0; i < 256; ++i) {
    auto letter = socket_->receive();
    if (!letter) return;
    handle(letter->worker, std::move(letter->bytes));
  }
}

void Engine::handle(int id, std::string bytes) {
  const auto message = wire::decode(bytes);
  if (!message) {
    dispatcher_.on_bad_message();
    complain_of_malformed(id, bytes.size());
    return;
  }
  if (const auto* hello = std::get_if<wire::Hello>(&*message)) {
    if (hello->worker == static_cast<std::uint32_t>(id))
      pool_->on_hello(id, hello->pid, hello->host);
    else
      dispatcher_.on_bad_message();
    return;
  }
  PoolWorker* worker = pool_->heard(id);
  if (worker == nullptr) {
    // A worker that was given up on and came back; the fence drops what it brings.
    dispatcher_.on_stale_message();
    return;
  }
  if (std::holds_alternative<wire::Results>(*message)) {
    dispatcher_.on_results(*worker, std::move(bytes), *pool_);
  } else if (const auto* beat = std::get_if<wire::Heartbeat>(&*message)) {
    worker->report.rss_bytes = beat->rss_bytes;
    worker->time_nearly_up = worker->time_nearly_up || beat->time_nearly_up != 0;
    dispatcher_.on_heartbeat(*worker, beat->queued_items);
  } else if (const auto* ready = std::get_if<wire::EnvReady>(&*message)) {
    if (ready->job == dispatcher_.job_serial() && worker->phase == PoolWorker::Phase::kBuilding)
      pool_->on_env_ready(*worker, static_cast<double>(ready->build_us) * 1e-6);
  } else if (const auto* failed = std::get_if<wire::EnvFailed>(&*message)) {
    if (failed->job == dispatcher_.job_serial())
      pool_->on_env_failed(*worker, failed->exit_code, failed->error);
  } else if (const auto* released = std::get_if<wire::Released>(&*message)) {
    dispatcher_.on_released(*worker, *released);
  } else if (const auto* trouble = std::get_if<wire::Trouble>(&*message)) {
    dispatcher_.on_trouble(*worker, *trouble, *pool_);
  } else if (const auto* bye = std::get_if<wire::Bye>(&*message)) {
    worker->overran = worker->overrun_by_one_item(steady_clock::now());
    pool_->on_bye(*worker, bye->reason);
    if (worker->overran)
      dispatcher_.on_lost(*worker, true, *pool_);
    else
      dispatcher_.take_leases(*worker);
  }
}

// A peer that talks nonsense may do so all day: the log tells of it now and then.
void Engine::complain_of_malformed(int id, std::size_t num_bytes) {
  ++num_malformed_;
  const auto now = steady_clock::now();
  if (now < next_complaint_) return;
  next_complaint_ = now + std::chrono::seconds(10);
  log::warning("dropped a malformed message of {} bytes from worker {}; {} so far", num_bytes, id,
               num_malformed_);
}

void Engine::on_lost(const PoolWorker& worker, bool blame) {
  dispatcher_.on_lost(worker, blame, *pool_);
}
void Engine::on_leases_void(const PoolWorker& worker) { dispatcher_.take_leases(worker); }
void Engine::on_hopeless(std::exception_ptr error) { dispatcher_.finish(std::move(error), *pool_); }

}  // namespace tutti::parallel
