#include "tutti/launch/control.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/launch/auth.h"
#include "tutti/launch/control_client.h"
#include "tutti/launch/rendezvous.h"

namespace tutti::launch {
namespace {

constexpr char kService[] = "control";

std::string purpose_of(const RankContext& rank) {
  return fmt::format("{} {} restart {}", kService, rank.run_id, rank.restart_count);
}

// Where the launcher's own MASTER_PORT leaves room for us: torchrun's agent serves it, so the next.
int direct_port(const RankContext& rank) {
  if (rank.master_port == 0 || !rank.store_address.empty()) return 0;
  return rank.master_port + (rank.master_port_taken ? 1 : 0);
}

// For meetings at MASTER_ADDR without a file: TUTTI_SECRET, or at least something strangers and
// other runs do not know by accident.
std::string direct_secret(const RankContext& rank) {
  return rank.secret.empty() ? "run " + rank.run_id : rank.secret;
}

std::string store_key(const RankContext& rank) {
  return fmt::format("{}/{}", kService, rank.restart_count);
}

struct Meeting {
  Address address;
  std::string secret;
};

// All places where rank 0 may be found now, best first.
std::vector<Meeting> find_meetings(const RankContext& rank, const ControlOptions& options,
                                   Store* store) {
  std::vector<Meeting> meetings;
  std::optional<Publication> published;
  if (store != nullptr) {
    const auto text = store->get(store_key(rank));
    if (text) published = Publication::parse(*text);
  } else if (!options.run_folder.empty()) {
    published = read_publication(publication_path(options.run_folder, kService, rank));
  }
  if (published) {
    for (const auto& host : published->hosts) {
      meetings.push_back({{host, published->port}, published->secret});
    }
  }
  if (const int port = direct_port(rank); port != 0 && !rank.master_addr.empty()) {
    meetings.push_back({{rank.master_addr, port}, direct_secret(rank)});
  }
  return meetings;
}

std::string hello_of(const RankContext& rank, const ControlOptions& options) {
  Builder hello;
  hello.put(static_cast<std::int32_t>(rank.rank))
      .put(static_cast<std::int32_t>(rank.world_size))
      .put(static_cast<std::int32_t>(rank.local_rank))
      .put(static_cast<std::int32_t>(rank.node_rank))
      .put(static_cast<std::int32_t>(::getpid()))
      .text(rank.host)
      .text(options.device)
      .text(rank.found_by)
      .put(static_cast<std::uint32_t>(options.must_agree.size()));
  for (const auto& [name, value] : options.must_agree) hello.text(name).text(value);
  return hello.take();
}

std::vector<StepReport> read_reports(std::string_view body, int world_size) {
  std::vector<StepReport> reports;
  Parser parser(body);
  for (int rank = 0; rank < world_size; ++rank) {
    reports.push_back(Parser(parser.text()).get<StepReport>());
  }
  return reports;
}

}  // namespace

class ControlPlane::Impl {
 public:
  Impl(const RankContext& rank, const ControlOptions& options) : rank_(rank), options_(options) {
    if (rank.world_size == 1) {
      members_ = {{.pid = ::getpid(),
                   .host = rank.host,
                   .device = options.device,
                   .found_by = rank.found_by}};
      return;
    }
    const bool can_meet = !rank.store_address.empty() || !options.run_folder.empty() ||
                          (direct_port(rank) != 0 && !rank.master_addr.empty());
    if (!can_meet) {
      throw ConfigError(
          fmt::format("{} ranks found by {} have no way to meet: no run folder and no "
                      "MASTER_ADDR/MASTER_PORT",
                      rank.world_size, rank.found_by),
          "give a folder that all nodes share, or set MASTER_ADDR and MASTER_PORT");
    }
    connect();
    members_ = client_->wait_ready(rank.world_size);
    if (rank.num_nodes > 1) find_own_address();
  }

  ~Impl() {
    client_.reset();  // before the hub: our own farewell or death is heard first
    hub_.reset();
  }

  // Unlinks what rank 0 published: everyone has read it.
  void unpublish() const {
    if (hub_ == nullptr || published_file_.empty()) return;
    std::error_code ignored;  // it is only litter
    std::filesystem::remove(published_file_, ignored);
  }

  RankContext rank_;
  ControlOptions options_;
  std::vector<Member> members_;
  std::unique_ptr<Hub> hub_;  // rank 0 only
  std::unique_ptr<ControlClient> client_;
  std::string hub_host_ = "127.0.0.1";
  std::string own_address_ = "127.0.0.1";
  std::string secret_;
  int store_port_ = 0;
  std::uint64_t agreement_ = 0;           // the call between agree_begin and agree_end
  std::optional<StepReport> own_report_;  // world size 1
  std::filesystem::path published_file_;

 private:
  void serve(Store* store) {
    Publication publication;
    publication.secret = to_hex(random_bytes(16));
    HubOptions hub{.world_size = rank_.world_size,
                   .purpose = purpose_of(rank_),
                   .secrets = {publication.secret},
                   .control = options_};
    // Nothing outside this machine has business here when all ranks are on it.
    if (rank_.num_nodes == 1) hub.host = "127.0.0.1";
    if (const int port = direct_port(rank_); port != 0 && !rank_.master_addr.empty()) {
      hub.ports.push_back(port);
      hub.secrets.push_back(direct_secret(rank_));
      if (rank_.secret.empty() && rank_.num_nodes > 1) {
        log::warning(
            "TUTTI_SECRET is not set: whoever reaches {}:{} and knows the run's name may join",
            rank_.master_addr, port);
      }
    }
    hub_ = std::make_unique<Hub>(hub);
    publication.port = hub_->port();
    publication.hosts = {"127.0.0.1"};
    if (rank_.num_nodes > 1) {
      publication.hosts = own_addresses(options_.interface);
      // A wire may be down just now, and then its address is none of ours; the others may know it.
      auto& hosts = publication.hosts;
      if (!rank_.master_addr.empty() &&
          std::find(hosts.begin(), hosts.end(), rank_.master_addr) == hosts.end())
        hosts.push_back(rank_.master_addr);
      publication.hosts.emplace_back("127.0.0.1");
    }
    if (store != nullptr) {
      store->set(store_key(rank_), publication.to_text());
    } else if (!options_.run_folder.empty()) {
      published_file_ = publication_path(options_.run_folder, kService, rank_);
      write_publication(published_file_, publication);
    }
    own_ = Meeting{{"127.0.0.1", hub_->port()}, publication.secret};
  }

  void connect() {
    const Deadline deadline = deadline_in(options_.join_timeout);
    std::unique_ptr<Store> store;
    if (!rank_.store_address.empty()) {
      store = std::make_unique<Store>(Address::parse(rank_.store_address, "TUTTI_STORE"),
                                      rank_.secret, options_.join_timeout);
    }
    if (rank_.rank == 0) serve(store.get());
    std::string trouble = "its address was not published";
    auto pause = std::chrono::milliseconds(5);
    while (std::chrono::steady_clock::now() < deadline) {
      const auto meetings =
          own_ ? std::vector<Meeting>{*own_} : find_meetings(rank_, options_, store.get());
      for (const Meeting& meeting : meetings) {
        if (try_meeting(meeting, deadline, trouble)) return;
      }
      std::this_thread::sleep_for(pause);  // a file cannot be waited for across hosts
      pause = std::min(pause * 2, std::chrono::milliseconds(500));
    }
    throw CommError(fmt::format("rank {} on {} could not reach rank 0 within {} s: {}", rank_.rank,
                                rank_.host, options_.join_timeout.count(), trouble),
                    "check that rank 0 runs, and that the hosts reach each other (interface:)");
  }

  bool try_meeting(const Meeting& meeting, Deadline deadline, std::string& trouble) {
    try {
      std::string welcome;
      Channel channel = connect_with_secret(meeting.address, purpose_of(rank_), meeting.secret,
                                            hello_of(rank_, options_),
                                            std::min(deadline, deadline_in(Timeout(3))), welcome);
      hub_host_ = meeting.address.host;
      ends_ = connection_ends(channel.fd());
      secret_ = meeting.secret;
      store_port_ = Parser(welcome).get<std::int32_t>();
      client_ = std::make_unique<ControlClient>(
          std::move(channel), fmt::format("rank 0 (at {})", meeting.address.text()), options_);
      return true;
    } catch (const RefusedError& error) {
      if (error.knows_us()) throw;
      trouble = error.what();
    } catch (const CommError& error) {
      trouble = error.what();
    }
    return false;
  }

  // Who sits on rank 0's machine knows only addresses of its own choice, a loopback one perhaps; it
  // takes the one under which a rank of another machine has come.
  void find_own_address() {
    const std::string mine = Builder().text(ends_.own).text(ends_.peer).take();
    const std::string body = client_->end_call(
        client_->begin_call(CallKind::kGather, "addresses", mine, options_.timeout));
    Parser all(body);
    std::string found = ends_.own;
    bool replaced = ends_.own != ends_.peer;  // a connection to another machine
    for (int rank = 0; rank < rank_.world_size; ++rank) {
      const std::string part = all.text();
      Parser ends(part);
      const std::string own = ends.text(), hub = ends.text();
      if (!replaced && own != hub) {
        found = hub;
        replaced = true;
      }
    }
    if (!options_.interface.empty()) found = own_addresses(options_.interface).front();
    if (!found.empty()) own_address_ = found;
  }

  Ends ends_;
  std::optional<Meeting> own_;  // rank 0 knows itself
};

ControlPlane::ControlPlane(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ControlPlane::~ControlPlane() = default;

std::unique_ptr<ControlPlane> ControlPlane::join(const RankContext& rank,
                                                 const ControlOptions& options) {
  auto impl = std::make_unique<Impl>(rank, options);
  impl->unpublish();
  return std::unique_ptr<ControlPlane>(new ControlPlane(std::move(impl)));
}

const RankContext& ControlPlane::rank() const noexcept { return impl_->rank_; }
const std::vector<Member>& ControlPlane::members() const noexcept { return impl_->members_; }
const std::string& ControlPlane::hub_host() const noexcept { return impl_->hub_host_; }
const std::string& ControlPlane::own_address() const noexcept { return impl_->own_address_; }
const std::string& ControlPlane::secret() const noexcept { return impl_->secret_; }

std::string ControlPlane::startup_table() const {
  std::size_t host_width = 4;
  std::size_t device_width = 6;
  for (const Member& m : impl_->members_) {
    host_width = std::max(host_width, m.host.size());
    device_width = std::max(device_width, m.device.size());
  }
  std::string table = fmt::format("{:>4}  {:<{}}  {:>10}  {:<{}}  {}\n", "rank", "host", host_width,
                                  "local rank", "device", device_width, "found by");
  for (const Member& m : impl_->members_) {
    table += fmt::format("{:>4}  {:<{}}  {:>10}  {:<{}}  {}\n", m.rank, m.host, host_width,
                         m.local_rank, m.device, device_width, m.found_by);
  }
  return table;
}

std::vector<std::string> ControlPlane::all_gather(const std::string& blob,
                                                  const std::string& label) {
  return all_gather(blob, label, impl_->options_.timeout);
}

std::vector<std::string> ControlPlane::all_gather(const std::string& blob, const std::string& label,
                                                  Timeout timeout) {
  if (impl_->client_ == nullptr) return {blob};
  ControlClient& client = *impl_->client_;
  const std::string body =
      client.end_call(client.begin_call(CallKind::kGather, label, blob, timeout));
  std::vector<std::string> blobs;
  Parser parser(body);
  for (int rank = 0; rank < impl_->rank_.world_size; ++rank) blobs.push_back(parser.text());
  return blobs;
}

std::string ControlPlane::broadcast(const std::string& blob, int root, const std::string& label) {
  const bool mine = impl_->rank_.rank == root;
  return std::move(
      all_gather(mine ? blob : std::string(), label).at(static_cast<std::size_t>(root)));
}

void ControlPlane::barrier(const std::string& label) { all_gather({}, label); }

void ControlPlane::agree_begin(const StepReport& report) {
  if (impl_->client_ == nullptr) {
    impl_->own_report_ = report;
    return;
  }
  if (impl_->agreement_ != 0) throw InternalError("agree_begin twice without agree_end");
  const std::string_view bytes(reinterpret_cast<const char*>(&report), sizeof report);
  impl_->agreement_ =
      impl_->client_->begin_call(CallKind::kAgree, "", bytes, impl_->options_.timeout);
}

std::vector<StepReport> ControlPlane::agree_end() {
  if (impl_->client_ == nullptr) return {impl_->own_report_.value()};
  if (impl_->agreement_ == 0) throw InternalError("agree_end without agree_begin");
  const std::string body = impl_->client_->end_call(std::exchange(impl_->agreement_, 0));
  std::vector<StepReport> reports = read_reports(body, impl_->rank_.world_size);
  for (std::size_t r = 1; r < reports.size(); ++r) {
    if (reports[r].step != reports[0].step) {
      throw CommError(
          fmt::format("the ranks have come apart: rank 0 is at step {}, rank {} ({}) at step {}",
                      reports[0].step, r, impl_->members_[r].host, reports[r].step));
    }
    if (reports[r].plan_hash != reports[0].plan_hash) {
      throw CommError(
          fmt::format(
              "step {}: rank {} ({}) follows another batch plan ({:016x}) than rank 0 ({:016x})",
              reports[0].step, r, impl_->members_[r].host, reports[r].plan_hash,
              reports[0].plan_hash),
          "all ranks must read the same data lists and config");
    }
  }
  return reports;
}

std::vector<StepReport> ControlPlane::agree(const StepReport& report) {
  agree_begin(report);
  return agree_end();
}

void ControlPlane::set_phase(const std::string& phase) {
  if (impl_->client_ != nullptr) impl_->client_->set_phase(phase);
}

void ControlPlane::request_stop() noexcept {
  if (impl_->client_ != nullptr) impl_->client_->request_stop();
}

bool ControlPlane::stop_requested() const noexcept {
  return impl_->client_ != nullptr && impl_->client_->stop_requested();
}

void ControlPlane::last_words(const std::string& message) noexcept {
  if (impl_->client_ != nullptr) impl_->client_->last_words(message);
}

void ControlPlane::finish() {
  if (impl_->client_ != nullptr) impl_->client_->finish();
}

std::optional<std::string> ControlPlane::failure() const {
  return impl_->client_ == nullptr ? std::nullopt : impl_->client_->failure();
}

void ControlPlane::on_failure(std::function<void(const std::string&)> callback) {
  if (impl_->client_ != nullptr) impl_->client_->on_failure(std::move(callback));
}

std::unique_ptr<Store> ControlPlane::open_store() const {
  if (impl_->client_ == nullptr) throw InternalError("a single rank has no store");
  return std::make_unique<Store>(Address{impl_->hub_host_, impl_->store_port_}, impl_->secret_,
                                 impl_->options_.join_timeout);
}

}  // namespace tutti::launch
