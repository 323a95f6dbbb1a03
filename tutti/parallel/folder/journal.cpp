#include "tutti/parallel/folder/journal.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
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

}  // namespace

std::uint64_t scan_journal(std::string_view bytes, std::uint64_t fingerprint,
                           const std::function<void(const JournalRecord&, std::uint64_t)>& each) {
  if (bytes.size() < kHeaderBytes || bytes.substr(0, 8) != kMagic) return 0;
  if (get<std::uint64_t>(bytes.substr(8)) != fingerprint) return 0;
  std::uint64_t at = kHeaderBytes;
  for (;;) {
    const std::string_view rest = bytes.substr(at);
    if (rest.size() < 8 + kFixedBytes) return at;
    const auto length = get<std::uint32_t>(rest.substr(4));
    if (length < kFixedBytes || length > rest.size() - 8) return at;
    if (crc32c(rest.substr(4, 4 + length)) != get<std::uint32_t>(rest)) return at;
    const auto status = static_cast<std::uint8_t>(rest[16]);
    if (status > static_cast<std::uint8_t>(wire::ItemStatus::kOkInFile)) return at;
    each({.index = get<std::uint64_t>(rest.substr(8)),
          .status = static_cast<wire::ItemStatus>(status),
          .payload = rest.substr(8 + kFixedBytes, length - kFixedBytes)},
         at);
    at += 8 + length;
  }
}

JournalWriter::JournalWriter(fs::path path, std::uint64_t fingerprint, JournalOptions options)
    : path_(std::move(path)), options_(options) {
  std::uint64_t good = 0;
  {
    const MappedFile old(path_);
    good = scan_journal(old.bytes(), fingerprint, [](const JournalRecord&, std::uint64_t) {});
    if (good == 0 && old.bytes().size() >= kHeaderBytes)
      throw IoError(path_.string() + " is not the journal of this run",
                    "use resume: false to start over");
  }
  fd_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  if (!fd_) throw_errno("cannot open " + path_.string(), errno);
  if (::ftruncate(fd_.get(), static_cast<off_t>(good)) != 0)
    throw_errno("cannot truncate " + path_.string(), errno);
  if (::lseek(fd_.get(), 0, SEEK_END) < 0) throw_errno("cannot seek in " + path_.string(), errno);
  if (good == 0) {
    std::string header(kMagic);
    put(header, fingerprint);
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
  }
  if (!dirty_ || options_.fsync == Fsync::kNever) return;
  const auto now = std::chrono::steady_clock::now();
  if (options_.fsync == Fsync::kAlways || now - last_sync_ > std::chrono::seconds(1)) sync();
}

void JournalWriter::sync() {
  if (!dirty_) return;
  fsync_file(fd_.get(), path_);
  dirty_ = false;
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
