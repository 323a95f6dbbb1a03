#include "tutti/parallel/wire/secrets.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <zmq.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/file_trust.h"
#include "tutti/core/json.h"

namespace tutti::parallel {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kKeyLetters = 40;

// The pair of a secret that came from outside.
KeyPair pair_of(std::string secret, const std::string& where) {
  std::array<char, kKeyLetters + 1> public_key{};
  if (secret.size() != kKeyLetters || ::zmq_curve_public(public_key.data(), secret.c_str()) != 0)
    throw DataError(where + ": not a worker's key");
  return {public_key.data(), std::move(secret)};
}

std::string raw_key(const std::string& z85) {
  std::string raw(32, '\0');
  if (::zmq_z85_decode(reinterpret_cast<std::uint8_t*>(raw.data()), z85.c_str()) == nullptr)
    throw InternalError("a worker's key is not Z85");
  return raw;
}

Json to_json(const ConnectInfo& info) {
  return {{"version", 2},
          {"endpoint", info.endpoint},
          {"more_endpoints", info.more_endpoints},
          {"server_key", info.server_key},
          {"life", info.life}};
}

// Not durable: it is of no use after a power cut, and a thousand workers need a thousand of them.
void write_key_file(const fs::path& path, const std::string& secret) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd) throw_errno("cannot create " + path.string(), errno);
  write_all(fd.get(), secret, path);
}

fs::path keys_folder(const fs::path& run_folder) { return run_folder / ".tutti" / "keys"; }

std::string from_hex(std::string_view hex) {
  std::string text;
  for (std::size_t at = 0; at + 1 < hex.size(); at += 2)
    text.push_back(
        static_cast<char>(std::strtoul(std::string(hex.substr(at, 2)).c_str(), nullptr, 16)));
  return text;
}

}  // namespace

KeyPair make_key_pair() {
  std::array<char, kKeyLetters + 1> public_key{};
  std::array<char, kKeyLetters + 1> secret_key{};
  if (::zmq_curve_keypair(public_key.data(), secret_key.data()) != 0)
    throw CommError("this libzmq was built without CURVE", "install a libzmq with libsodium");
  return {public_key.data(), secret_key.data()};
}

fs::path connect_file(const fs::path& run_folder) { return run_folder / ".tutti" / "connect.json"; }

fs::path worker_key_file(const fs::path& run_folder, int worker) {
  return keys_folder(run_folder) / std::to_string(worker);
}

fs::path life_file(const fs::path& run_folder) { return run_folder / ".tutti" / "life"; }

bool sees_run_folder(const fs::path& run_folder, const std::string& life) try {
  return read_file(life_file(run_folder)) == life;
} catch (const Error&) {  // not there, or not for us
  return false;
}

ConnectInfo read_connect_file(const fs::path& run_folder, int worker, const std::string& life) {
  fs::path path = connect_file(run_folder);
  const char* variable = std::getenv(kConnectVariable);
  const std::string text = variable != nullptr ? from_hex(variable) : read_trusted_file(path);
  if (variable != nullptr) {
    path = kConnectVariable;
    ::unsetenv(kConnectVariable);
  }
  const Json json = parse_json(text, path.string());
  try {
    ConnectInfo info{.endpoint = json.at("endpoint"),
                     .server_key = json.at("server_key"),
                     .more_endpoints = json.value("more_endpoints", std::vector<std::string>{}),
                     .life = json.value("life", "")};
    if (!life.empty() && life != info.life)
      throw CommError("the driver that asked for this worker is gone; another uses the folder now");
    const fs::path file = worker_key_file(run_folder, worker);
    info.worker = path == kConnectVariable
                      ? pair_of(json.at("keys").at(std::to_string(worker)), path.string())
                      : pair_of(read_trusted_file(file, path.parent_path()), file.string());
    return info;
  } catch (const nlohmann::json::exception& error) {
    throw DataError(path.string() + ": not a connect file: " + error.what());
  }
}

KeyRing::KeyRing(fs::path run_folder) : run_folder_(std::move(run_folder)) {
  make_private_folder(connect_file(run_folder_).parent_path());
  fs::remove_all(keys_folder(run_folder_));
  make_private_folder(keys_folder(run_folder_));
}

void KeyRing::publish(ConnectInfo info) {
  const std::lock_guard lock(mutex_);
  info_ = std::move(info);
  write_file_atomic(connect_file(run_folder_), to_json(info_).dump(), 0600);
  write_file_atomic(life_file(run_folder_), info_.life, 0600);
}

KeyRing::~KeyRing() {
  std::error_code ignored;  // a read-only or vanished folder must not break the way out
  fs::remove(connect_file(run_folder_), ignored);
  fs::remove(life_file(run_folder_), ignored);
  fs::remove_all(keys_folder(run_folder_), ignored);
}

void KeyRing::issue(const std::vector<int>& workers) {
  for (const int worker : workers) {
    KeyPair pair = make_key_pair();
    {
      const std::lock_guard lock(mutex_);
      if (keys_.contains(worker)) continue;
      owner_of_[raw_key(pair.public_key)] = worker;
      keys_[worker] = pair;
    }
    write_key_file(worker_key_file(run_folder_, worker), pair.secret_key);
  }
}

std::string KeyRing::variable(const std::vector<int>& workers) const {
  const std::lock_guard lock(mutex_);
  Json json = to_json(info_);
  for (const int worker : workers)
    json["keys"][std::to_string(worker)] = keys_.at(worker).secret_key;
  std::string hex;
  for (const char c : json.dump()) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return hex;
}

void KeyRing::revoke(int worker) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = keys_.find(worker);
    if (found == keys_.end()) return;
    owner_of_.erase(raw_key(found->second.public_key));
    keys_.erase(found);
  }
  std::error_code ignored;  // it is of no use to anybody
  fs::remove(worker_key_file(run_folder_, worker), ignored);
}

std::optional<int> KeyRing::owner(std::string_view raw_public_key) const {
  const std::lock_guard lock(mutex_);
  const auto found = owner_of_.find(raw_public_key);
  return found == owner_of_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace tutti::parallel
