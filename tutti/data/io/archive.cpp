#include "tutti/data/io/archive.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tutti/core/crc32c.h"
#include "tutti/core/error.h"
#include "tutti/core/random.h"
#include "tutti/core/text.h"

namespace tutti::data {
namespace fs = std::filesystem;
namespace {

// Little-endian on disk and in memory (x86-64, aarch64).
constexpr char kFileMagic[8] = {'T', 'U', 'T', 'T', 'I', 'A', 'R', '1'};
constexpr char kIndexMagic[8] = {'T', 'U', 'T', 'T', 'I', 'A', 'X', '1'};
constexpr std::uint32_t kRecordMagic = 0x43455254;  // "TREC"
constexpr std::size_t kFlushAt = 4 << 20;
constexpr std::size_t kAlign = 8;

struct RecordHeader {
  std::uint32_t magic = kRecordMagic;
  std::uint32_t header_crc = 0;  // of the rest of this header and the three strings
  std::uint32_t payload_crc = 0;
  std::uint32_t sample_rate = 0;
  std::uint64_t num_samples = 0;
  std::uint64_t payload_size = 0;
  std::uint32_t uid_size = 0;
  std::uint32_t text_size = 0;
  std::uint32_t speaker_size = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(RecordHeader) == 48);
constexpr std::size_t kCheckedFrom = 8;

struct IndexHeader {
  char magic[8] = {};
  std::uint32_t crc = 0;  // of everything after it
  std::uint32_t reserved = 0;
  std::uint64_t data_size = 0;
  std::uint64_t num_records = 0;
};
static_assert(sizeof(IndexHeader) == 32);
constexpr std::size_t kIndexCheckedFrom = 12;

std::size_t padded(std::size_t size) { return (size + kAlign - 1) / kAlign * kAlign; }

fs::path index_of(const fs::path& file) { return file.string() + ".idx"; }

template <class T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// offsets: one per record; uids and lengths likewise.
std::string make_index(std::uint64_t data_size, const std::vector<std::uint64_t>& offsets,
                       const std::vector<std::uint64_t>& num_samples, const TextColumn& uids) {
  IndexHeader header;
  std::memcpy(header.magic, kIndexMagic, 8);
  header.data_size = data_size;
  header.num_records = offsets.size();
  std::string out(bytes_of(header));
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const std::uint64_t uid_size = uids[i].size();
    out += bytes_of(offsets[i]);
    out += bytes_of(num_samples[i]);
    out += bytes_of(uid_size);
    out += uids[i];
  }
  header.crc = crc32c(std::string_view(out).substr(kIndexCheckedFrom));
  std::memcpy(out.data(), &header, sizeof header);
  return out;
}

std::string read_at(int fd, std::uint64_t offset, std::size_t num_bytes, const fs::path& file) {
  std::string out(num_bytes, '\0');
  std::size_t done = 0;
  while (done < num_bytes) {
    const ssize_t n =
        ::pread(fd, out.data() + done, num_bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno("cannot read " + file.string(), errno);
    if (n == 0)
      throw DataError(fmt::format("{}: cut short at byte {}", file.string(), offset + done));
    done += static_cast<std::size_t>(n);
  }
  return out;
}

}  // namespace

ArchiveWriter::ArchiveWriter(fs::path file)
    : file_(std::move(file)),
      temporary_(fmt::format("{}.tmp.{}", file_.string(), ::getpid())),
      fd_(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
  if (!fd_) throw_errno("cannot create " + temporary_.string(), errno);
  buffer_.assign(kFileMagic, sizeof kFileMagic);
  position_ = buffer_.size();
}

ArchiveWriter::~ArchiveWriter() {
  if (!finished_) ::unlink(temporary_.c_str());
}

void ArchiveWriter::flush() {
  write_all(fd_.get(), buffer_, temporary_);
  buffer_.clear();
}

void ArchiveWriter::add(const ArchiveMeta& meta, std::string_view payload) {
  if (meta.uid.empty()) throw DataError(file_.string() + ": a record without an id");
  RecordHeader header;
  header.payload_crc = crc32c(payload);
  header.sample_rate = meta.sample_rate;
  header.num_samples = meta.num_samples;
  header.payload_size = payload.size();
  header.uid_size = static_cast<std::uint32_t>(meta.uid.size());
  header.text_size = static_cast<std::uint32_t>(meta.text.size());
  header.speaker_size = static_cast<std::uint32_t>(meta.speaker.size());
  std::string strings;
  strings.append(meta.uid).append(meta.text).append(meta.speaker);
  header.header_crc = crc32c(strings, crc32c(bytes_of(header).substr(kCheckedFrom)));
  offsets_.push_back(position_);
  uids_.add(meta.uid);
  num_samples_.push_back(meta.num_samples);
  const std::size_t used = sizeof header + strings.size() + payload.size();
  buffer_ += bytes_of(header);
  buffer_ += strings;
  buffer_ += payload;
  buffer_.append(padded(used) - used, '\0');
  position_ += padded(used);
  if (buffer_.size() >= kFlushAt) flush();
}

void ArchiveWriter::finish() {
  std::size_t duplicate = TextIndex::kMissing;
  const TextIndex index(uids_, &duplicate);
  if (duplicate != TextIndex::kMissing)
    throw DataError(
        fmt::format("{}: utterance '{}' was packed twice", file_.string(), uids_[duplicate]));
  flush();
  fsync_file(fd_.get(), temporary_);
  fd_.reset();
  // The old index goes first: no moment shows a new archive with an old index.
  std::error_code ignored;
  fs::remove(index_of(file_), ignored);
  if (::rename(temporary_.c_str(), file_.c_str()) != 0)
    throw_errno("cannot rename to " + file_.string(), errno);
  finished_ = true;
  write_file_atomic(index_of(file_), make_index(position_, offsets_, num_samples_, uids_));
}

ArchiveRecord parse_archive_record(std::string_view bytes, const std::string& where,
                                   std::size_t* size) {
  RecordHeader header;
  if (bytes.size() < sizeof header) throw DataError(where + ": the record is cut short");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kRecordMagic) throw DataError(where + ": no record begins here");
  const std::uint64_t strings =
      std::uint64_t{header.uid_size} + header.text_size + header.speaker_size;
  const std::uint64_t room = bytes.size() - sizeof header;
  if (strings > room || header.payload_size > room - strings)
    throw DataError(where + ": the record is cut short");
  const std::string_view body = bytes.substr(sizeof header);
  if (header.header_crc !=
      crc32c(body.substr(0, strings), crc32c(bytes_of(header).substr(kCheckedFrom))))
    throw DataError(where + ": damaged (the checksum of the header does not match)",
                    "pack the archive again");
  ArchiveRecord record;
  record.uid = body.substr(0, header.uid_size);
  record.text = body.substr(header.uid_size, header.text_size);
  record.speaker =
      body.substr(std::size_t{header.uid_size} + header.text_size, header.speaker_size);
  record.sample_rate = header.sample_rate;
  record.num_samples = header.num_samples;
  record.payload = body.substr(strings, header.payload_size);
  if (header.payload_crc != crc32c(record.payload))
    throw DataError(where + ": damaged (the checksum of the audio does not match)",
                    "pack the archive again, or set on_bad: skip");
  if (size != nullptr) *size = padded(sizeof header + strings + header.payload_size);
  return record;
}

ArchiveReader::ArchiveReader(const fs::path& file)
    : file_(file), fd_(::open(file.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (!fd_) throw_errno("cannot open " + file.string(), errno);
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) throw_errno("cannot read " + file.string(), errno);
  data_size_ = static_cast<std::uint64_t>(info.st_size);
  if (data_size_ < 8 || read_at(fd_.get(), 0, 8, file) != std::string_view(kFileMagic, 8))
    throw DataError(file.string() + ": not an archive of `tutti pack`");
  const fs::path index_file = index_of(file);
  const std::string bytes = read_file(index_file);
  const std::string fix =
      fmt::format("make it anew: tutti pack --reindex {}", shell_quote(file.string()));
  IndexHeader header;
  if (bytes.size() < sizeof header)
    throw DataError(index_file.string() + ": damaged (too short)", fix);
  std::memcpy(&header, bytes.data(), sizeof header);
  if (std::memcmp(header.magic, kIndexMagic, 8) != 0 ||
      header.crc != crc32c(std::string_view(bytes).substr(kIndexCheckedFrom)))
    throw DataError(index_file.string() + ": damaged (the checksum does not match)", fix);
  if (header.data_size != data_size_)
    throw DataError(fmt::format("{}: belongs to an archive of {} bytes, {} has {}",
                                index_file.string(), header.data_size, file.string(), data_size_),
                    fix);
  std::size_t at = sizeof header;
  for (std::uint64_t i = 0; i < header.num_records; ++i) {
    std::uint64_t fields[3] = {};
    if (bytes.size() - at < sizeof fields)
      throw DataError(index_file.string() + ": damaged (cut short)", fix);
    std::memcpy(fields, bytes.data() + at, sizeof fields);
    at += sizeof fields;
    if (fields[2] > bytes.size() - at || fields[0] > data_size_ ||
        (i > 0 && fields[0] <= offsets_.back()))
      throw DataError(index_file.string() + ": damaged (offsets out of order)", fix);
    offsets_.push_back(fields[0]);
    num_samples_.push_back(fields[1]);
    uids_.add(std::string_view(bytes).substr(at, fields[2]));
    at += fields[2];
  }
  offsets_.push_back(data_size_);
  index_ = TextIndex(uids_);
  hash_ = hash_combine({header.crc, header.data_size, header.num_records});
}

ArchiveRecord ArchiveReader::read(std::size_t i) const {
  const std::string where = fmt::format("{}: {}", file_.string(), uids_[i]);
  ArchiveRecord record = parse_archive_record(
      read_at(fd_.get(), offsets_[i], offsets_[i + 1] - offsets_[i], file_), where);
  if (record.uid != uids_[i])
    throw DataError(fmt::format("{}: the record says '{}'", where, record.uid),
                    fmt::format("tutti pack --reindex {}", shell_quote(file_.string())));
  return record;
}

std::uint64_t rebuild_archive_index(const fs::path& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw_errno("cannot open " + file.string(), errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw_errno("cannot read " + file.string(), errno);
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (size < 8 || read_at(fd.get(), 0, 8, file) != std::string_view(kFileMagic, 8))
    throw DataError(file.string() + ": not an archive of `tutti pack`");
  std::vector<std::uint64_t> offsets, num_samples;
  TextColumn uids;
  for (std::uint64_t at = 8; at < size;) {
    const std::string where = fmt::format("{} at byte {}", file.string(), at);
    if (size - at < sizeof(RecordHeader)) throw DataError(where + ": the record is cut short");
    RecordHeader header;
    std::memcpy(&header, read_at(fd.get(), at, sizeof header, file).data(), sizeof header);
    const std::uint64_t strings =
        std::uint64_t{header.uid_size} + header.text_size + header.speaker_size;
    if (header.magic != kRecordMagic || strings + sizeof header > size - at ||
        header.payload_size > size - at - strings - sizeof header)
      throw DataError(where + ": damaged or cut short");
    std::size_t used = 0;
    const auto whole =
        std::min<std::uint64_t>(size - at, padded(sizeof header + strings + header.payload_size));
    const ArchiveRecord record =
        parse_archive_record(read_at(fd.get(), at, whole, file), where, &used);
    offsets.push_back(at);
    num_samples.push_back(record.num_samples);
    uids.add(record.uid);
    at += used;
  }
  write_file_atomic(index_of(file), make_index(size, offsets, num_samples, uids));
  return offsets.size();
}

namespace {

class ArchiveDataset final : public Dataset {
 public:
  ArchiveDataset(const fs::path& file, AudioOptions options) : reader_(file), options_(options) {}
  std::size_t size() const override { return reader_.size(); }
  std::string uid(std::size_t index) const override { return std::string(reader_.uid(index)); }
  std::size_t find(std::string_view uid) const override { return reader_.find(uid); }
  std::uint64_t num_samples(std::size_t index) const override { return reader_.num_samples(index); }
  std::uint64_t hash() const override {
    return hash_combine({reader_.hash(), static_cast<std::uint64_t>(options_.sample_rate)});
  }
  Sample read(std::size_t index) const override {
    ArchiveRecord record = reader_.read(index);
    Sample sample;
    sample.uid = std::move(record.uid);
    sample.text = std::move(record.text);
    sample.speaker = std::move(record.speaker);
    if (record.payload.empty()) return sample;
    Audio audio =
        decode_audio(record.payload, fmt::format("{}: {}", reader_.file().string(), sample.uid),
                     {.channel = options_.channel, .sample_rate = options_.sample_rate});
    sample.speech = std::move(audio.samples);
    sample.sample_rate = audio.sample_rate;
    return sample;
  }

 private:
  const ArchiveReader reader_;
  const AudioOptions options_;
};

}  // namespace

std::shared_ptr<const Dataset> open_archive(const fs::path& file, AudioOptions options) {
  return std::make_shared<ArchiveDataset>(file, options);
}

}  // namespace tutti::data
