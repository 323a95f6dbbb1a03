#include "tutti/parallel/folder/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <random>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/parallel/wire/process_identity.h"

namespace tutti::parallel {
namespace fs = std::filesystem;
namespace {

constexpr double kStaleSeconds = 60;

Json read_lock(const fs::path& path) {
  try {
    return parse_json(read_file(path), path.string());
  } catch (const Error&) {  // gone, or unreadable: the heartbeat (none) decides
    return nullptr;
  }
}

bool is_alive(const Json& lock) {
  if (!lock.is_object()) return false;
  if (const auto alive = ProcessIdentity::from_json(lock).alive()) return *alive;
  return Clock::system().unix_seconds() - lock.value("heartbeat", 0.0) < kStaleSeconds;
}

}  // namespace

fs::path FolderLock::path(const fs::path& folder) { return folder / ".tutti" / "lock"; }

FolderLock::FolderLock(const fs::path& folder)
    : path_(path(folder)), since_(utc_timestamp(Clock::system().unix_seconds())) {
  std::random_device random;
  nonce_ = fmt::format("{:08x}{:08x}", random(), random());
  make_folders(path_.parent_path());
  for (int attempt = 0; attempt < 10; ++attempt) {
    if (try_create()) {
      last_beat_ = std::chrono::steady_clock::now();
      return;
    }
    const Json lock = read_lock(path_);
    if (is_alive(lock))
      throw IoError(
          fmt::format("{} is in use by process {} on {} since {}", folder.string(),
                      lock.value("pid", 0L), lock.value("host", "?"), lock.value("since", "?")),
          "wait for it (tutti wait), stop it (tutti cancel), or use another folder");
    // Stale. Move it aside first: of two who try, one moves it, and checks that it moved what it
    // saw.
    const fs::path aside = fmt::format("{}.stale.{}", path_.string(), nonce_);
    if (::rename(path_.c_str(), aside.c_str()) != 0) continue;
    const Json moved = read_lock(aside);
    if (moved != lock) ::link(aside.c_str(), path_.c_str());  // somebody newer: give it back
    ::unlink(aside.c_str());
  }
  throw IoError("cannot lock " + folder.string(), "is another driver starting in it all the time?");
}

FolderLock::~FolderLock() {
  const Json lock = read_lock(path_);
  if (lock.is_object() && lock.value("nonce", "") == nonce_) ::unlink(path_.c_str());
}

std::string FolderLock::content() const {
  Json json;
  ProcessIdentity::self().put_into(json);
  json["since"] = since_;
  json["heartbeat"] = Clock::system().unix_seconds();
  json["nonce"] = nonce_;
  return json.dump();
}

// link() is atomic and carries the content, so nobody ever reads a half-written lock.
bool FolderLock::try_create() const {
  const fs::path own = fmt::format("{}.new.{}", path_.string(), nonce_);
  write_file_atomic(own, content());
  const bool made = ::link(own.c_str(), path_.c_str()) == 0;
  const int failure = errno;
  ::unlink(own.c_str());
  if (!made && failure != EEXIST) throw_errno("cannot create " + path_.string(), failure);
  return made;
}

void FolderLock::beat() {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_beat_ < std::chrono::seconds(10)) return;
  last_beat_ = now;
  const Json lock = read_lock(path_);
  if (!lock.is_object() || lock.value("nonce", "") != nonce_)
    throw IoError(
        fmt::format("{}: another driver took this folder over", path_.string()),
        "this process was stopped or cut off for more than a minute; let the other one finish");
  write_file_atomic(path_, content());
}

void FolderLock::forget(const fs::path& folder) noexcept {
  try {
    const Json lock = read_lock(path(folder));
    Json own = lock;
    ProcessIdentity::self().put_into(own);
    if (lock.is_object() && own == lock) ::unlink(path(folder).c_str());
  } catch (const std::exception&) {  // it grows old by itself
  }
}

FolderLock::Holder FolderLock::holder(const fs::path& folder) {
  const Json lock = read_lock(path(folder));
  if (!lock.is_object()) return {};
  return {is_alive(lock), lock.value("host", ""), lock.value("pid", 0L), lock.value("since", "")};
}

}  // namespace tutti::parallel
