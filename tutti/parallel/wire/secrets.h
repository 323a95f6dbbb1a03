// Who may talk to a driver: CURVE keys made per run, and the doorman that admits only them.
//
// The driver makes two key pairs. Its own secret never leaves its memory; the workers' pair and the
// driver's public key go into RUN_FOLDER/.tutti/connect.json, mode 0600, which is how a worker on
// another host of the same user finds and proves itself. A worker obeys the driver that file names,
// so it takes only one that nobody else can have written (core/file_trust.h). Nothing secret is on a command line or in
// a job script; in a job's environment only where the user asks for it (export_keys).
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace tutti::parallel {

// All keys are Z85 text, 40 characters.
struct KeyPair {
  std::string public_key;
  std::string secret_key;
};
KeyPair make_key_pair();

struct ConnectInfo {
  std::string endpoint;    // "tcp://10.0.0.7:40123"
  std::string server_key;  // the driver's public key
  KeyPair worker;
  std::vector<std::string> more_endpoints;  // other networks of the driver's host, to try in order
  std::string life;  // of the driver: a worker that was started for another one is not wanted
};

// What a worker calls itself on the wire: "w3.5f01c2aa".
std::string worker_identity(int worker, const std::string& life);

std::filesystem::path connect_file(const std::filesystem::path& run_folder);
void write_connect_file(const std::filesystem::path& run_folder, const ConnectInfo& info);
// Says whose life the run folder is; beside connect.json, but it never travels.
std::filesystem::path life_file(const std::filesystem::path& run_folder);
// Does this host see the run folder of the driver of that life? On hosts reached by ssh a folder of
// the same name may be another one.
bool sees_run_folder(const std::filesystem::path& run_folder, const std::string& life);
// The same in a variable of the job's environment, in letters that every scheduler passes on.
inline constexpr char kConnectVariable[] = "TUTTI_CONNECT";
std::string connect_variable(const std::filesystem::path& run_folder);
// From the variable, which is then removed so that items do not see it, else from the file. Throws
// IoError when it cannot be read or trusted, DataError when it is not one.
ConnectInfo read_connect_file(const std::filesystem::path& run_folder);

// Answers ZAP requests of one ZeroMQ context: peers with `worker_public_key` pass, others get
// nothing. Must be made before the server socket binds and destroyed before the context.
class Doorman {
 public:
  Doorman(void* zmq_context, std::string worker_public_key);
  ~Doorman();
  Doorman(const Doorman&) = delete;
  Doorman& operator=(const Doorman&) = delete;

 private:
  void serve();
  void* const context_;
  const std::string allowed_key_;  // 32 raw bytes
  void* socket_ = nullptr;         // touched only by the thread once it runs
  void* stop_ = nullptr;
  std::thread thread_;
};

}  // namespace tutti::parallel
