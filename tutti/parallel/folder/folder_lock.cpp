#include "tutti/parallel/folder/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <ctime>
#include <random>
#include <thread>
#include <utility>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/replace_file.h"
#include "tutti/parallel/wire/process_identity.h"

namespace tutti::parallel {
namespace fs = std::filesystem;
namespace {

constexpr double kBeat = 5;

// Also counts the time in which the machine was asleep or we were stopped.
double boot_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

Json read_lock(const fs::path& path) {
  try {
    return parse_json(read_file(path), path.string());
  } catch (const Error&) {  // gone, or unreadable
    return nullptr;
  }
}

FolderLock::Holder judge(const Json& lock, BeatWatch& watch) {
  if (!lock.is_object()) return {};
  FolderLock::Holder holder{.host = lock.value("host", ""),
                            .pid = lock.value("pid", 0L),
                            .since = lock.value("since", "")};
  if (const auto alive = ProcessIdentity::from_json(lock).alive()) {
    holder.alive = *alive;
    return holder;
  }
  const auto sign = watch.look(lock.value("nonce", ""), lock.value("beat", std::uint64_t{0}));
  holder.alive = sign != BeatWatch::Sign::kDead;
  holder.sure = sign != BeatWatch::Sign::kUnsure;
  return holder;
}

}  // namespace

fs::path FolderLock::path(const fs::path& folder) { return folder / ".tutti" / "lock"; }

FolderLock::FolderLock(const fs::path& folder, double patience_s)
    : path_(path(folder)), since_(utc_timestamp(Clock::system().unix_seconds())) {
  std::random_device random;
  nonce_ = fmt::format("{:08x}{:08x}", random(), random());
  make_folders(path_.parent_path());
  BeatWatch watch(patience_s);
  bool told = false;
  for (int attempt = 0; attempt < 10;) {
    last_seen_ = boot_seconds();
    if (try_create()) return;
    const Json lock = read_lock(path_);
    const Holder holder = judge(lock, watch);
    if (holder.alive && holder.sure)
      throw IoError(fmt::format("{} is in use by process {} on {} since {}", folder.string(),
                                holder.pid, holder.host, holder.since),
                    "wait for it (tutti wait), stop it (tutti cancel), or use another folder");
    if (holder.alive) {
      if (!std::exchange(told, true))
        log::info("{} was in use by process {} on {}; watching for {:.0f} s whether it lives",
                  folder.string(), holder.pid, holder.host, patience_s);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      continue;
    }
    ++attempt;
    // Stale. Move it aside first: of two who try, one moves it, and checks that it moved what it
    // saw.
    const fs::path aside = fmt::format("{}.stale.{}", path_.string(), nonce_);
    if (::rename(path_.c_str(), aside.c_str()) != 0) continue;
    const Json moved = read_lock(aside);
    // Somebody newer: give it back, unless a third has the place already.
    if (moved != lock && ::link(aside.c_str(), path_.c_str()) != 0 && errno != EEXIST)
      throw_errno("cannot give back the lock of " + folder.string(), errno);
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
  json["beat"] = beat_;
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

void FolderLock::read_again() {
  const Json lock = read_lock(path_);
  if (!lock.is_object())
    throw IoError(path_.string() + " was removed while the run was going",
                  "nobody may touch the output folder while a run works in it; run it again");
  if (lock.value("nonce", "") != nonce_)
    throw IoError(
        fmt::format("{}: another driver took this folder over", path_.string()),
        "this process was stopped or cut off for more than a minute; let the other one finish");
}

void FolderLock::check() {
  // Nobody takes it from us before he has seen no beat for much longer than this.
  if (boot_seconds() - last_seen_ < 4 * kBeat) return;
  read_again();
  last_seen_ = boot_seconds();
}

void FolderLock::beat() {
  const double now = boot_seconds();
  if (now - last_seen_ < kBeat) return;
  read_again();
  ++beat_;
  replace_file(path_, content());
  last_seen_ = now;
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
  BeatWatch first_look(kPatience);
  return holder(folder, first_look);
}

FolderLock::Holder FolderLock::holder(const fs::path& folder, BeatWatch& watch) {
  return judge(read_lock(path(folder)), watch);
}

BeatKeeper::BeatKeeper(FolderLock& lock)
    : thread_([this, &lock] {
        std::unique_lock guard(mutex_);
        while (!changed_.wait_for(guard, std::chrono::seconds(1), [this] { return over_; })) {
          try {
            lock.beat();
          } catch (const Error& error) {
            log::warning("{}", error.what());
            return;
          }
        }
      }) {}

BeatKeeper::~BeatKeeper() {
  {
    const std::lock_guard guard(mutex_);
    over_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

}  // namespace tutti::parallel
