#include "tutti/data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "tutti/core/error.h"
#include "tutti/core/random.h"
#include "tutti/data/io/kaldi_matrix.h"

namespace tutti::data {
namespace {

// A command and a place in an archive are no files.
bool is_file(std::string_view audio) {
  return !audio.empty() && audio.back() != '|' && !is_matrix_name(audio);
}

// Empty: there is no such file.
std::optional<std::uint64_t> size_of(std::string_view file) {
  std::error_code absent;
  const auto bytes = std::filesystem::file_size(file, absent);
  return absent ? std::nullopt : std::optional<std::uint64_t>(bytes);
}

class ManifestDataset final : public Dataset {
 public:
  ManifestDataset(Manifest manifest, AudioOptions options)
      : manifest_(std::move(manifest)), options_(options) {}
  std::size_t size() const override { return manifest_.size(); }
  std::string uid(std::size_t index) const override { return std::string(manifest_.uid(index)); }
  std::size_t find(std::string_view uid) const override { return manifest_.find(uid); }
  std::string text(std::size_t index) const override { return std::string(manifest_.text(index)); }
  bool knows_texts() const override { return true; }
  std::uint64_t num_samples(std::size_t index) const override {
    return manifest_.entry(index).num_samples;
  }
  double length_hint(std::size_t index) const override {
    const ManifestEntry entry = manifest_.entry(index);
    if (entry.num_samples > 0) return static_cast<double>(entry.num_samples);
    if (entry.end_s > 0) return entry.end_s - entry.begin_s;
    return is_file(entry.audio) ? static_cast<double>(size_of(entry.audio).value_or(0)) : 0;
  }
  std::uint64_t hash() const override {
    return hash_combine({manifest_.hash(), static_cast<std::uint64_t>(options_.sample_rate)});
  }
  void count_files(FilesSeen& seen) const override {
    std::string_view before;  // segments of a recording mostly stand together
    for (std::size_t i = 0; i < manifest_.size(); ++i) {
      const std::string_view audio = manifest_.entry(i).audio;
      if (audio == before || !is_file(audio)) continue;
      before = audio;
      ++seen.files;
      if (const auto bytes = size_of(audio))
        seen.bytes += *bytes;
      else
        ++seen.missing;
    }
  }
  Sample read(std::size_t index) const override {
    const ManifestEntry entry = manifest_.entry(index);
    Sample sample;
    sample.uid = entry.uid;
    sample.text = entry.text;
    sample.text_prev = entry.text_prev;
    sample.text_ctc = entry.text_ctc;
    sample.speaker = entry.speaker;
    if (entry.audio.empty()) return sample;
    if (entry.audio.back() == '|')
      throw DataError(fmt::format("{}: the audio is a command ('{}'), which is not run here",
                                  manifest_.where(index), entry.audio),
                      "run it once: `tutti pack --run_commands` turns such a list into an archive");
    try {
      if (is_matrix_name(entry.audio)) {
        const Array feats = read_matrix(std::string(entry.audio));
        sample.feature_dim = feats.shape[1];
        sample.sample_rate = static_cast<int>(kFeatureFrameRate * sample.feature_dim);
        sample.speech.assign(feats.data<float>(), feats.data<float>() + feats.size());
        return sample;
      }
      Audio audio = read_audio(std::string(entry.audio),
                               {.begin_s = entry.begin_s,
                                .end_s = entry.end_s,
                                .channel = entry.channel >= 0 ? entry.channel : options_.channel,
                                .sample_rate = options_.sample_rate});
      sample.speech = std::move(audio.samples);
      sample.sample_rate = audio.sample_rate;
    } catch (const Error& error) {
      throw DataError(manifest_.where(index) + ": " + error.what(),
                      "check the file, or set on_bad: skip");
    }
    return sample;
  }

 private:
  const Manifest manifest_;
  const AudioOptions options_;
};

class CombinedDataset final : public Dataset {
 public:
  explicit CombinedDataset(std::vector<NamedDataset> parts) : parts_(std::move(parts)) {
    std::uint64_t folded = 0;
    for (const NamedDataset& part : parts_) {
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + part.dataset->size());
      folded = hash_combine({folded, part.dataset->hash()});
    }
    hash_ = folded;
    // Ids are unique within each part already: only pairs of parts can clash.
    for (std::size_t a = 0; a < parts_.size(); ++a)
      for (std::size_t b = a + 1; b < parts_.size(); ++b) check_disjoint(parts_[a], parts_[b]);
  }
  std::size_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  std::string uid(std::size_t index) const override {
    const auto [part, local] = locate(index);
    return parts_[part].dataset->uid(local);
  }
  std::size_t find(std::string_view uid) const override {
    for (std::size_t part = 0; part < parts_.size(); ++part)
      if (const std::size_t local = parts_[part].dataset->find(uid); local != kMissing)
        return begin(part) + local;
    return kMissing;
  }
  Sample read(std::size_t index) const override {
    const auto [part, local] = locate(index);
    return parts_[part].dataset->read(local);
  }
  std::string text(std::size_t index) const override {
    const auto [part, local] = locate(index);
    return parts_[part].dataset->text(local);
  }
  bool knows_texts() const override {
    return std::all_of(parts_.begin(), parts_.end(),
                       [](const NamedDataset& part) { return part.dataset->knows_texts(); });
  }
  std::uint64_t num_samples(std::size_t index) const override {
    const auto [part, local] = locate(index);
    return parts_[part].dataset->num_samples(local);
  }
  double length_hint(std::size_t index) const override {
    const auto [part, local] = locate(index);
    return parts_[part].dataset->length_hint(local);
  }
  std::uint64_t hash() const override { return hash_; }
  void count_files(FilesSeen& seen) const override {
    for (const NamedDataset& part : parts_) part.dataset->count_files(seen);
  }

 private:
  static void check_disjoint(const NamedDataset& a, const NamedDataset& b) {
    const NamedDataset& fewer = a.dataset->size() < b.dataset->size() ? a : b;
    const NamedDataset& more = &fewer == &a ? b : a;
    for (std::size_t i = 0; i < fewer.dataset->size(); ++i) {
      const std::string uid = fewer.dataset->uid(i);
      if (more.dataset->find(uid) != kMissing)
        throw DataError(fmt::format("utterance '{}' is in dataset '{}' and in dataset '{}'", uid,
                                    a.name, b.name),
                        "give the ids of one of them a prefix");
    }
  }
  std::size_t begin(std::size_t part) const { return part == 0 ? 0 : ends_[part - 1]; }
  std::pair<std::size_t, std::size_t> locate(std::size_t index) const {
    const auto part = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) -
                                               ends_.begin());
    if (part >= parts_.size())
      throw InternalError(
          fmt::format("utterance number {} asked for, there are {}", index, size()));
    return {part, index - begin(part)};
  }

  std::vector<NamedDataset> parts_;
  std::vector<std::size_t> ends_;
  std::uint64_t hash_ = 0;
};

}  // namespace

std::shared_ptr<const Dataset> open_manifest(Manifest manifest, AudioOptions options) {
  return std::make_shared<ManifestDataset>(std::move(manifest), options);
}

std::shared_ptr<const Dataset> combine(std::vector<NamedDataset> parts) {
  if (parts.size() == 1) return parts.front().dataset;
  return std::make_shared<CombinedDataset>(std::move(parts));
}

}  // namespace tutti::data
