// The list of utterances: what exists, where its audio is, what was said. Held in columns, so that
// a million entries are a few large blocks of memory.
//
//   Manifest train = read_kaldi_manifest({.wav_scp = "train/wav.scp", .text = "train/text"});
//   if (train.find("utt_7") == 0) log::info("{} says {}", train.uid(0), train.text(0));
//
// Immutable after reading, so safe to share between threads. Every reader throws DataError with
// file:line and the utterance, IoError when a file cannot be read. Entries keep the file's order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/text_column.h"

namespace tutti::data {

struct ManifestEntry {
  std::string_view uid;
  std::string_view audio;  // path; empty: a text-only entry
  std::string_view text;
  std::string_view speaker;
  std::string_view text_prev;  // what was said before; speech-to-text models are told
  std::string_view text_ctc;   // what CTC learns, where that is not `text`
  double begin_s = 0;
  double end_s = -1;              // -1: to the end of the file
  int channel = -1;               // -1: the only one, or the dataset's choice
  std::uint64_t num_samples = 0;  // 0: not known
};

class Manifest {
 public:
  std::size_t size() const noexcept { return uid_.size(); }
  std::string_view uid(std::size_t i) const noexcept { return uid_[i]; }
  std::string_view text(std::size_t i) const noexcept { return text_[i]; }
  ManifestEntry entry(std::size_t i) const noexcept;
  // TextIndex::kMissing when there is none.
  std::size_t find(std::string_view uid) const noexcept { return index_.find(uid_, uid); }
  // Of ids, audio locations and segments, in order. Texts do not count: fixing a transcript changes
  // no batch.
  std::uint64_t hash() const noexcept { return hash_; }
  // Where entry i was written, for errors: "data/train/wav.scp: utt_7".
  std::string where(std::size_t i) const { return source_ + ": " + std::string(uid_[i]); }

 private:
  friend class ManifestWriter;
  TextColumn uid_, audio_, text_, speaker_;
  TextColumn text_prev_, text_ctc_;      // empty when no entry has one
  std::vector<double> begin_s_, end_s_;  // empty when no entry is a segment
  std::vector<std::int16_t> channel_;
  std::vector<std::uint64_t> num_samples_;
  TextIndex index_;
  std::uint64_t hash_ = 0;
  std::string source_;
};

// Builds a Manifest entry by entry (the readers below, and recipes that make their own).
class ManifestWriter {
 public:
  // Audio below `root` counts in the hash by its path from there: a corpus that was moved is the
  // same.
  explicit ManifestWriter(std::string source, const std::filesystem::path& root = {})
      : root_(root.empty() ? "" : (root / "").string()) {
    manifest_.source_ = std::move(source);
  }
  void add(const ManifestEntry& entry);
  // Throws DataError when an id is empty or appears twice.
  Manifest finish() &&;

 private:
  Manifest manifest_;
  std::string root_;  // ends in a slash, or is empty
  bool any_segment_ = false;
  bool any_prev_ = false, any_ctc_ = false;
};

struct KaldiFiles {
  std::filesystem::path wav_scp;    // required
  std::filesystem::path text = {};  // optional from here
  std::filesystem::path text_prev = {};
  std::filesystem::path text_ctc = {};
  std::filesystem::path utt2spk = {};
  std::filesystem::path segments = {};
  std::filesystem::path utt2num_samples = {};
  std::filesystem::path root = {};  // relative audio paths start here; empty: the working folder
};
// With `segments`, entries are its utterances and wav.scp holds recordings. `text` and the others
// must cover every utterance; lines for unknown utterances are refused too (the usual sign of a
// mixed-up split).
Manifest read_kaldi_manifest(const KaldiFiles& files);

// One JSON object per line: `id` (or uid, utt_id, key), `audio` (or audio_path, audio_filepath,
// wav, path), and optionally `text`, `text_prev`, `text_ctc`, `speaker`, `begin` (or start, offset),
// `end` or `duration`, `channel`, `num_samples`. Other keys are ignored. Relative audio paths start at
// `root`, or at the manifest's own folder.
Manifest read_jsonl_manifest(const std::filesystem::path& file,
                             const std::filesystem::path& root = {});
// The same names in a header line, values separated by tabs.
Manifest read_tsv_manifest(const std::filesystem::path& file,
                           const std::filesystem::path& root = {});

// The parsers behind them, on text in memory; `name` stands in errors.
Manifest parse_jsonl_manifest(std::string_view text, const std::string& name,
                              const std::filesystem::path& root);
Manifest parse_tsv_manifest(std::string_view text, const std::string& name,
                            const std::filesystem::path& root);

}  // namespace tutti::data
