#include "tutti/data/manifest.h"

#include <fmt/format.h>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/random.h"
#include "tutti/data/io/table_text.h"

namespace tutti::data {
namespace fs = std::filesystem;

ManifestEntry Manifest::entry(std::size_t i) const noexcept {
  ManifestEntry entry;
  entry.uid = uid_[i];
  entry.audio = audio_[i];
  entry.text = text_[i];
  entry.speaker = speaker_[i];
  if (text_prev_.size() > 0) entry.text_prev = text_prev_[i];
  if (text_ctc_.size() > 0) entry.text_ctc = text_ctc_[i];
  if (!begin_s_.empty()) {
    entry.begin_s = begin_s_[i];
    entry.end_s = end_s_[i];
  }
  entry.channel = channel_[i];
  entry.num_samples = num_samples_[i];
  return entry;
}

void ManifestWriter::add(const ManifestEntry& entry) {
  Manifest& m = manifest_;
  if (entry.uid.empty()) throw DataError(m.source_ + ": an utterance without an id");
  m.uid_.add(entry.uid);
  m.audio_.add(entry.audio);
  m.text_.add(entry.text);
  m.speaker_.add(entry.speaker);
  m.text_prev_.add(entry.text_prev);
  m.text_ctc_.add(entry.text_ctc);
  any_prev_ |= !entry.text_prev.empty();
  any_ctc_ |= !entry.text_ctc.empty();
  m.begin_s_.push_back(entry.begin_s);
  m.end_s_.push_back(entry.end_s);
  any_segment_ |= entry.begin_s != 0 || entry.end_s >= 0;
  m.channel_.push_back(static_cast<std::int16_t>(entry.channel));
  m.num_samples_.push_back(entry.num_samples);
  std::string_view audio = entry.audio;
  if (!root_.empty() && audio.starts_with(root_)) audio.remove_prefix(root_.size());
  m.hash_ = hash_combine({m.hash_, hash64(entry.uid), hash64(audio),
                          static_cast<std::uint64_t>(entry.begin_s * 1e6),
                          static_cast<std::uint64_t>(entry.end_s * 1e6 + 1e6),
                          static_cast<std::uint64_t>(entry.channel + 1)});
}

Manifest ManifestWriter::finish() && {
  if (!any_segment_) {
    manifest_.begin_s_ = {};
    manifest_.end_s_ = {};
  }
  if (!any_prev_) manifest_.text_prev_ = {};
  if (!any_ctc_) manifest_.text_ctc_ = {};
  std::size_t duplicate = TextIndex::kMissing;
  manifest_.index_ = TextIndex(manifest_.uid_, &duplicate);
  if (duplicate != TextIndex::kMissing)
    throw DataError(fmt::format("{}: utterance id appears twice", manifest_.where(duplicate)),
                    "ids must be unique; prefix them with the corpus or speaker");
  return std::move(manifest_);
}

namespace {

// `<utt> <value>` of a side file, by manifest position.
struct SideTable {
  SideTable() = default;
  SideTable(const SideTable&) = delete;  // values point into content
  SideTable& operator=(const SideTable&) = delete;
  std::string content;
  std::vector<std::string_view> values;  // by utterance; data() is null where there is none
};

void read_side(SideTable& table, const fs::path& file, const TextColumn& uids,
               const TextIndex& index, const fs::path& main) {
  if (file.empty()) return;
  table.content = read_file(file);
  table.values.resize(uids.size());
  for_each_row(table.content, file.string(), [&](const Row& row) {
    const std::size_t i = index.find(uids, row.key);
    const std::string where = fmt::format("{}:{}: {}", file.string(), row.line, row.key);
    if (i == TextIndex::kMissing)
      throw DataError(fmt::format("{}: no such utterance in {}", where, main.string()),
                      "do the files belong to one split?");
    if (table.values[i].data() != nullptr) throw DataError(where + ": utterance appears twice");
    // A value may be empty; it must still be told from an absent one.
    table.values[i] = row.value.data() != nullptr ? row.value : std::string_view("");
  });
  for (std::size_t i = 0; i < uids.size(); ++i)
    if (table.values[i].data() == nullptr)
      throw DataError(
          fmt::format("{}: {} is missing (it is in {})", file.string(), uids[i], main.string()),
          "do the files belong to one split?");
}

std::string absolute_audio(std::string_view audio, const fs::path& root) {
  if (audio.empty() || root.empty() || audio.front() == '/' || audio.back() == '|')
    return std::string(audio);
  return (root / audio).string();
}

}  // namespace

Manifest read_kaldi_manifest(const KaldiFiles& files) {
  const std::string scp = read_file(files.wav_scp);
  TextColumn recordings, paths;
  for_each_row(scp, files.wav_scp.string(), [&](const Row& row) {
    if (row.value.empty())
      throw DataError(
          fmt::format("{}:{}: {}: no audio path", files.wav_scp.string(), row.line, row.key));
    recordings.add(row.key);
    paths.add(absolute_audio(row.value, files.root));
  });
  std::size_t duplicate = TextIndex::kMissing;
  const TextIndex recording_index(recordings, &duplicate);
  if (duplicate != TextIndex::kMissing)
    throw DataError(
        fmt::format("{}: {} appears twice", files.wav_scp.string(), recordings[duplicate]));

  // The utterances: those of `segments`, else the recordings themselves.
  TextColumn uids;
  std::vector<Segment> segments;
  std::string segments_text;
  if (!files.segments.empty()) {
    segments_text = read_file(files.segments);
    for_each_row(segments_text, files.segments.string(), [&](const Row& row) {
      segments.push_back(parse_segment(row, files.segments.string()));
      uids.add(row.key);
    });
  }
  const TextColumn& ids = files.segments.empty() ? recordings : uids;
  const fs::path& main_file = files.segments.empty() ? files.wav_scp : files.segments;
  const TextIndex id_index(ids);
  SideTable text, text_prev, text_ctc, speaker, counts;
  read_side(text, files.text, ids, id_index, main_file);
  read_side(text_prev, files.text_prev, ids, id_index, main_file);
  read_side(text_ctc, files.text_ctc, ids, id_index, main_file);
  read_side(speaker, files.utt2spk, ids, id_index, main_file);
  read_side(counts, files.utt2num_samples, ids, id_index, main_file);

  ManifestWriter writer(main_file.string(), files.root);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ManifestEntry entry;
    entry.uid = ids[i];
    std::size_t recording = i;
    if (!segments.empty()) {
      recording = recording_index.find(recordings, segments[i].recording);
      if (recording == TextIndex::kMissing)
        throw DataError(fmt::format("{}: {}: recording '{}' is not in {}", main_file.string(),
                                    ids[i], segments[i].recording, files.wav_scp.string()));
      entry.begin_s = segments[i].begin_s;
      entry.end_s = segments[i].end_s;
    }
    entry.audio = paths[recording];
    if (!text.values.empty()) entry.text = text.values[i];
    if (!text_prev.values.empty()) entry.text_prev = text_prev.values[i];
    if (!text_ctc.values.empty()) entry.text_ctc = text_ctc.values[i];
    if (!speaker.values.empty()) entry.speaker = speaker.values[i];
    if (!counts.values.empty())
      entry.num_samples = parse_count(
          counts.values[i], fmt::format("{}: {}", files.utt2num_samples.string(), ids[i]));
    writer.add(entry);
  }
  return std::move(writer).finish();
}

}  // namespace tutti::data
