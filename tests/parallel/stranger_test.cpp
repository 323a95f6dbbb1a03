// Uninvited guests on the driver's port.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <map>
#include <optional>

#include "tests/parallel/items.h"
#include "tutti/core/file.h"
#include "tutti/core/random.h"
#include "tutti/core/text.h"
#include "tutti/parallel/run/driver_socket.h"
#include "tutti/parallel/wire/secrets.h"

namespace tutti::parallel {
namespace {

using namespace trial;

int connect_to(const std::string& endpoint) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(
      static_cast<std::uint16_t>(std::atoi(endpoint.substr(endpoint.rfind(':') + 1).c_str())));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

// A peer as a worker is one, or would like to be: it knows the driver, and has keys.
class Peer {
 public:
  Peer(const std::filesystem::path& run_folder, const KeyPair& keys, const std::string& name = "") {
    const Json info = parse_json(read_file(connect_file(run_folder)), "connect.json");
    const std::string server_key = info.at("server_key");
    const int linger = 0;
    ::zmq_setsockopt(socket_, ZMQ_LINGER, &linger, sizeof linger);
    ::zmq_setsockopt(socket_, ZMQ_CURVE_SERVERKEY, server_key.data(), 40);
    ::zmq_setsockopt(socket_, ZMQ_CURVE_PUBLICKEY, keys.public_key.data(), 40);
    ::zmq_setsockopt(socket_, ZMQ_CURVE_SECRETKEY, keys.secret_key.data(), 40);
    if (!name.empty()) ::zmq_setsockopt(socket_, ZMQ_ROUTING_ID, name.data(), name.size());
    ::zmq_connect(socket_, info.at("endpoint").get<std::string>().c_str());
  }
  ~Peer() {
    ::zmq_close(socket_);
    ::zmq_ctx_term(context_);
  }
  Peer(const Peer&) = delete;
  void send(const std::string& bytes) {
    ::zmq_send(socket_, bytes.data(), bytes.size(), ZMQ_DONTWAIT);
  }
  bool hears_anything() {
    char byte = 0;
    return ::zmq_recv(socket_, &byte, 1, ZMQ_DONTWAIT) >= 0;
  }

 private:
  void* const context_ = ::zmq_ctx_new();
  void* const socket_ = ::zmq_socket(context_, ZMQ_DEALER);
};

TEST(Stranger, GarbageSlowLorisAndWrongKeysDisturbNothing) {
  Client client(local(2));
  std::vector<int> open;
  Random random({3});
  for (int i = 0; i < 30; ++i) {
    const int fd = connect_to(client.endpoint());
    std::string bytes;
    if (i % 3 == 0) {
      for (int k = 0; k < 3000; ++k) bytes.push_back(static_cast<char>(random()));
    } else if (i % 3 == 1) {
      bytes = std::string("\xff\0\0\0\0\0\0\0\x01\x7f", 10);  // a ZMTP greeting that never goes on
    } else {
      bytes = "GET / HTTP/1.1\r\n\r\n";
    }
    [[maybe_unused]] const auto n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    open.push_back(fd);
  }
  // A real CURVE peer that knows the server's public key, but is nobody's worker.
  Peer stranger(client.run_folder(), make_key_pair(), "w0");
  stranger.send(wire::encode(wire::Hello{0, 1, "evil"}));

  JobSpec job;
  job.function = "one_millisecond";
  std::uint64_t seen = 0;
  const RunReport report =
      client.run(job, {.indices = range(500)}, [&](const Outcome&) { ++seen; });
  EXPECT_EQ(seen, 500U);
  EXPECT_EQ(report.workers_lost, 0U);
  EXPECT_GT(report.refused_peers, 0U);
  EXPECT_FALSE(stranger.hears_anything());
  for (const int fd : open) ::close(fd);
}

TEST(Stranger, AnAdmittedPeerThatTalksNonsenseIsCountedAndDropped) {
  Client client(local(2));
  JobSpec job;
  job.function = "one_millisecond";
  std::uint64_t seen = 0;
  std::optional<Peer> peer;
  int other = -1;
  const auto talk = [&](const Outcome& outcome) {
    ++seen;
    // A stolen key is good for the items of its own worker, and for no others.
    EXPECT_TRUE(outcome.payload != "666" || outcome.worker == other);
    if (peer || outcome.worker < 0) return;
    // Somebody has got hold of the key of the other worker.
    other = 1 - outcome.worker;
    if (!std::filesystem::exists(worker_key_file(client.run_folder(), other))) return;
    peer.emplace(client.run_folder(), read_connect_file(client.run_folder(), other).worker);
    for (int i = 0; i < 20; ++i) {
      peer->send("");
      peer->send("TU");
      peer->send("hello");
    }
    peer->send(wire::encode(wire::Hello{static_cast<std::uint32_t>(outcome.worker), 1, "h"}));
    for (std::uint64_t lease = 0; lease < 100; ++lease) {
      const std::uint64_t id = (std::uint64_t{1} << 32) + lease;
      peer->send(wire::encode(wire::Released{id, {{0, 5}}}));
      for (std::uint64_t index = 0; index < 300; index += 7)
        peer->send(wire::encode(wire::Results{id, {{index, wire::ItemStatus::kOk, 1, "666"}}}));
    }
  };
  testing::internal::CaptureStderr();
  const RunReport report = client.run(job, {.indices = range(300)}, talk);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(seen, 300U);
  EXPECT_GT(report.bad_messages, 60U);
  // The log does not repeat what can go on all day.
  EXPECT_LE(split(log, '\n').size(), 4U) << log;
}

// A key says who a worker is, whatever the worker says.
TEST(Secrets, EachWorkerHasAKeyThatIsGoodForItselfAndUntilItIsRevoked) {
  const TempFolder folder("tutti-keys");
  DriverSocket driver({.run_folder = folder.path(), .life = "life", .n_workers = 2});
  driver.keys().issue({0, 1});
  const KeyPair first = read_connect_file(folder.path(), 0).worker;
  const KeyPair second = read_connect_file(folder.path(), 1).worker;
  EXPECT_NE(first.secret_key, second.secret_key);
  for (const int worker : {0, 1}) {
    struct stat info {};
    ASSERT_EQ(::stat(worker_key_file(folder.path(), worker).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600U);
  }
  const auto receive = [&]() -> std::optional<DriverSocket::Letter> {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < deadline) {
      driver.wait(-1, 10);
      if (auto letter = driver.receive()) return letter;
    }
    return std::nullopt;
  };
  {
    Peer one(folder.path(), first);
    Peer liar(folder.path(), second, "0");  // says that it is worker 0
    one.send("from one");
    liar.send("from the liar");
    std::map<std::string, int> senders;
    for (int i = 0; i < 2; ++i) {
      const auto letter = receive();
      ASSERT_TRUE(letter);
      senders[letter->bytes] = letter->worker;
    }
    EXPECT_EQ(senders, (std::map<std::string, int>{{"from one", 0}, {"from the liar", 1}}));
  }
  driver.keys().revoke(1);
  EXPECT_FALSE(std::filesystem::exists(worker_key_file(folder.path(), 1)));
  Peer gone(folder.path(), second);
  gone.send("from the dead");
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  int refused = 0;
  while (refused == 0 && std::chrono::steady_clock::now() < deadline) {
    driver.wait(-1, 10);
    EXPECT_FALSE(driver.receive());
    refused += driver.take_events().refused;
  }
  EXPECT_GT(refused, 0);
}

TEST(Secrets, TheKeyFileIsForItsOwnerOnlyAndGoneAfterwards) {
  const TempFolder folder("tutti-keys");
  {
    const Client client(local(1), {.run_folder = folder.path()});
    struct stat info {};
    ASSERT_EQ(::stat(connect_file(folder.path()).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600U);
  }
  EXPECT_FALSE(std::filesystem::exists(connect_file(folder.path())));
  EXPECT_FALSE(std::filesystem::exists(worker_key_file(folder.path(), 0).parent_path()));
}

}  // namespace
}  // namespace tutti::parallel
