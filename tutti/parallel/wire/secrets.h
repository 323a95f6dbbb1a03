// Who may talk to a driver: CURVE keys, one pair per worker, made by the driver when it asks for
// the worker and forgotten when the worker is gone.
//
//   KeyRing keys(run_folder);                   // the driver's
//   keys.publish(info);                         // writes .tutti/connect.json
//   keys.issue({0, 1, 2});                      // before the scheduler hears of these workers
//   const ConnectInfo own = read_connect_file(run_folder, 2);   // worker 2
//
// The driver's own secret never leaves its memory. Its address and public key are in
// RUN_FOLDER/.tutti/connect.json, a worker's secret is in .tutti/keys/ID, both 0600 and in a folder
// of 0700, which is how a worker on another host of the same user finds and proves itself. A worker obeys the
// driver that connect.json names, so it takes only a file that nobody else can have written
// (core/file_trust.h). Who a peer is, is decided by its key alone and never by what it calls itself.
// Nothing secret is on a command line or in a job script; in a job's environment only where the
// user asks for it (export_keys), and then the keys of that submission's workers, no others.
#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::parallel {

// All keys are Z85 text, 40 characters.
struct KeyPair {
  std::string public_key;
  std::string secret_key;
};
KeyPair make_key_pair();

struct ConnectInfo {
  std::string endpoint;                     // "tcp://10.0.0.7:40123"
  std::string server_key;                   // the driver's public key
  std::vector<std::string> more_endpoints;  // other networks of the driver's host, to try in order
  std::string life;  // of the driver: a worker that was started for another one is not wanted
  KeyPair worker;    // of the worker that reads it; the driver's own copy has none
};

std::filesystem::path connect_file(const std::filesystem::path& run_folder);
std::filesystem::path worker_key_file(const std::filesystem::path& run_folder, int worker);
// Says whose life the run folder is; beside connect.json, but it never travels.
std::filesystem::path life_file(const std::filesystem::path& run_folder);
// Does this host see the run folder of the driver of that life? On hosts reached by ssh a folder of
// the same name may be another one.
bool sees_run_folder(const std::filesystem::path& run_folder, const std::string& life);
// What both files say, in a variable of the job's environment, in letters that every scheduler
// passes on.
inline constexpr char kConnectVariable[] = "TUTTI_CONNECT";
// From the variable, which is then removed so that items do not see it, else from the files. Throws
// IoError when they cannot be read or trusted, DataError when they are not what they should be,
// CommError when they are of another driver than the one of `life` (empty: any will do).
ConnectInfo read_connect_file(const std::filesystem::path& run_folder, int worker,
                              const std::string& life = "");

// The keys of one driver's workers. Any thread.
class KeyRing {
 public:
  // Removes what an earlier driver has left. Throws IoError.
  explicit KeyRing(std::filesystem::path run_folder);
  ~KeyRing();  // removes all files
  KeyRing(const KeyRing&) = delete;
  KeyRing& operator=(const KeyRing&) = delete;

  // Writes connect.json. Throws IoError.
  void publish(ConnectInfo info);
  // Makes the keys of these workers, unless they have some, and writes their files.
  void issue(const std::vector<int>& workers);
  // The same for kConnectVariable. REQUIRES: they are issued.
  std::string variable(const std::vector<int>& workers) const;
  // From now on it is a stranger; a connection that it has is left to it.
  void revoke(int worker);
  // Whose key is it? `raw_public_key`: 32 bytes, as ZeroMQ hands it over.
  std::optional<int> owner(std::string_view raw_public_key) const;

 private:
  const std::filesystem::path run_folder_;
  mutable std::mutex mutex_;
  ConnectInfo info_;                                  // guarded by mutex_
  std::map<int, KeyPair> keys_;                       // guarded by mutex_
  std::map<std::string, int, std::less<>> owner_of_;  // guarded by mutex_; by raw public key
};

}  // namespace tutti::parallel
