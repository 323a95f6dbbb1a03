// Audio files to float samples: WAV, FLAC, Ogg, MP3 (whatever this libsndfile knows) and NIST
// SPHERE.
//
//   Audio a = read_audio("rec.flac", {.begin_s = 1.5, .end_s = 4.0, .sample_rate = 16000});
//
// Seeks to the segment and reads only that. Samples are in [-1, 1], one channel. Thread-safe.
// Throws IoError when the file cannot be opened, DataError when it is not audio, is cut short or
// has no such channel or segment.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::data {

constexpr int kFirstChannel = -1;
constexpr int kMeanOfChannels = -2;

struct AudioRequest {
  double begin_s = 0;
  double end_s = -1;            // -1: to the end; up to half a second past the end is forgiven
  int channel = kFirstChannel;  // or kMeanOfChannels, or 0, 1, ...
  int sample_rate = 0;          // Hz; 0: the file's own
};

struct Audio {
  std::vector<float> samples;
  int sample_rate = 0;
};

struct AudioInfo {
  int sample_rate = 0;
  int num_channels = 0;
  std::uint64_t num_frames = 0;
};

Audio read_audio(const std::filesystem::path& file, const AudioRequest& request = {});
// The bytes of an audio file held in memory; `name` stands in errors.
Audio decode_audio(std::string_view bytes, const std::string& name,
                   const AudioRequest& request = {});
AudioInfo audio_info(const std::filesystem::path& file);
AudioInfo audio_info_of_bytes(std::string_view bytes, const std::string& name);

// Why nobody can learn or hear anything from these samples: there are none, one is not a number or
// not finite, or all are zero (a dead microphone, a failed conversion). Empty: nothing is wrong.
std::string audio_problem(std::span<const float> samples);

// Writes 16-bit WAV, atomically. Samples beyond [-1, 1] are clipped.
void write_wav(const std::filesystem::path& file, const Audio& audio);
// The bytes of a 16-bit file of the given kind ("wav" or "flac"). Throws ConfigError for others.
std::string encode_audio(const Audio& audio, const std::string& kind);

}  // namespace tutti::data
