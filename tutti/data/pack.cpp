#include "tutti/data/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <thread>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"
#include "tutti/data/io/archive.h"

namespace tutti::data {
namespace {

struct Packed {
  std::string payload;
  AudioInfo info;
  std::exception_ptr error;
};

// The bytes of the entry's audio file, from disk or from a command's output.
std::string audio_bytes(const ManifestEntry& entry, const PackSettings& settings) {
  if (!entry.audio.ends_with('|')) return read_file(std::string(entry.audio));
  if (!settings.run_commands)
    throw DataError(fmt::format("the audio is a command ('{}')", entry.audio),
                    "allow it with --run_commands, if you trust the list");
  const std::string command(entry.audio.substr(0, entry.audio.size() - 1));
  CommandResult result =
      run_command({.argv = {"sh", "-c", command}, .capture_limit = std::size_t{1} << 31});
  if (!result.ok()) throw DataError(result.describe());
  return std::move(result.out);
}

Packed pack_one(const ManifestEntry& entry, const PackSettings& settings) {
  Packed out;
  if (entry.audio.empty()) return out;
  const std::string name(entry.audio);
  std::string bytes = audio_bytes(entry, settings);
  const bool whole = entry.begin_s == 0 && entry.end_s < 0 && entry.channel < 0;
  if (settings.encoding == "keep" && whole && settings.sample_rate == 0) {
    // Decoded once all the same: a damaged file must be found now, not in the third epoch.
    out.info = audio_info_of_bytes(bytes, name);
    out.info.num_frames = decode_audio(bytes, name).samples.size();
    out.payload = std::move(bytes);
    return out;
  }
  const Audio audio =
      decode_audio(bytes, name,
                   {.begin_s = entry.begin_s,
                    .end_s = entry.end_s,
                    .channel = entry.channel >= 0 ? entry.channel : settings.channel,
                    .sample_rate = settings.sample_rate});
  out.info = {audio.sample_rate, 1, audio.samples.size()};
  out.payload = encode_audio(audio, settings.encoding == "keep" ? "flac" : settings.encoding);
  return out;
}

}  // namespace

Json PackReport::to_json() const {
  Json bad = Json::array();
  for (const auto& one : skipped) bad.push_back({{"id", one.uid}, {"reason", one.reason}});
  return {{"packed", num_packed}, {"bytes", num_bytes}, {"seconds", seconds}, {"skipped", bad}};
}

PackReport pack(const Manifest& manifest, const PackSettings& settings) {
  if (settings.encoding != "keep" && settings.encoding != "wav" && settings.encoding != "flac")
    throw ConfigError(
        fmt::format("encoding: got '{}', expected keep, wav or flac", settings.encoding));
  for (std::size_t i = 0; i < manifest.size(); ++i)
    if (const ManifestEntry entry = manifest.entry(i);
        !entry.text_prev.empty() || !entry.text_ctc.empty())
      throw DataError(manifest.where(i) + ": an archive has no place for text_prev and text_ctc",
                      "train from the manifest itself");
  PackReport report;
  ArchiveWriter writer(settings.output);
  const auto threads = static_cast<std::size_t>(std::max(1, settings.num_threads));
  // Blocks are read in parallel and written in order.
  const std::size_t block = 16 * threads;
  std::vector<Packed> packed(block);
  for (std::size_t begin = 0; begin < manifest.size(); begin += block) {
    const std::size_t count = std::min(block, manifest.size() - begin);
    const auto work = [&](std::size_t first) {
      for (std::size_t i = first; i < count; i += threads) {
        try {
          packed[i] = pack_one(manifest.entry(begin + i), settings);
        } catch (...) {  // judged below, in the manifest's order
          packed[i] = Packed{};
          packed[i].error = std::current_exception();
        }
      }
    };
    std::vector<std::thread> pool;
    for (std::size_t t = 1; t < threads; ++t) pool.emplace_back(work, t);
    work(0);
    for (auto& thread : pool) thread.join();
    for (std::size_t i = 0; i < count; ++i) {
      const ManifestEntry entry = manifest.entry(begin + i);
      if (packed[i].error) {
        try {
          std::rethrow_exception(packed[i].error);
        } catch (const Error& error) {
          if (settings.on_bad == OnBad::kStop)
            throw DataError(manifest.where(begin + i) + ": " + error.what());
          report.skipped.push_back({std::string(entry.uid), error.what()});
        }
        continue;
      }
      const AudioInfo& info = packed[i].info;
      writer.add({.uid = entry.uid,
                  .text = entry.text,
                  .speaker = entry.speaker,
                  .sample_rate = static_cast<std::uint32_t>(info.sample_rate),
                  .num_samples = info.num_frames},
                 packed[i].payload);
      if (info.sample_rate > 0)
        report.seconds += static_cast<double>(info.num_frames) / info.sample_rate;
    }
  }
  writer.finish();
  report.num_packed = writer.num_records();
  report.num_bytes = writer.num_bytes();
  return report;
}

}  // namespace tutti::data
