// TensorBoard event files by hand: TFRecord framing around two small protobuf messages.
//
// A record is: length (8 bytes, little endian), masked CRC-32C of the length, data, masked CRC-32C
// of the data. Data is an Event: 1 wall_time (double), 2 step (varint), 3 file_version (text) or
// 5 summary { 1 value { 1 tag (text), 2 simple_value (float) } } or 7 session { 1 status (varint) }.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tutti/core/clock.h"
#include "tutti/core/crc32c.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/trainer/loggers/logger.h"

namespace tutti::trainer {
namespace {

enum WireType : unsigned { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

template <class T>
void append_raw(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}
void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}
void append_key(std::string& out, unsigned field, WireType type) {
  append_varint(out, field << 3 | type);
}
void append_bytes(std::string& out, unsigned field, const std::string& bytes) {
  append_key(out, field, kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

std::uint32_t masked_crc(const std::string& bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::string record(const std::string& data) {
  std::string length;
  append_raw(length, static_cast<std::uint64_t>(data.size()));
  std::string out = length;
  append_raw(out, masked_crc(length));
  out += data;
  append_raw(out, masked_crc(data));
  return out;
}

std::string event_header() {
  std::string event;
  append_key(event, 1, kFixed64);
  append_raw(event, Clock::system().unix_seconds());
  return event;
}

class TensorBoardLogger final : public Logger {
 public:
  explicit TensorBoardLogger(const std::filesystem::path& folder) {
    make_folders(folder);
    char host[256] = "localhost";
    ::gethostname(host, sizeof(host) - 1);
    path_ = folder / fmt::format("events.out.tfevents.{:010d}.{}.{}.0",
                                 static_cast<std::int64_t>(Clock::system().unix_seconds()), host,
                                 ::getpid());
    fd_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!fd_) throw_errno("cannot create " + path_.string(), errno);
    std::string event = event_header();
    append_bytes(event, 3, "brain.Event:2");
    write_all(fd_.get(), record(event), path_);
  }

  void log(const LogPoint& at, const Metrics& metrics) override {
    std::string summary;
    for (const auto& [name, value] : metrics) {
      std::string entry;
      append_bytes(entry, 1, name);
      append_key(entry, 2, kFixed32);
      append_raw(entry, static_cast<float>(value));
      append_bytes(summary, 1, entry);
    }
    std::string event = event_header();
    append_key(event, 2, kVarint);
    append_varint(event, static_cast<std::uint64_t>(at.step));
    append_bytes(event, 5, summary);
    write_all(fd_.get(), record(event), path_);  // one write: a killed run leaves whole records
  }

  void flush() override { fsync_file(fd_.get(), path_); }

  // The start of a session at a step: TensorBoard then leaves out what older files have from there.
  void rewind(std::int64_t step, bool /*at_the_end*/) override {
    bool has_older = false;
    for (const auto& entry : std::filesystem::directory_iterator(path_.parent_path()))
      has_older = has_older || (entry.path() != path_ &&
                                entry.path().filename().string().rfind("events.out.", 0) == 0);
    if (!has_older) return;
    std::string session;
    append_key(session, 1, kVarint);
    append_varint(session, 1);  // START
    std::string event = event_header();
    append_key(event, 2, kVarint);
    append_varint(event, static_cast<std::uint64_t>(step + 1));
    append_bytes(event, 7, session);
    write_all(fd_.get(), record(event), path_);
  }

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
};

}  // namespace

std::unique_ptr<Logger> make_tensorboard_logger(const std::filesystem::path& folder) {
  return std::make_unique<TensorBoardLogger>(folder);
}

}  // namespace tutti::trainer
