#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "apps/arguments.h"
#include "apps/command.h"
#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/units.h"
#include "tutti/data/io/archive.h"
#include "tutti/data/pack.h"

namespace tutti::apps {
namespace {

// Reads every record, so that each checksum is checked.
int verify(const std::string& file, bool quiet, bool json) {
  const data::ArchiveReader reader(file);
  for (std::size_t i = 0; i < reader.size(); ++i) reader.read(i);
  if (json)
    fmt::print("{}\n", to_json_line({{"records", reader.size()}, {"ok", true}}));
  else if (!quiet)
    fmt::print("{}: {} records, all checksums match\n", file, reader.size());
  return 0;
}

data::Manifest read_manifest(const std::string& manifest, const data::KaldiFiles& kaldi) {
  if (manifest.empty() == kaldi.wav_scp.empty())
    throw ConfigError("give either --manifest or --wav_scp");
  if (!kaldi.wav_scp.empty()) return data::read_kaldi_manifest(kaldi);
  if (manifest.ends_with(".tsv")) return data::read_tsv_manifest(manifest, kaldi.root);
  return data::read_jsonl_manifest(manifest, kaldi.root);
}

}  // namespace

int run_pack(int argc, char** argv) {
  CLI::App app{
      "Pack the audio and text of a manifest into one archive and its index.\n"
      "  tutti pack --wav_scp data/train/wav.scp --text data/train/text --output train.tta\n"
      "  tutti pack --manifest train.jsonl --encoding flac --output train.tta\n"
      "  tutti pack --verify train.tta\n"
      "  tutti pack --reindex train.tta",
      "tutti pack"};
  std::string manifest, wav_scp, text, utt2spk, segments, root, verify_file, reindex_file,
      on_bad = "stop";
  data::PackSettings settings;
  std::string output;
  bool quiet = false, json = false, force = false;
  app.add_option("--manifest", manifest, "a .jsonl or .tsv manifest");
  app.add_option("--wav_scp", wav_scp, "Kaldi's list of audio files");
  app.add_option("--text", text, "Kaldi's transcripts");
  app.add_option("--utt2spk", utt2spk, "Kaldi's speakers");
  app.add_option("--segments", segments, "Kaldi's segments");
  app.add_option("--root", root, "where relative audio paths start");
  app.add_option("--output", output, "the archive to write");
  app.add_flag("--force", force, "replace an archive that is there");
  app.add_option("--encoding", settings.encoding, "keep (default), wav or flac");
  app.add_option("--sample_rate", settings.sample_rate, "resample to this rate, Hz");
  app.add_option("--num_threads", settings.num_threads, "reading threads");
  app.add_option("--on_bad", on_bad, "stop (default) or skip")
      ->check(CLI::IsMember({"stop", "skip"}));
  app.add_flag("--run_commands", settings.run_commands, "run list entries that end in '|'");
  app.add_option("--verify", verify_file, "check every record of an archive");
  app.add_option("--reindex", reindex_file, "write the index of an archive anew");
  app.add_flag("--quiet", quiet, "errors only");
  app.add_flag("--json", json, "print the report as JSON");
  app.footer(example("tutti pack --manifest data/train.jsonl --encoding flac --output train.tta"));
  if (const auto code = parse_arguments(app, argc, argv)) return *code;
  log::configure({.level = quiet ? log::Level::kError : log::Level::kInfo, .stage = "pack"});

  if (!verify_file.empty()) return verify(verify_file, quiet, json);
  if (!reindex_file.empty()) {
    const auto count = data::rebuild_archive_index(reindex_file);
    if (!quiet) fmt::print("{}: {} records indexed\n", reindex_file, count);
    return 0;
  }
  if (output.empty()) throw ConfigError("--output is missing", "say where the archive goes");
  if (!force && std::filesystem::exists(output))
    throw ConfigError(fmt::format("--output: got {}, which is there already", output),
                      "choose another name, or replace it with --force");
  settings.output = output;
  settings.on_bad = on_bad == "skip" ? data::OnBad::kSkip : data::OnBad::kStop;
  const data::Manifest list = read_manifest(
      manifest,
      {.wav_scp = wav_scp, .text = text, .utt2spk = utt2spk, .segments = segments, .root = root});
  const data::PackReport report = data::pack(list, settings);
  for (const auto& bad : report.skipped) log::warning("skipped {}: {}", bad.uid, bad.reason);
  if (json)
    fmt::print("{}\n", to_json_line(report.to_json()));
  else if (!quiet)
    fmt::print("{}: {} utterances, {} of audio, {}{}\n", output, report.num_packed,
               format_duration(report.seconds), format_bytes(report.num_bytes),
               report.skipped.empty() ? "" : fmt::format(", {} skipped", report.skipped.size()));
  return report.skipped.empty() ? 0 : static_cast<int>(ExitCode::kItemsFailed);
}

}  // namespace tutti::apps
