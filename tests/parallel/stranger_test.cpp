// Uninvited guests on the driver's port.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <thread>

#include "tests/parallel/items.h"
#include "tutti/core/random.h"
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
  const ConnectInfo info = read_connect_file(client.run_folder());
  const KeyPair stranger = make_key_pair();
  void* context = ::zmq_ctx_new();
  void* socket = ::zmq_socket(context, ZMQ_DEALER);
  const int linger = 0;
  ::zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
  ::zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, info.server_key.data(), 40);
  ::zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, stranger.public_key.data(), 40);
  ::zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, stranger.secret_key.data(), 40);
  ::zmq_setsockopt(socket, ZMQ_ROUTING_ID, "w0", 2);
  ::zmq_connect(socket, client.endpoint().c_str());
  const std::string hello = wire::encode(wire::Hello{0, 1, "evil"});
  ::zmq_send(socket, hello.data(), hello.size(), ZMQ_DONTWAIT);

  JobSpec job;
  job.function = "one_millisecond";
  std::uint64_t seen = 0;
  const RunReport report =
      client.run(job, {.indices = range(500)}, [&](const Outcome&) { ++seen; });
  EXPECT_EQ(seen, 500U);
  EXPECT_EQ(report.workers_lost, 0U);
  EXPECT_GT(report.refused_peers, 0U);
  char byte = 0;
  EXPECT_LT(::zmq_recv(socket, &byte, 1, ZMQ_DONTWAIT), 0);  // unknown peers get nothing
  ::zmq_close(socket);
  ::zmq_ctx_term(context);
  for (const int fd : open) ::close(fd);
}

TEST(Stranger, AnAdmittedPeerThatTalksNonsenseIsCountedAndDropped) {
  Client client(local(1));
  const ConnectInfo info = read_connect_file(client.run_folder());
  void* context = ::zmq_ctx_new();
  void* socket = ::zmq_socket(context, ZMQ_DEALER);
  const int linger = 0;
  ::zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
  ::zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, info.server_key.data(), 40);
  ::zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, info.worker.public_key.data(), 40);
  ::zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, info.worker.secret_key.data(), 40);
  ::zmq_connect(socket, client.endpoint().c_str());
  std::vector<std::string> nonsense = {
      "",
      "TU",
      "hello",
      wire::encode(wire::Hello{77, 1, "h"}),
      wire::encode(wire::Results{1, {{0, wire::ItemStatus::kOk, 1, "666"}}}),
      wire::encode(wire::Released{1, {{0, 5}}})};
  JobSpec job;
  job.function = "one_millisecond";
  std::uint64_t seen = 0;
  const RunReport report = client.run(job, {.indices = range(300)}, [&](const Outcome& outcome) {
    ++seen;
    EXPECT_NE(outcome.payload, "666");
    for (const auto& bytes : nonsense) ::zmq_send(socket, bytes.data(), bytes.size(), ZMQ_DONTWAIT);
  });
  EXPECT_EQ(seen, 300U);
  EXPECT_GT(report.bad_messages, 0U);
  ::zmq_close(socket);
  ::zmq_ctx_term(context);
}

TEST(Secrets, TheKeyFileIsForItsOwnerOnlyAndGoneAfterwards) {
  std::filesystem::path file;
  {
    const Client client(local(1));
    file = connect_file(client.run_folder());
    struct stat info {};
    ASSERT_EQ(::stat(file.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600U);
  }
  EXPECT_FALSE(std::filesystem::exists(file));
}

}  // namespace
}  // namespace tutti::parallel
