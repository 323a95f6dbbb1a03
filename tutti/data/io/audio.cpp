#include "tutti/data/io/audio.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sndfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/data/io/foreign_audio.h"
#include "tutti/data/io/resample.h"
#include "tutti/data/io/sphere.h"

namespace tutti::data {
namespace fs = std::filesystem;
namespace {

constexpr double kForgivenOvershoot_s = 0.5;  // as Kaldi's extract-segments

// Random access to a file or to memory, for both decoders.
class Source {
 public:
  virtual ~Source() = default;
  virtual std::uint64_t size() const = 0;
  // Bytes read; fewer than asked only at the end.
  virtual std::size_t read_at(std::uint64_t offset, void* into, std::size_t num_bytes) const = 0;
};

class FileSource final : public Source {
 public:
  explicit FileSource(const fs::path& file)
      : name_(file.string()), fd_(::open(file.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (!fd_) throw_errno("cannot open " + name_, errno);
    struct stat info {};
    if (::fstat(fd_.get(), &info) != 0) throw_errno("cannot read " + name_, errno);
    if (S_ISDIR(info.st_mode)) throw_errno("cannot read " + name_, EISDIR);
    size_ = static_cast<std::uint64_t>(info.st_size);
  }
  std::uint64_t size() const override { return size_; }
  std::size_t read_at(std::uint64_t offset, void* into, std::size_t num_bytes) const override {
    std::size_t done = 0;
    while (done < num_bytes) {
      const ssize_t n = ::pread(fd_.get(), static_cast<char*>(into) + done, num_bytes - done,
                                static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw_errno("cannot read " + name_, errno);
      if (n == 0) break;
      done += static_cast<std::size_t>(n);
    }
    return done;
  }

 private:
  std::string name_;
  UniqueFd fd_;
  std::uint64_t size_ = 0;
};

class MemorySource final : public Source {
 public:
  explicit MemorySource(std::string_view bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  std::size_t read_at(std::uint64_t offset, void* into, std::size_t num_bytes) const override {
    if (offset >= bytes_.size()) return 0;
    const std::size_t n = std::min(num_bytes, bytes_.size() - static_cast<std::size_t>(offset));
    std::memcpy(into, bytes_.data() + offset, n);
    return n;
  }

 private:
  std::string_view bytes_;
};

// libsndfile over a Source. Its callbacks are C code: errors are kept here and thrown later.
class SndFile {
 public:
  SndFile(const Source& source, const std::string& name) : source_(source) {
    SF_VIRTUAL_IO io{};
    io.get_filelen = [](void* self) {
      return static_cast<sf_count_t>(static_cast<SndFile*>(self)->source_.size());
    };
    io.seek = [](sf_count_t offset, int whence, void* self) {
      return static_cast<SndFile*>(self)->seek(offset, whence);
    };
    io.read = [](void* into, sf_count_t count, void* self) {
      return static_cast<SndFile*>(self)->read(into, count);
    };
    io.write = [](const void*, sf_count_t, void*) { return sf_count_t{0}; };
    io.tell = [](void* self) {
      return static_cast<sf_count_t>(static_cast<SndFile*>(self)->position_);
    };
    handle_.reset(sf_open_virtual(&io, SFM_READ, &info_, this));
    if (!handle_) refuse(name);
    if (info_.channels <= 0 || info_.samplerate <= 0 || info_.frames < 0)
      throw DataError(
          fmt::format("{}: {} channels at {} Hz", name, info_.channels, info_.samplerate));
  }
  SNDFILE* get() const noexcept { return handle_.get(); }
  const SF_INFO& info() const noexcept { return info_; }

 private:
  struct Close {
    void operator()(SNDFILE* file) const noexcept { sf_close(file); }
  };
  // The command stands in the message: whoever passes it on has a fix of its own.
  [[noreturn]] void refuse(const std::string& name) const {
    std::string head(kForeignHead, '\0');
    head.resize(source_.read_at(0, head.data(), head.size()));
    const std::string format = foreign_format(head);
    if (format.empty())
      throw DataError(fmt::format("{}: not readable as audio: {}", name, sf_strerror(nullptr)));
    throw DataError(fmt::format("{}: {}, which is not read here; convert it: {}", name, format,
                                conversion_of(name)));
  }
  sf_count_t seek(sf_count_t offset, int whence) noexcept {
    const auto base = whence == SEEK_SET   ? 0
                      : whence == SEEK_CUR ? position_
                                           : static_cast<std::int64_t>(source_.size());
    if (base + offset < 0) return -1;
    return position_ = base + offset;
  }
  sf_count_t read(void* into, sf_count_t count) noexcept {
    try {
      const std::size_t n = source_.read_at(static_cast<std::uint64_t>(position_), into,
                                            static_cast<std::size_t>(count));
      position_ += static_cast<std::int64_t>(n);
      return static_cast<sf_count_t>(n);
    } catch (
        const std::exception&) {  // must not pass through C; a short read is an error to the caller
      return 0;
    }
  }

  const Source& source_;
  std::int64_t position_ = 0;
  SF_INFO info_{};
  std::unique_ptr<SNDFILE, Close> handle_;
};

struct Range {
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
};

// Which frames of the file the request asks for.
Range frames_of(const AudioRequest& request, int rate, std::uint64_t num_frames,
                const std::string& name) {
  const double length_s = static_cast<double>(num_frames) / rate;
  const auto begin =
      static_cast<std::uint64_t>(std::llround(std::max(0.0, request.begin_s) * rate));
  std::uint64_t end = num_frames;
  if (request.end_s >= 0) {
    if (request.end_s > length_s + kForgivenOvershoot_s)
      throw DataError(fmt::format("{}: segment ends at {:.3f} s, the file at {:.3f} s", name,
                                  request.end_s, length_s));
    end = std::min(num_frames, static_cast<std::uint64_t>(std::llround(request.end_s * rate)));
  }
  if (begin >= end && !(request.begin_s == 0 && request.end_s < 0))
    throw DataError(
        fmt::format("{}: segment from {:.3f} s to {:.3f} s is empty, the file has {:.3f} s", name,
                    request.begin_s, request.end_s, length_s));
  return {begin, end - std::min(begin, end)};
}

// One channel out of interleaved frames.
std::vector<float> pick_channel(std::vector<float> frames, int num_channels, int channel,
                                const std::string& name) {
  if (channel >= num_channels)
    throw DataError(fmt::format("{}: channel {} asked for, the file has {} (numbered from 0)", name,
                                channel, num_channels));
  if (num_channels == 1) return frames;
  const auto width = static_cast<std::size_t>(num_channels);
  const std::size_t count = frames.size() / width;
  const std::size_t chosen = channel < 0 ? 0 : static_cast<std::size_t>(channel);
  for (std::size_t t = 0; t < count; ++t) {
    if (channel != kMeanOfChannels) {
      frames[t] = frames[t * width + chosen];
      continue;
    }
    float sum = 0;
    for (std::size_t c = 0; c < width; ++c) sum += frames[t * width + c];
    frames[t] = sum / static_cast<float>(num_channels);
  }
  frames.resize(count);
  return frames;
}

SphereHeader read_sphere_header(const Source& source, const std::string& name) {
  std::string head(16, '\0');
  head.resize(source.read_at(0, head.data(), head.size()));
  head.resize(sphere_header_size(head, name));
  head.resize(source.read_at(0, head.data(), head.size()));
  SphereHeader header = parse_sphere_header(head, name);
  const std::uint64_t frame_bytes =
      static_cast<std::uint64_t>(header.num_channels) * header.bytes_per_sample();
  const std::uint64_t present =
      (source.size() - std::min(source.size(), header.data_offset)) / frame_bytes;
  if (header.num_frames == 0) header.num_frames = present;
  if (present < header.num_frames)
    throw DataError(
        fmt::format("{}: cut short: {} of {} samples are there", name, present, header.num_frames));
  return header;
}

Audio read_sphere(const Source& source, const std::string& name, const AudioRequest& request) {
  const SphereHeader header = read_sphere_header(source, name);
  const Range range = frames_of(request, header.sample_rate, header.num_frames, name);
  const std::uint64_t frame_bytes =
      static_cast<std::uint64_t>(header.num_channels) * header.bytes_per_sample();
  std::string bytes(range.count * frame_bytes, '\0');
  bytes.resize(
      source.read_at(header.data_offset + range.begin * frame_bytes, bytes.data(), bytes.size()));
  return {pick_channel(decode_sphere_samples(header, bytes), header.num_channels, request.channel,
                       name),
          header.sample_rate};
}

std::uint32_t little_endian(const unsigned char* bytes) {
  return static_cast<std::uint32_t>(bytes[0]) | static_cast<std::uint32_t>(bytes[1]) << 8 |
         static_cast<std::uint32_t>(bytes[2]) << 16 | static_cast<std::uint32_t>(bytes[3]) << 24;
}

// libsndfile takes what is there of a WAV for all of it. The header knows how much was written,
// unless it was written into a pipe (then it says 0, or a number near the end of 32 bits).
void refuse_cut_wav(const Source& source, const std::string& name) {
  unsigned char head[12];
  if (source.read_at(0, head, sizeof head) < sizeof head || std::memcmp(head, "RIFF", 4) != 0 ||
      std::memcmp(head + 8, "WAVE", 4) != 0)
    return;
  constexpr std::uint32_t kUnknown = 0x7ff00000;
  for (std::uint64_t offset = sizeof head;;) {
    unsigned char chunk[8];
    if (source.read_at(offset, chunk, sizeof chunk) < sizeof chunk) return;
    const std::uint64_t size = little_endian(chunk + 4);
    offset += sizeof chunk;
    if (std::memcmp(chunk, "data", 4) != 0) {
      offset += size + size % 2;
      continue;
    }
    const std::uint64_t there = source.size() - std::min(source.size(), offset);
    if (size < kUnknown && there < size)
      throw DataError(
          fmt::format("{}: cut short: {} of {} bytes of audio are there", name, there, size));
    return;
  }
}

Audio read_sndfile(const Source& source, const std::string& name, const AudioRequest& request) {
  refuse_cut_wav(source, name);
  const SndFile file(source, name);
  const SF_INFO& info = file.info();
  const Range range =
      frames_of(request, info.samplerate, static_cast<std::uint64_t>(info.frames), name);
  if (range.begin > 0 && sf_seek(file.get(), static_cast<sf_count_t>(range.begin), SEEK_SET) < 0)
    throw DataError(fmt::format("{}: cannot seek to sample {}: {}", name, range.begin,
                                sf_strerror(file.get())));
  // A damaged header may promise any number of frames: take memory only for what is really read.
  constexpr std::uint64_t kStep = 1 << 20;
  const auto width = static_cast<std::uint64_t>(info.channels);
  std::vector<float> frames;
  // No format packs more than so many samples into a byte; then one piece of memory is enough.
  if (range.count * width / 16 <= source.size()) frames.reserve(range.count * width);
  for (std::uint64_t done = 0; done < range.count;) {
    const std::uint64_t want = std::min(kStep, range.count - done);
    frames.resize((done + want) * width);
    const sf_count_t got =
        sf_readf_float(file.get(), frames.data() + done * width, static_cast<sf_count_t>(want));
    if (got <= 0 || sf_error(file.get()) != SF_ERR_NO_ERROR)
      throw DataError(fmt::format(
          "{}: damaged: {} of {} samples could be read{}", name,
          done + (got > 0 ? static_cast<std::uint64_t>(got) : 0), range.count,
          sf_error(file.get()) != 0 ? std::string(" (") + sf_strerror(file.get()) + ")" : ""));
    done += static_cast<std::uint64_t>(got);
    frames.resize(done * width);
  }
  return {pick_channel(std::move(frames), info.channels, request.channel, name), info.samplerate};
}

bool is_sphere(const Source& source) {
  char first[8] = {};
  const std::size_t n = source.read_at(0, first, sizeof first);
  return looks_like_sphere({first, n});
}

Audio read(const Source& source, const std::string& name, const AudioRequest& request) {
  if (source.size() == 0) throw DataError(name + ": the file is empty");
  Audio audio =
      is_sphere(source) ? read_sphere(source, name, request) : read_sndfile(source, name, request);
  if (request.sample_rate > 0 && request.sample_rate != audio.sample_rate) {
    audio.samples = resample(audio.samples, audio.sample_rate, request.sample_rate);
    audio.sample_rate = request.sample_rate;
  }
  return audio;
}

AudioInfo info_of(const Source& source, const std::string& name) {
  if (source.size() == 0) throw DataError(name + ": the file is empty");
  if (is_sphere(source)) {
    const SphereHeader header = read_sphere_header(source, name);
    return {header.sample_rate, header.num_channels, header.num_frames};
  }
  const SndFile file(source, name);
  return {file.info().samplerate, file.info().channels,
          static_cast<std::uint64_t>(file.info().frames)};
}

// What libsndfile writes goes into a string.
struct Sink {
  std::string bytes;
  std::size_t position = 0;
};

}  // namespace

Audio read_audio(const fs::path& file, const AudioRequest& request) {
  return read(FileSource(file), file.string(), request);
}

Audio decode_audio(std::string_view bytes, const std::string& name, const AudioRequest& request) {
  return read(MemorySource(bytes), name, request);
}

std::string audio_problem(std::span<const float> samples) {
  if (samples.empty()) return "has no samples";
  // By their bits, all of them, so that the compiler takes many at a time; nearly all sound is fine.
  constexpr std::int32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;
  std::int32_t largest = 0;
  for (const float sample : samples)
    largest = std::max(largest, std::bit_cast<std::int32_t>(sample) & kMagnitude);
  if (largest == 0) return "is silent: every sample is 0";
  if (largest < kInfinity) return "";
  const auto bad = std::find_if(samples.begin(), samples.end(),
                                [](float sample) { return !std::isfinite(sample); });
  return fmt::format("has a sample that is {} (number {})",
                     std::isnan(*bad) ? "not a number" : "infinite", bad - samples.begin());
}

AudioInfo audio_info(const fs::path& file) { return info_of(FileSource(file), file.string()); }

AudioInfo audio_info_of_bytes(std::string_view bytes, const std::string& name) {
  return info_of(MemorySource(bytes), name);
}

std::string encode_audio(const Audio& audio, const std::string& kind) {
  if (kind != "wav" && kind != "flac")
    throw ConfigError(fmt::format("audio kind: got '{}', expected wav or flac", kind));
  SF_INFO info{};
  info.samplerate = audio.sample_rate;
  info.channels = 1;
  info.format = (kind == "wav" ? SF_FORMAT_WAV : SF_FORMAT_FLAC) | SF_FORMAT_PCM_16;
  Sink sink;
  SF_VIRTUAL_IO io{};
  io.get_filelen = [](void* self) {
    return static_cast<sf_count_t>(static_cast<Sink*>(self)->bytes.size());
  };
  io.seek = [](sf_count_t offset, int whence, void* self) {
    auto& s = *static_cast<Sink*>(self);
    const auto base =
        whence == SEEK_SET
            ? 0
            : static_cast<sf_count_t>(whence == SEEK_CUR ? s.position : s.bytes.size());
    if (base + offset < 0) return sf_count_t{-1};
    s.position = static_cast<std::size_t>(base + offset);
    return base + offset;
  };
  io.read = [](void* into, sf_count_t count, void* self) {
    auto& s = *static_cast<Sink*>(self);
    const std::size_t n =
        s.position < s.bytes.size()
            ? std::min<std::size_t>(static_cast<std::size_t>(count), s.bytes.size() - s.position)
            : 0;
    std::memcpy(into, s.bytes.data() + s.position, n);
    s.position += n;
    return static_cast<sf_count_t>(n);
  };
  io.write = [](const void* from, sf_count_t count, void* self) {
    auto& s = *static_cast<Sink*>(self);
    if (s.bytes.size() < s.position + static_cast<std::size_t>(count))
      s.bytes.resize(s.position + static_cast<std::size_t>(count));
    std::memcpy(s.bytes.data() + s.position, from, static_cast<std::size_t>(count));
    s.position += static_cast<std::size_t>(count);
    return count;
  };
  io.tell = [](void* self) { return static_cast<sf_count_t>(static_cast<Sink*>(self)->position); };
  // Rounded here: 16-bit input read as floats comes back bit for bit.
  std::vector<std::int16_t> pcm(audio.samples.size());
  for (std::size_t i = 0; i < pcm.size(); ++i)
    pcm[i] = static_cast<std::int16_t>(
        std::clamp(std::lrint(static_cast<double>(audio.samples[i]) * 32768.0), -32768L, 32767L));
  SNDFILE* file = sf_open_virtual(&io, SFM_WRITE, &info, &sink);
  if (file == nullptr)
    throw DataError(fmt::format("cannot encode {}: {}", kind, sf_strerror(nullptr)));
  const sf_count_t written = sf_writef_short(file, pcm.data(), static_cast<sf_count_t>(pcm.size()));
  sf_close(file);
  if (written != static_cast<sf_count_t>(pcm.size()))
    throw DataError("cannot encode " + kind + ": not all samples were taken");
  return std::move(sink.bytes);
}

void write_wav(const fs::path& file, const Audio& audio) {
  write_file_atomic(file, encode_audio(audio, "wav"));
}

}  // namespace tutti::data
