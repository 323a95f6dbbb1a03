// TensorBoard event files by hand: TFRecord framing around two small protobuf messages.
//
// A record is: length (8 bytes, little endian), masked CRC-32C of the length, data, masked CRC-32C
// of the data. Data is an Event: 1 wall_time (double), 2 step (varint), 3 file_version (text) or
// 5 summary { 1 value { 1 tag (text), 2 simple_value (float) } } or 7 session { 1 status (varint) }.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include "tutti/core/clock.h"
#include "tutti/core/crc32c.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/program.h"
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

std::uint64_t take_varint(std::string_view& in) {
  std::uint64_t value = 0;
  for (unsigned shift = 0; !in.empty() && shift < 64; shift += 7) {
    const auto byte = static_cast<unsigned char>(in.front());
    in.remove_prefix(1);
    value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) break;
  }
  return value;
}

// Calls take(field, number, bytes) for each field of a message: one of the two has its value.
template <class Take>
void for_each_field(std::string_view in, Take take) {
  while (!in.empty()) {
    const std::uint64_t key = take_varint(in);
    std::uint64_t number = 0, length = 0;
    if ((key & 7) == kVarint)
      number = take_varint(in);
    else
      length = (key & 7) == kFixed64 ? 8 : (key & 7) == kFixed32 ? 4 : take_varint(in);
    length = std::min<std::uint64_t>(length, in.size());
    take(key >> 3, number, in.substr(0, length));
    in.remove_prefix(length);
  }
}

// Whether an event stays when the run goes on after `step`; see Logger::rewind.
bool stays(std::string_view event, std::int64_t step, bool at_the_end) {
  std::int64_t at = 0;
  bool numbers = false, ends = false;
  for_each_field(event, [&](std::uint64_t field, std::uint64_t number, std::string_view bytes) {
    if (field == 2) at = static_cast<std::int64_t>(number);
    if (field != 5) return;
    numbers = true;
    for_each_field(bytes, [&](std::uint64_t, std::uint64_t, std::string_view value) {
      for_each_field(value, [&](std::uint64_t part, std::uint64_t, std::string_view tag) {
        ends = ends || (part == 1 && is_of_the_end(std::string(tag)));
      });
    });
  });
  return !numbers || at < step || (at == step && !(at_the_end && ends));
}

// Takes out of an earlier process's file what is logged again, and a record that was cut short.
void forget_later(const std::filesystem::path& path, std::int64_t step, bool at_the_end) {
  const std::string all = read_file(path);
  std::string kept;
  for (std::size_t at = 0; at + 16 <= all.size();) {
    std::uint64_t length = 0;
    std::memcpy(&length, all.data() + at, sizeof length);
    if (length > all.size() - at - 16) break;
    if (stays(std::string_view(all).substr(at + 12, length), step, at_the_end))
      kept += all.substr(at, 16 + length);
    at += 16 + length;
  }
  if (kept != all) write_file_atomic(path, kept);
}

class TensorBoardLogger final : public Logger {
 public:
  explicit TensorBoardLogger(const std::filesystem::path& folder) {
    make_folders(folder);
    path_ = folder / fmt::format("events.out.tfevents.{:010d}.{}.{}.0",
                                 static_cast<std::int64_t>(Clock::system().unix_seconds()),
                                 host_name(), ::getpid());
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

  // Older files lose what is logged again. A TensorBoard that is running has read it already: it
  // forgets it at the start of a session.
  void rewind(std::int64_t step, bool at_the_end) override {
    std::vector<std::filesystem::path> older;
    for (const auto& entry : std::filesystem::directory_iterator(path_.parent_path()))
      if (entry.path() != path_ && entry.path().filename().string().rfind("events.out.", 0) == 0)
        older.push_back(entry.path());
    if (older.empty()) return;
    for (const auto& path : older) forget_later(path, step, at_the_end);
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
