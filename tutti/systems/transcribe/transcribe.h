// `tutti infer --model MODEL FILE...`: audio files in, text out.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tutti::systems {

enum class TranscriptFormat { kText, kJson, kSrt, kVtt, kCtm };

struct TranscribeRequest {
  std::filesystem::path model;       // a pack, see pack.h
  std::string device;                // empty: as the settings say
  std::vector<std::string> options;  // key=value, over what the pack remembers
  // Audio files; folders (every audio file in them, by name); "-": audio, or a list of files, on
  // stdin.
  std::vector<std::string> inputs;
  TranscriptFormat format = TranscriptFormat::kText;
  // Subtitles, one file each: NAME.srt or NAME.vtt; those of a folder lie as its files do. Empty:
  // stdout, which holds those of one file.
  std::filesystem::path output_dir;
  bool only_missing = false;  // files that have subtitles in output_dir are left alone
};

// Prints a transcript per file, in order, as they are decoded. A file that cannot be decoded is named
// on stderr and the others go on; returns how many there were. Throws ConfigError, DataError for what
// concerns all files.
std::size_t transcribe(const TranscribeRequest& request);

}  // namespace tutti::systems
