#include "tutti/data/sources.h"

#include <fmt/format.h>

#include "tutti/config/merge.h"
#include "tutti/config/schema.h"
#include "tutti/core/text.h"
#include "tutti/data/fields.h"
#include "tutti/data/io/archive.h"
#include "tutti/data/io/resample.h"

namespace tutti::data {
namespace {

using config::Node;
using config::Problems;
using config::Schema;

template <class T>
void add_audio(Schema<T>& s) {
  s.field("sample_rate", &T::sample_rate, "resample to this; 0: as the files are",
          {.min = 0, .unit = "Hz"});
  s.field("channel", &T::channel, "first, mean, or a number from 0");
}

AudioOptions audio_options(const Node& args, int sample_rate, const std::string& channel,
                           Problems& problems) {
  AudioOptions options;
  options.sample_rate = sample_rate;
  if (channel == "mean")
    options.channel = kMeanOfChannels;
  else if (channel != "first") {
    std::string expected;
    if (!read(args["channel"], options.channel, expected) || options.channel < 0)
      problems.add(args["channel"],
                   fmt::format("got '{}', expected first, mean or a number from 0", channel));
  }
  return options;
}

struct KaldiKeys {
  std::string wav_scp, feats_scp, text, text_prev, text_ctc, utt2spk, segments, utt2num_samples,
      root;
  int sample_rate = 0;
  std::string channel = "first";
};

Schema<KaldiKeys> kaldi_schema() {
  using K = KaldiKeys;
  Schema<K> s("kaldi", "Kaldi's tables.");
  s.field("wav_scp", &K::wav_scp, "audio files");
  s.field("feats_scp", &K::feats_scp,
          "features instead of audio: Kaldi's archives (a.ark:15) or .npy files");
  s.check([](const Node& node, const K& keys, Problems& found) {
    if (keys.wav_scp.empty() == keys.feats_scp.empty())
      found.add(node, "expected either wav_scp or feats_scp");
    if (!keys.feats_scp.empty() && !keys.segments.empty())
      found.add(node["segments"], "features cannot be cut into segments", "remove it");
  });
  s.field("text", &K::text, "transcripts");
  s.field("text_prev", &K::text_prev, "what was said before (task s2t); <na>: not known");
  s.field("text_ctc", &K::text_ctc, "what CTC learns (task s2t); <na>: not known");
  s.field("utt2spk", &K::utt2spk, "speakers");
  s.field("segments", &K::segments, "parts of recordings");
  s.field("utt2num_samples", &K::utt2num_samples, "lengths");
  s.field("root", &K::root, "where relative audio paths start; empty: the working folder");
  add_audio(s);
  return s;
}

std::shared_ptr<const Dataset> open_kaldi(const Node& args, Problems& problems) {
  const KaldiKeys k = kaldi_schema().parse(args, problems);
  const AudioOptions options = audio_options(args, k.sample_rate, k.channel, problems);
  if (!problems.empty()) return nullptr;
  return open_manifest(read_kaldi_manifest({.wav_scp = k.wav_scp.empty() ? k.feats_scp : k.wav_scp,
                                            .text = k.text,
                                            .text_prev = k.text_prev,
                                            .text_ctc = k.text_ctc,
                                            .utt2spk = k.utt2spk,
                                            .segments = k.segments,
                                            .utt2num_samples = k.utt2num_samples,
                                            .root = k.root}),
                       options);
}

struct ManifestKeys {
  std::string manifest, root;
  int sample_rate = 0;
  std::string channel = "first";
};

Schema<ManifestKeys> manifest_schema(bool jsonl) {
  Schema<ManifestKeys> s(jsonl ? "jsonl" : "tsv", "A manifest file.");
  s.field("manifest", &ManifestKeys::manifest, "the file", {.required = true});
  s.field("root", &ManifestKeys::root,
          "where relative audio paths start; empty: the manifest's folder");
  add_audio(s);
  return s;
}

std::shared_ptr<const Dataset> open_named(const Node& args, Problems& problems, bool jsonl) {
  const ManifestKeys k = manifest_schema(jsonl).parse(args, problems);
  const AudioOptions options = audio_options(args, k.sample_rate, k.channel, problems);
  if (!problems.empty()) return nullptr;
  return open_manifest(
      jsonl ? read_jsonl_manifest(k.manifest, k.root) : read_tsv_manifest(k.manifest, k.root),
      options);
}

struct ArchiveKeys {
  std::string archive;
  int sample_rate = 0;
  std::string channel = "first";
};

Schema<ArchiveKeys> archive_schema() {
  Schema<ArchiveKeys> s("archive", "A file made by `tutti pack`.");
  s.field("archive", &ArchiveKeys::archive, "the file", {.required = true});
  add_audio(s);
  return s;
}

std::shared_ptr<const Dataset> open_packed(const Node& args, Problems& problems) {
  const ArchiveKeys k = archive_schema().parse(args, problems);
  const AudioOptions options = audio_options(args, k.sample_rate, k.channel, problems);
  if (!problems.empty()) return nullptr;
  return open_archive(k.archive, options);
}

// The checks of a source's arguments that need no files.
template <class T>
DatasetSources::CheckArgs check_with(const Schema<T>& schema) {
  return [schema](const Node& args, Problems& problems) {
    const T keys = schema.parse(args, problems);
    audio_options(args, keys.sample_rate, keys.channel, problems);
  };
}

config::ValuePtr rate_value(int sample_rate) {
  auto value = std::make_shared<config::Value>();
  value->kind = config::Kind::kScalar;
  value->text = std::to_string(sample_rate);
  return value;
}

// A dataset whose samples pass through a transform.
class Transformed final : public Dataset {
 public:
  Transformed(std::shared_ptr<const Dataset> inner, Transform transform)
      : inner_(std::move(inner)), transform_(std::move(transform)) {}
  std::size_t size() const override { return inner_->size(); }
  std::string uid(std::size_t index) const override { return inner_->uid(index); }
  std::size_t find(std::string_view uid) const override { return inner_->find(uid); }
  std::uint64_t num_samples(std::size_t index) const override { return inner_->num_samples(index); }
  double length_hint(std::size_t index) const override { return inner_->length_hint(index); }
  std::uint64_t hash() const override { return inner_->hash(); }
  void count_files(FilesSeen& seen) const override { inner_->count_files(seen); }
  std::string text(std::size_t index) const override { return inner_->text(index); }
  Sample read(std::size_t index) const override {
    Sample sample = inner_->read(index);
    transform_(sample);
    return sample;
  }

 private:
  const std::shared_ptr<const Dataset> inner_;
  const Transform transform_;
};

}  // namespace

DatasetSources DatasetSources::standard() {
  DatasetSources sources;
  sources.add("kaldi", open_kaldi, check_with(kaldi_schema()));
  sources.add(
      "jsonl",
      [](const Node& args, Problems& problems) { return open_named(args, problems, true); },
      check_with(manifest_schema(true)));
  sources.add(
      "tsv", [](const Node& args, Problems& problems) { return open_named(args, problems, false); },
      check_with(manifest_schema(false)));
  sources.add("archive", open_packed, check_with(archive_schema()));
  return sources;
}

std::vector<config::SchemaInfo> sources_reference() {
  std::vector<config::SchemaInfo> tables = {kaldi_schema().info(), manifest_schema(true).info(),
                                            manifest_schema(false).info(), archive_schema().info()};
  for (config::SchemaInfo& table : tables) table.name = "data_src_args of " + table.name;
  tables.push_back(field_schema().info());
  return tables;
}

std::string implied_source(const Node& entry) {
  if (entry["data_src"].is_scalar()) return entry["data_src"].raw();
  const Node args = entry["data_src_args"];
  if (!args["archive"].is_null()) return "archive";
  if (!args["wav_scp"].is_null() || !args["feats_scp"].is_null()) return "kaldi";
  const Node manifest = args["manifest"];
  if (manifest.is_null()) return {};
  return manifest.is_scalar() && manifest.raw().ends_with(".tsv") ? "tsv" : "jsonl";
}

std::vector<std::string> DatasetSources::names() const {
  std::vector<std::string> names;
  for (const auto& [name, open] : open_) names.push_back(name);
  return names;
}

void DatasetSources::check(const Node& entry, Problems& problems) const {
  if (!entry.is_map()) {
    problems.add(entry, "got " + entry.describe_value() +
                            ", expected a map {name, data_src, data_src_args, transform, fields}");
    return;
  }
  config::check_unknown_keys(entry, {"name", "data_src", "data_src_args", "transform", "fields"},
                             {}, problems);
  check_fields(entry["fields"], problems);
  const Node src = entry["data_src"];
  const std::string name = src.is_scalar() ? src.raw() : default_src_;
  if (open_.contains(name)) {
    if (const auto found = check_.find(name); found != check_.end())
      found->second(entry["data_src_args"], problems);
    return;
  }
  std::vector<std::string> names;
  for (const auto& [known, unused] : open_) names.push_back(known);
  const std::string guess = closest_match(name, names);
  if (name.empty())
    problems.add(entry, "key 'data_src' is missing", "known sources: " + join(names, ", "));
  else
    problems.add(src, fmt::format("unknown data_src '{}'", name),
                 guess.empty() ? "known sources: " + join(names, ", ")
                               : fmt::format("did you mean '{}'?", guess));
}

std::shared_ptr<const Dataset> DatasetSources::open(const Node& entry, Problems& problems) const {
  Problems own;  // an entry with problems is not opened; those of others do not matter here
  check(entry, own);
  std::shared_ptr<const Dataset> dataset;
  if (own.empty()) {
    const std::string name = entry["data_src"].is_scalar() ? entry["data_src"].raw() : default_src_;
    const Node args = entry["data_src_args"];
    int asked = 0;
    std::string ignored;  // the source reads it too, and complains
    read(args["sample_rate"], asked, ignored);
    dataset =
        open_.at(name)(asked > 0 || sample_rate_ == 0
                           ? args
                           : config::with_key(args, "sample_rate", Node(rate_value(sample_rate_))),
                       own);
    if (dataset != nullptr && asked > 0 && sample_rate_ > 0 && asked != sample_rate_)
      dataset = std::make_shared<Transformed>(dataset, [rate = sample_rate_](Sample& sample) {
        sample.speech = resample(sample.speech, sample.sample_rate, rate);
        sample.sample_rate = rate;
      });
  }
  if (dataset != nullptr)
    for (auto& add : open_fields(entry["fields"], *dataset))
      dataset = std::make_shared<Transformed>(dataset, std::move(add));
  const Node transform = entry["transform"];
  if (dataset != nullptr && !transform.is_null()) {
    if (make_transform_) {
      if (Transform change = make_transform_(transform, own))
        dataset = std::make_shared<Transformed>(dataset, std::move(change));
    } else {
      own.add(transform, "no transforms are known here", "remove it");
    }
  }
  for (const auto& problem : own.sorted()) problems.add(problem);
  return own.empty() ? dataset : nullptr;
}

std::shared_ptr<const Dataset> DatasetSources::open_list(const Node& entries,
                                                         Problems& problems) const {
  if (!entries.is_list()) {
    problems.add(entries,
                 "got " + entries.describe_value() + ", expected a list of dataset entries");
    return nullptr;
  }
  std::vector<NamedDataset> parts;
  bool whole = true;
  for (const Node& entry : entries.elements()) {
    auto dataset = open(entry, problems);
    whole = whole && dataset != nullptr;
    const std::string name = entry["name"].is_scalar() ? entry["name"].raw() : entry.path();
    if (dataset != nullptr) parts.push_back({name, std::move(dataset)});
  }
  if (!whole) return nullptr;
  return combine(std::move(parts));
}

}  // namespace tutti::data
