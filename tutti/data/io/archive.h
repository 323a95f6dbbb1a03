// A packed corpus: one data file that is read front to back, and an index beside it. For file
// systems that hate a million small files. The format is docs/formats-archive.md.
//
//   ArchiveWriter out("train.tta");
//   out.add({.uid = "utt_7", .text = "seven"}, wav_bytes);
//   out.finish();                                     // only now do train.tta and train.tta.idx
//   exist std::shared_ptr<const Dataset> train = open_archive("train.tta");
//
// Every record has a checksum, checked on each read: a damaged one is a DataError that names the
// utterance. A reader is immutable and thread-safe (pread, no shared position).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/file.h"
#include "tutti/data/dataset.h"

namespace tutti::data {

struct ArchiveMeta {
  std::string_view uid;
  std::string_view text;
  std::string_view speaker;
  std::uint32_t sample_rate = 0;
  std::uint64_t num_samples = 0;
};

// Writes FILE.tmp.<pid> and renames at finish(), so a killed packer leaves no archive that looks
// whole. Throws IoError (disk full, ...), DataError for an id that is empty or appears twice.
class ArchiveWriter {
 public:
  explicit ArchiveWriter(std::filesystem::path file);
  ~ArchiveWriter();  // without finish(): removes what was written
  ArchiveWriter(const ArchiveWriter&) = delete;
  ArchiveWriter& operator=(const ArchiveWriter&) = delete;
  void add(const ArchiveMeta& meta, std::string_view payload);
  void finish();
  std::uint64_t num_records() const noexcept { return offsets_.size(); }
  std::uint64_t num_bytes() const noexcept { return position_; }

 private:
  void flush();
  const std::filesystem::path file_;
  const std::filesystem::path temporary_;
  UniqueFd fd_;
  std::string buffer_;
  std::uint64_t position_ = 0;
  std::vector<std::uint64_t> offsets_;
  TextColumn uids_;
  std::vector<std::uint64_t> num_samples_;
  bool finished_ = false;
};

struct ArchiveRecord {
  std::string uid, text, speaker;
  std::uint32_t sample_rate = 0;
  std::uint64_t num_samples = 0;
  std::string payload;  // the bytes of an audio file
};

class ArchiveReader {
 public:
  // Throws DataError when the index is damaged or belongs to another data file.
  explicit ArchiveReader(const std::filesystem::path& file);
  std::size_t size() const noexcept { return uids_.size(); }
  std::string_view uid(std::size_t i) const noexcept { return uids_[i]; }
  std::size_t find(std::string_view uid) const noexcept { return index_.find(uids_, uid); }
  std::uint64_t num_samples(std::size_t i) const noexcept { return num_samples_[i]; }
  std::uint64_t hash() const noexcept { return hash_; }
  ArchiveRecord read(std::size_t i) const;
  const std::filesystem::path& file() const noexcept { return file_; }

 private:
  const std::filesystem::path file_;
  UniqueFd fd_;
  std::uint64_t data_size_ = 0;
  std::vector<std::uint64_t> offsets_;  // of records, and the end
  std::vector<std::uint64_t> num_samples_;
  TextColumn uids_;
  TextIndex index_;
  std::uint64_t hash_ = 0;
};

std::shared_ptr<const Dataset> open_archive(const std::filesystem::path& file,
                                            AudioOptions options = {});

// Reads the data file front to back, checking every record, and writes the index anew. Returns the
// number of records. For an index that was lost.
std::uint64_t rebuild_archive_index(const std::filesystem::path& file);

// The record at the front of `bytes`, for readers and fuzzers; `size` gets its length in the file.
// Throws DataError with `where`.
ArchiveRecord parse_archive_record(std::string_view bytes, const std::string& where,
                                   std::size_t* size = nullptr);

}  // namespace tutti::data
