#include "tutti/launch/nodes.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/launch/auth.h"
#include "tutti/launch/rendezvous.h"

namespace tutti::launch {
namespace {

constexpr Timeout kLease{10};
// How long the first start waits for nodes beyond the fewest it may have.
constexpr Timeout kLastCall{30};
constexpr char kNodesService[] = "agents";

RankContext meeting_of(const AgentOptions& options) {
  RankContext rank;
  rank.run_id = options.run_id;
  rank.restart_count = options.restart_count;
  return rank;
}

// An address without a port is a hint for others, not a place to meet.
bool has_master(const AgentOptions& options) {
  return !options.master_addr.empty() && options.master_port != 0;
}

// The numbers behind a prefix: "alive/0", "alive/2" -> 0, 2.
std::set<int> numbers_under(Store& store, const std::string& prefix) {
  std::set<int> numbers;
  for (const auto& [name, value] : store.list(prefix))
    numbers.insert(std::stoi(name.substr(prefix.size())));
  return numbers;
}

// A port for the ranks' own server. It stays bound with SO_REUSEADDR but does not listen: a
// listener with the same option (torch's store sets it) may still take it, a bind to port 0 will
// not.
UniqueFd reserve_port(int& port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  sockaddr_in any{};
  any.sin_family = AF_INET;
  socklen_t length = sizeof any;
  if (!fd || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(fd.get(), reinterpret_cast<sockaddr*>(&any), sizeof any) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&any), &length) != 0) {
    throw_errno("cannot reserve a port for the ranks", errno);
  }
  port = ntohs(any.sin_port);
  return fd;
}

}  // namespace

std::string Failure::to_text() const {
  return to_json_line(Json{{"rank", rank},
                           {"node", node},
                           {"host", host},
                           {"exit_code", exit_code},
                           {"how", how},
                           {"tail", tail}});
}

Failure Failure::parse(const std::string& text) {
  const Json json = parse_json(text, "failure report");
  return {json.value("rank", -1),
          json.value("node", 0),
          json.value("host", std::string()),
          json.value("exit_code", 1),
          json.value("how", std::string()),
          json.value("tail", std::string())};
}

Nodes::Nodes(const AgentOptions& options, std::function<bool()> stopped)
    : options_(options), stopped_(std::move(stopped)) {
  if (options_.node_rank == 0) serve();
  if (!store_) connect();
  if (options_.num_nodes > 1) watcher_ = std::thread(&Nodes::watch, this);
}

Nodes::~Nodes() {
  stopping_ = true;
  if (watcher_.joinable()) watcher_.join();
}

void Nodes::serve() {
  secret_ = options_.secret;
  const bool alone = options_.num_nodes == 1;
  const bool direct = !alone && has_master(options_);
  if (direct && secret_.empty()) {
    secret_ = "run " + options_.run_id;
    log::warning(
        "TUTTI_SECRET is not set: whoever reaches port {} and knows the run's name may join",
        options_.master_port);
  }
  if (secret_.empty()) secret_ = to_hex(random_bytes(16));
  server_ =
      std::make_unique<StoreServer>(StoreServer::Options{.host = alone ? "127.0.0.1" : "",
                                                         .port = direct ? options_.master_port : 0,
                                                         .secrets = {secret_}});
  store_ = std::make_unique<Store>(Address{"127.0.0.1", server_->port()}, secret_, Timeout(30));
  if (alone || direct) return;
  Publication publication{own_addresses(options_.interface), server_->port(), secret_};
  publication.hosts.emplace_back("127.0.0.1");
  write_publication(publication_path(options_.run_folder, kNodesService, meeting_of(options_)),
                    publication);
}

void Nodes::connect() {
  const Deadline deadline = deadline_in(options_.join_timeout);
  std::string trouble = "its address was not published";
  while (std::chrono::steady_clock::now() < deadline && !stopped_()) {
    Publication publication;
    if (has_master(options_)) {
      publication = {{options_.master_addr},
                     options_.master_port,
                     options_.secret.empty() ? "run " + options_.run_id : options_.secret};
    } else if (const auto found = read_publication(
                   publication_path(options_.run_folder, kNodesService, meeting_of(options_)))) {
      publication = *found;
    }
    for (const std::string& host : publication.hosts) {
      try {
        store_ = std::make_unique<Store>(Address{host, publication.port}, publication.secret,
                                         Timeout(1));
        secret_ = publication.secret;
        return;
      } catch (const CommError& error) {
        trouble = error.what();
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  throw CommError(
      fmt::format("node {} ({}) could not reach node 0's agent within {} s: {}", options_.node_rank,
                  host_name(), options_.join_timeout.count(), trouble),
      "check --master_addr/--master_port (or the shared run folder) and TUTTI_SECRET");
}

std::string Nodes::key(int round, const std::string& name) {
  return fmt::format("round{}/{}", round, name);
}

int Nodes::first_round() {
  const auto round = store_->get("round");
  if (!round) return 0;
  log::warning("the run has begun without this node; it joins at the next restart");
  return std::stoi(*round) + 1;
}

std::vector<int> Nodes::gather(int number) {
  const Deadline deadline = deadline_in(options_.join_timeout);
  const Deadline last_call = deadline_in(kLastCall);
  Deadline next_report = deadline_in(Timeout(30));
  std::set<int> expected;
  {
    const std::lock_guard lock(mutex_);
    expected.insert(present_.members.begin(), present_.members.end());
  }
  if (expected.empty())
    for (int node = 0; node < options_.num_nodes; ++node) expected.insert(node);
  while (!stopped_()) {
    const std::set<int> alive = numbers_under(*store_, "alive/");
    std::vector<int> here, missing;
    for (const int node : numbers_under(*store_, key(number, "here/")))
      if (alive.contains(node)) here.push_back(node);
    for (const int node : expected)
      if (!std::binary_search(here.begin(), here.end(), node)) missing.push_back(node);
    if (missing.empty()) return here;
    const auto now = std::chrono::steady_clock::now();
    // Those that were part of the run are waited for while they live: their ranks take time to end.
    const bool lost = number > 0 && std::none_of(missing.begin(), missing.end(),
                                                 [&](int node) { return alive.contains(node); });
    if (static_cast<int>(here.size()) >= min_nodes() && (lost || (number == 0 && now >= last_call)))
      return here;
    const std::string who = fmt::format(
        "{} of {} nodes are here, {} expected; missing: {}", here.size(), options_.num_nodes,
        min_nodes() < options_.num_nodes ? fmt::format("at least {}", min_nodes()) : "all",
        fmt::join(missing, ", "));
    if (now >= deadline) throw CommError("agents of nodes are missing: " + who);
    if (now >= next_report) {
      log::warning("waiting for other nodes: {}", who);
      next_report = deadline_in(Timeout(30));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return {};
}

void Nodes::publish_round(int number, const std::vector<int>& members) {
  int port = 0;
  reserved_port_ = reserve_port(port);
  const std::string host = options_.num_nodes == 1 ? "127.0.0.1"
                           : options_.master_addr.empty()
                               ? own_addresses(options_.interface).front()
                               : options_.master_addr;
  store_->set(key(number, "master"), Address{host, port}.text());
  store_->set("round", std::to_string(number));
  store_->set(key(number, "members"), Json(members).dump());
}

std::optional<Round> Nodes::published(int number) {
  while (!stopped_()) {
    if (store_->get("over")) return Round{.number = number};
    if (const auto text = store_->get(key(number, "members"))) {
      Round round{.number = number,
                  .members = parse_json(*text, "nodes of the round").get<std::vector<int>>()};
      const auto own = std::find(round.members.begin(), round.members.end(), options_.node_rank);
      if (own != round.members.end()) {
        round.place = static_cast<int>(own - round.members.begin());
        return round;
      }
      log::warning("the run goes on without this node, by nodes {}; it joins at the next restart",
                   fmt::join(round.members, ", "));
      store_->set(key(++number, "here/" + std::to_string(options_.node_rank)),
                  std::to_string(options_.nproc_per_node));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return std::nullopt;
}

void Nodes::check_nproc(const Round& round) {
  for (const int node : round.members) {
    const auto value = store_->get(key(round.number, "here/" + std::to_string(node)));
    if (!value || *value == std::to_string(options_.nproc_per_node)) continue;
    throw ConfigError(fmt::format("nproc_per_node: got {} here on node {}, but {} on node {}",
                                  options_.nproc_per_node, options_.node_rank, *value, node),
                      "use the same number on every node");
  }
}

std::optional<Round> Nodes::begin_round(int number, bool only_if_lost) {
  if (cut_off_)
    throw CommError("node 0's agent is lost, and with it the meeting place of the nodes");
  const std::string self = std::to_string(options_.node_rank);
  store_->set("alive/" + self, host_name(), kLease);
  store_->set(key(number, "here/" + self), std::to_string(options_.nproc_per_node));
  std::vector<int> before;
  {
    const std::lock_guard lock(mutex_);
    before = present_.members;
  }
  if (options_.node_rank == 0) {
    const std::vector<int> members = gather(number);
    if (members.empty()) return std::nullopt;
    const bool all_there =
        std::includes(members.begin(), members.end(), before.begin(), before.end());
    if (only_if_lost && all_there)
      store_->set("over", "1");
    else
      publish_round(number, members);
  }
  std::optional<Round> round = published(number);
  if (!round || round->members.empty()) return round;
  std::set_difference(before.begin(), before.end(), round->members.begin(), round->members.end(),
                      std::back_inserter(round->lost));
  check_nproc(*round);
  round->master =
      Address::parse(store_->wait(key(round->number, "master"), Timeout(30)), "master address");
  const std::lock_guard lock(mutex_);
  remote_failure_.reset();
  all_done_ = options_.num_nodes == 1;
  present_ = *round;
  return round;
}

Failure Nodes::report(int round, const Failure& failure) noexcept {
  try {
    return Failure::parse(store_->compare_set(key(round, "failure"), "", failure.to_text()));
  } catch (const std::exception&) {  // the store is gone: then ours is the failure we know of
    return failure;
  }
}

void Nodes::report_done(int round) {
  store_->set(key(round, "done/" + std::to_string(options_.node_rank)), "1");
}

std::optional<Failure> Nodes::remote_failure() const {
  const std::lock_guard lock(mutex_);
  return remote_failure_;
}

void Nodes::leave() noexcept {
  Round round;
  {
    const std::lock_guard lock(mutex_);
    round = present_;
  }
  if (options_.num_nodes == 1 || round.members.empty()) return;
  try {
    if (options_.node_rank == 0) store_->set("over", "1");  // for nodes that wait to join
    store_->barrier(key(round.number, "leave"), round.place, static_cast<int>(round.members.size()),
                    Timeout(10));
  } catch (const std::exception&) {  // others are gone already: nobody needs us any more
  }
}

void Nodes::watch_once(Store& store) {
  store.set("alive/" + std::to_string(options_.node_rank), host_name(), kLease);
  Round round;
  {
    const std::lock_guard lock(mutex_);
    round = present_;
  }
  if (round.members.empty()) return;
  std::optional<Failure> failure;
  if (const auto text = store.get(key(round.number, "failure"))) failure = Failure::parse(*text);
  const std::set<int> alive = numbers_under(store, "alive/");
  for (const int node : round.members) {
    if (failure || alive.contains(node)) continue;
    failure = Failure{
        .node = node,
        .exit_code = static_cast<int>(ExitCode::kCommunication),
        .how = fmt::format("its agent has ended, or has been silent for {} s", kLease.count())};
    failure =
        Failure::parse(store.compare_set(key(round.number, "failure"), "", failure->to_text()));
  }
  const auto done = store.list(key(round.number, "done/"));
  const std::lock_guard lock(mutex_);
  if (round.number != present_.number) return;  // the agent has moved on while we looked
  if (failure && !remote_failure_) remote_failure_ = failure;
  if (done.size() == round.members.size()) all_done_ = true;
}

void Nodes::watch() {
  std::unique_ptr<Store> store;
  while (!stopping_) {
    try {
      // Its own connection: the agent's thread may be waiting in a barrier on the other.
      if (!store) store = std::make_unique<Store>(store_->address(), secret_, Timeout(5));
      watch_once(*store);
    } catch (const std::exception& error) {
      cut_off_ = true;
      if (!all_done_) {
        const std::lock_guard lock(mutex_);
        if (!remote_failure_) {
          remote_failure_ = Failure{.exit_code = static_cast<int>(ExitCode::kCommunication),
                                    .how = fmt::format("node 0's agent is lost: {}", error.what())};
        }
      }
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

}  // namespace tutti::launch
