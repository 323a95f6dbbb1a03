// Packs the audio of a manifest into an archive: the engine of `tutti pack`.
//
//   PackReport report = pack(manifest, {.output = "train.tta", .encoding = "flac"});
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/data/loader.h"
#include "tutti/data/manifest.h"

namespace tutti::data {

struct PackSettings {
  std::filesystem::path output;
  // keep: whole files go in byte for byte, segments become flac. wav, flac: 16 bits, always.
  std::string encoding = "keep";
  int sample_rate = 0;          // Hz; 0: as the files are
  int channel = kFirstChannel;  // for files that are encoded anew
  bool run_commands = false;    // wav.scp entries that end in '|': run them with sh -c
  OnBad on_bad = OnBad::kStop;
  int num_threads = 1;
};

struct PackReport {
  std::uint64_t num_packed = 0;
  std::uint64_t num_bytes = 0;
  double seconds = 0;  // of audio
  std::vector<BadUtterance> skipped;
  Json to_json() const;
};

// The archive has the manifest's order and appears only when all of it is written. Throws DataError
// naming the utterance (on_bad stop), ConfigError for settings, IoError for the output.
PackReport pack(const Manifest& manifest, const PackSettings& settings);

}  // namespace tutti::data
