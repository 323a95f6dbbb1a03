// The memory of a run: one record per finished item, appended as results arrive, read back after
// any kind of death.
//
//   JournalWriter journal(path, fingerprint, {});
//   journal.append({.index = 7, .status = wire::ItemStatus::kOk, .payload = "{\"hyp\":\"a\"}"});
//   journal.flush();
//
// File: 8 bytes "TUTTIJ1\n", 8 bytes fingerprint, then records of
//   u32 crc32c of what follows | u32 length of what follows the length | u64 index | u8 status |
//   payload
// all little endian. Whatever the bytes are, a record that is not whole and right is passed over, and
// reading goes on with the next that is: a flipped bit costs the items it hits. Behind the last good
// record lies what a killed writer left half written; the next writer cuts it off. One writer per
// file; any number of readers.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/file.h"
#include "tutti/parallel/wire/wire.h"

namespace tutti::parallel {

struct JournalRecord {
  std::uint64_t index = 0;
  wire::ItemStatus status = wire::ItemStatus::kOk;
  std::string_view payload;
};

enum class Fsync { kNever, kEverySecond, kAlways };

struct JournalOptions {
  // kill -9 loses nothing either way; a power cut at most a second, and what a slow disk has not done yet.
  Fsync fsync = Fsync::kEverySecond;
};

// Bytes between good records that are no records.
struct JournalDamage {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

// Calls `each` for every good record with its offset; returns the end of the last one. Pure: works on
// bytes, never throws for what they are. 0: not a journal of this fingerprint. `damage`: what was
// passed over on the way there.
std::uint64_t scan_journal(
    std::string_view bytes, std::uint64_t fingerprint,
    const std::function<void(const JournalRecord&, std::uint64_t offset)>& each,
    std::vector<JournalDamage>* damage = nullptr);
// The record at an offset that scan_journal gave.
JournalRecord journal_record_at(std::string_view bytes, std::uint64_t offset);

class JournalWriter {
 public:
  // Opens or creates; what lies behind the last good record is cut off. Throws IoError.
  JournalWriter(std::filesystem::path path, std::uint64_t fingerprint, JournalOptions options);
  ~JournalWriter();
  void append(const JournalRecord& record);  // may stay in memory until flush
  // Into the file, where a kill of this process cannot reach it. With kEverySecond another thread has the
  // disk take it: a shared one may need a second for that, and results would pile up in memory meanwhile. What
  // goes wrong there is thrown here, the next time.
  void flush();
  void sync();                                           // waits for the disk
  std::uint64_t size() const noexcept { return size_; }  // of the file once flushed

 private:
  const std::filesystem::path path_;
  const JournalOptions options_;
  UniqueFd fd_;
  std::string buffer_;
  std::uint64_t size_ = 0;
  bool dirty_ = false;  // written since the last sync()
  bool asked_ = true;   // the other thread knows of all that was written
  std::chrono::steady_clock::time_point last_sync_{};
  class OtherThread;
  std::unique_ptr<OtherThread> other_thread_;
};

// A file as bytes in memory, paged in as needed. Missing: empty.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  std::string_view bytes() const noexcept { return {data_, size_}; }

 private:
  const char* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tutti::parallel
