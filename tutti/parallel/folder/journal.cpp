#include "tutti/parallel/folder/journal.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "tutti/core/crc32c.h"
#include "tutti/core/error.h"

namespace tutti::parallel {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kMagic = "TUTTIJ1\n";
constexpr std::size_t kHeaderBytes = 16;
constexpr std::size_t kFixedBytes = 9;  // index and status
constexpr std::size_t kFlushBytes = 256 << 10;

template <class T>
void put(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

template <class T>
T get(std::string_view bytes) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= static_cast<T>(static_cast<std::uint8_t>(bytes[i])) << (8 * i);
  return value;
}

// The length of the good record at the front of `rest`, 0 when there is none.
std::uint64_t good_record(std::string_view rest) {
  if (rest.size() < 8 + kFixedBytes) return 0;
  const auto length = get<std::uint32_t>(rest.substr(4));
  if (length < kFixedBytes || length > rest.size() - 8) return 0;
  if (static_cast<std::uint8_t>(rest[16]) > static_cast<std::uint8_t>(wire::ItemStatus::kOkInFile))
    return 0;
  if (crc32c(rest.substr(4, 4 + length)) != get<std::uint32_t>(rest)) return 0;
  return 8 + length;
}

// Where the next good record begins, at the earliest at `at`; the end of `bytes` when none does.
// Larger ones than writers make are not looked for: that keeps the search short.
std::uint64_t next_good_record(std::string_view bytes, std::uint64_t at) {
  constexpr std::uint32_t kLargest = 1 << 20;
  for (; at + 8 + kFixedBytes <= bytes.size(); ++at)
    if (get<std::uint32_t>(bytes.substr(at + 4)) <= kLargest && good_record(bytes.substr(at)) > 0)
      return at;
  return bytes.size();
}

// A bit or two may be wrong here as anywhere; another run's header differs in half of them.
bool is_header_of(std::string_view bytes, std::uint64_t fingerprint, bool& damaged) {
  if (bytes.size() < kHeaderBytes) return false;
  std::string want(kMagic);
  put(want, fingerprint);
  int wrong = 0;
  for (std::size_t i = 0; i < kHeaderBytes; ++i)
    wrong += std::popcount(static_cast<std::uint8_t>(bytes[i] ^ want[i]));
  damaged = wrong > 0;
  return wrong <= 2;
}

}  // namespace

JournalRecord journal_record_at(std::string_view bytes, std::uint64_t offset) {
  const std::string_view rest = bytes.substr(offset);
  return {
      .index = get<std::uint64_t>(rest.substr(8)),
      .status = static_cast<wire::ItemStatus>(rest[16]),
      .payload = rest.substr(8 + kFixedBytes, get<std::uint32_t>(rest.substr(4)) - kFixedBytes)};
}

std::uint64_t scan_journal(std::string_view bytes, std::uint64_t fingerprint,
                           const std::function<void(const JournalRecord&, std::uint64_t)>& each,
                           std::vector<JournalDamage>* damage) {
  bool header_damaged = false;
  if (!is_header_of(bytes, fingerprint, header_damaged)) return 0;
  if (header_damaged && damage != nullptr) damage->push_back({0, kHeaderBytes});
  std::uint64_t end = kHeaderBytes;  // of the last good record
  for (std::uint64_t at = end; at < bytes.size();) {
    const std::uint64_t length = good_record(bytes.substr(at));
    if (length == 0) {
      at = next_good_record(bytes, at + 1);
      continue;
    }
    if (at > end && damage != nullptr) damage->push_back({end, at - end});
    each(journal_record_at(bytes, at), at);
    end = at += length;
  }
  // A tail that a kill cut short is ordinary; one of full length is not.
  const std::string_view tail = bytes.substr(end);
  if (tail.size() >= 8 + kFixedBytes && get<std::uint32_t>(tail.substr(4)) == tail.size() - 8 &&
      damage != nullptr)
    damage->push_back({end, tail.size()});
  return end;
}

// Syncs when it is asked to; several requests while it does are one.
class JournalWriter::OtherThread {
 public:
  OtherThread(int fd, const fs::path& path)
      : fd_(fd), path_(path), thread_(std::make_unique<std::thread>([this] { work(); })) {}
  ~OtherThread() {
    if (::getpid() != owner_) {  // a forked child has the object, but not the thread
      static_cast<void>(thread_.release());
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_one();
    thread_->join();
  }

  void ask() {
    {
      const std::lock_guard lock(mutex_);
      if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
      wanted_ = true;
    }
    changed_.notify_one();
  }

  // Waits until nothing is under way. A disk tells of what it lost once only, so whoever syncs after us asks here first.
  void settle() {
    std::unique_lock lock(mutex_);
    settled_.wait(lock, [this] { return !wanted_ && !busy_; });
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return wanted_ || closing_; });
      if (closing_) return;  // who closes it has synced what matters
      wanted_ = false;
      busy_ = true;
      lock.unlock();
      std::exception_ptr failure;
      try {
        fsync_file(fd_, path_);
      } catch (...) {  // thrown by the next ask()
        failure = std::current_exception();
      }
      lock.lock();
      if (failure) failure_ = failure;
      busy_ = false;
      settled_.notify_one();
    }
  }

  const int fd_;
  const fs::path& path_;
  const int owner_ = ::getpid();
  std::mutex mutex_;
  std::condition_variable changed_, settled_;
  // Guarded by mutex_.
  bool wanted_ = false, busy_ = false, closing_ = false;
  std::exception_ptr failure_;
  std::unique_ptr<std::thread> thread_;  // last: it uses the others
};

JournalWriter::~JournalWriter() = default;

JournalWriter::JournalWriter(fs::path path, std::uint64_t fingerprint, JournalOptions options)
    : path_(std::move(path)), options_(options) {
  std::uint64_t good = 0;
  bool header_damaged = false;
  {
    const MappedFile old(path_);
    std::vector<JournalDamage> damage;
    good = scan_journal(
        old.bytes(), fingerprint, [](const JournalRecord&, std::uint64_t) {}, &damage);
    header_damaged = !damage.empty() && damage[0].offset == 0;
    if (good == 0 && old.bytes().size() >= kHeaderBytes)
      throw IoError(path_.string() + " is not the journal of this run",
                    "use --force (resume: false) to start over");
  }
  fd_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  if (!fd_) throw_errno("cannot open " + path_.string(), errno);
  if (::ftruncate(fd_.get(), static_cast<off_t>(good)) != 0)
    throw_errno("cannot truncate " + path_.string(), errno);
  if (::lseek(fd_.get(), 0, SEEK_END) < 0) throw_errno("cannot seek in " + path_.string(), errno);
  std::string header(kMagic);
  put(header, fingerprint);
  if (header_damaged &&
      ::pwrite(fd_.get(), header.data(), header.size(), 0) != static_cast<ssize_t>(header.size()))
    throw_errno("cannot write " + path_.string(), errno);
  if (good == 0) {
    write_all(fd_.get(), header, path_);
    fsync_file(fd_.get(), path_);
    fsync_folder(path_.parent_path());
  }
  size_ = good == 0 ? kHeaderBytes : good;
  last_sync_ = std::chrono::steady_clock::now();
}

void JournalWriter::append(const JournalRecord& record) {
  std::string body;
  put(body, static_cast<std::uint32_t>(kFixedBytes + record.payload.size()));
  put(body, record.index);
  body.push_back(static_cast<char>(record.status));
  put(buffer_, crc32c(record.payload, crc32c(body)));
  buffer_ += body;
  buffer_ += record.payload;
  size_ += 4 + body.size() + record.payload.size();
  if (buffer_.size() > kFlushBytes || options_.fsync == Fsync::kAlways) flush();
}

void JournalWriter::flush() {
  if (!buffer_.empty()) {
    write_all(fd_.get(), buffer_, path_);
    buffer_.clear();
    dirty_ = true;
    asked_ = false;
  }
  if (options_.fsync == Fsync::kAlways) return sync();
  if (asked_ || options_.fsync == Fsync::kNever) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - last_sync_ <= std::chrono::seconds(1)) return;
  if (!other_thread_) other_thread_ = std::make_unique<OtherThread>(fd_.get(), path_);
  other_thread_->ask();
  asked_ = true;
  last_sync_ = now;
}

void JournalWriter::sync() {
  if (other_thread_) other_thread_->settle();
  if (!dirty_) return;
  fsync_file(fd_.get(), path_);
  dirty_ = false;
  asked_ = true;
  last_sync_ = std::chrono::steady_clock::now();
}

MappedFile::MappedFile(const fs::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd && errno == ENOENT) return;
  if (!fd) throw_errno("cannot open " + path.string(), errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw_errno("cannot stat " + path.string(), errno);
  if (info.st_size == 0) return;
  void* mapped =
      ::mmap(nullptr, static_cast<std::size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (mapped == MAP_FAILED) throw_errno("cannot map " + path.string(), errno);
  data_ = static_cast<const char*>(mapped);
  size_ = static_cast<std::size_t>(info.st_size);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

}  // namespace tutti::parallel
