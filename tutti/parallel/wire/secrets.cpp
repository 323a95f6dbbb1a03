#include "tutti/parallel/wire/secrets.h"

#include <fmt/format.h>
#include <zmq.h>

#include <array>
#include <cstdlib>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/file_trust.h"
#include "tutti/core/json.h"

namespace tutti::parallel {
namespace fs = std::filesystem;

KeyPair make_key_pair() {
  std::array<char, 41> public_key{};
  std::array<char, 41> secret_key{};
  if (::zmq_curve_keypair(public_key.data(), secret_key.data()) != 0)
    throw CommError("this libzmq was built without CURVE", "install a libzmq with libsodium");
  return {public_key.data(), secret_key.data()};
}

std::string worker_identity(int worker, const std::string& life) {
  return fmt::format("w{}.{}", worker, life);
}

fs::path connect_file(const fs::path& run_folder) { return run_folder / ".tutti" / "connect.json"; }

void write_connect_file(const fs::path& run_folder, const ConnectInfo& info) {
  const fs::path path = connect_file(run_folder);
  make_private_folder(path.parent_path());
  Json json;
  json["version"] = 1;
  json["endpoint"] = info.endpoint;
  json["more_endpoints"] = info.more_endpoints;
  json["server_key"] = info.server_key;
  json["life"] = info.life;
  json["worker_public_key"] = info.worker.public_key;
  json["worker_secret_key"] = info.worker.secret_key;
  write_file_atomic(path, json.dump(), 0600);
  write_file_atomic(life_file(run_folder), info.life, 0600);
}

fs::path life_file(const fs::path& run_folder) { return run_folder / ".tutti" / "life"; }

bool sees_run_folder(const fs::path& run_folder, const std::string& life) try {
  return read_file(life_file(run_folder)) == life;
} catch (const Error&) {  // not there, or not for us
  return false;
}

std::string connect_variable(const fs::path& run_folder) {
  std::string hex;
  for (const char c : read_trusted_file(connect_file(run_folder)))
    hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return hex;
}

ConnectInfo read_connect_file(const fs::path& run_folder) {
  fs::path path = connect_file(run_folder);
  std::string text;
  if (const char* variable = std::getenv(kConnectVariable)) {
    path = kConnectVariable;
    for (const char* at = variable; at[0] != '\0' && at[1] != '\0'; at += 2)
      text.push_back(static_cast<char>(std::strtoul(std::string(at, 2).c_str(), nullptr, 16)));
    ::unsetenv(kConnectVariable);
  } else {
    text = read_trusted_file(path);
  }
  const Json json = parse_json(text, path.string());
  try {
    return {json.at("endpoint"),
            json.at("server_key"),
            {json.at("worker_public_key"), json.at("worker_secret_key")},
            json.value("more_endpoints", std::vector<std::string>{}),
            json.value("life", "")};
  } catch (const nlohmann::json::exception& error) {
    throw DataError(path.string() + ": not a connect file: " + error.what());
  }
}

Doorman::Doorman(void* zmq_context, std::string worker_public_key)
    : context_(zmq_context), allowed_key_([&] {
        std::string raw(32, '\0');
        if (::zmq_z85_decode(reinterpret_cast<std::uint8_t*>(raw.data()),
                             worker_public_key.c_str()) == nullptr)
          throw InternalError("a worker key is not Z85");
        return raw;
      }()) {
  const std::string stop_name = "inproc://tutti-doorman-stop";
  socket_ = ::zmq_socket(context_, ZMQ_REP);
  stop_ = ::zmq_socket(context_, ZMQ_PAIR);
  if (socket_ == nullptr || stop_ == nullptr ||
      ::zmq_bind(socket_, "inproc://zeromq.zap.01") != 0 ||
      ::zmq_bind(stop_, stop_name.c_str()) != 0)
    throw CommError(std::string("cannot start the authentication handler: ") +
                    ::zmq_strerror(::zmq_errno()));
  thread_ = std::thread([this] { serve(); });
}

Doorman::~Doorman() {
  void* signal = ::zmq_socket(context_, ZMQ_PAIR);
  ::zmq_connect(signal, "inproc://tutti-doorman-stop");
  ::zmq_send(signal, "", 0, 0);
  thread_.join();
  ::zmq_close(signal);
}

void Doorman::serve() {
  for (;;) {
    zmq_pollitem_t items[] = {{socket_, 0, ZMQ_POLLIN, 0}, {stop_, 0, ZMQ_POLLIN, 0}};
    if (::zmq_poll(items, 2, -1) < 0 && ::zmq_errno() != EINTR) break;
    if (items[1].revents != 0) break;
    if ((items[0].revents & ZMQ_POLLIN) == 0) continue;
    // version, request id, domain, address, identity, mechanism, credentials...
    std::vector<std::string> frames;
    bool more = true;
    while (more) {
      zmq_msg_t part;
      ::zmq_msg_init(&part);
      if (::zmq_msg_recv(&part, socket_, 0) < 0) {
        ::zmq_msg_close(&part);
        break;
      }
      frames.emplace_back(static_cast<const char*>(::zmq_msg_data(&part)), ::zmq_msg_size(&part));
      more = ::zmq_msg_more(&part) != 0;
      ::zmq_msg_close(&part);
    }
    const bool admitted = frames.size() == 7 && frames[5] == "CURVE" && frames[6] == allowed_key_;
    const std::string id = frames.size() > 1 ? frames[1] : "";
    const std::array<std::string, 6> reply = {
        "1.0", id, admitted ? "200" : "400", admitted ? "OK" : "unknown key", "worker", ""};
    for (std::size_t i = 0; i < reply.size(); ++i)
      ::zmq_send(socket_, reply[i].data(), reply[i].size(), i + 1 < reply.size() ? ZMQ_SNDMORE : 0);
  }
  ::zmq_close(socket_);
  ::zmq_close(stop_);
}

}  // namespace tutti::parallel
