// Utterances by number: what every sampler, loader and stage reads from.
//
//   auto train = open_manifest(read_jsonl_manifest("train.jsonl"), {.sample_rate = 16000});
//   Sample sample = train->read(train->find("utt_7"));
//
// A Dataset is immutable; read() may be called from any number of threads at once. A missing or
// damaged file is a DataError that names the utterance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/array.h"
#include "tutti/data/io/audio.h"
#include "tutti/data/manifest.h"

namespace tutti::data {

// Frames of features made elsewhere (Kaldi's archives, .npy) are taken to be 10 ms apart.
inline constexpr int kFeatureFrameRate = 100;

// One utterance in memory, passed along the preprocessing chain.
struct Sample {
  std::string uid;
  std::vector<float> speech;     // [T], in [-1, 1]; or features made elsewhere, [T * feature_dim]
  int sample_rate = 0;           // Hz; of features: values per second, at kFeatureFrameRate
  std::int64_t feature_dim = 0;  // 0: speech holds samples
  std::string text;              // as written
  std::string text_prev, text_ctc;  // of speech-to-text data; empty elsewhere
  std::string speaker;
  std::vector<std::int64_t> tokens;    // filled by the tokenizer step
  bool is_tokenized = false;           // an empty text has no tokens
  std::map<std::string, Array> extra;  // further fields to collate, first dimension may vary
};

// What is behind a dataset on disk, told without reading it.
struct FilesSeen {
  std::int64_t files = 0, missing = 0;
  std::uint64_t bytes = 0;
};

class Dataset {
 public:
  static constexpr std::size_t kMissing = TextIndex::kMissing;
  virtual ~Dataset() = default;
  virtual std::size_t size() const = 0;
  virtual std::string uid(std::size_t index) const = 0;
  virtual std::size_t find(std::string_view uid) const = 0;  // kMissing: none
  virtual Sample read(std::size_t index) const = 0;
  // What was said, without its audio where that is possible.
  virtual std::string text(std::size_t index) const { return read(index).text; }
  // Whether it is possible, and what read() will give.
  virtual bool knows_texts() const { return false; }
  // Known without reading audio; 0 when not.
  virtual std::uint64_t num_samples(std::size_t index) const = 0;
  // How long it is beside others, as far as that is known without reading: to go through utterances by
  // length. Samples, seconds or bytes of its file.
  virtual double length_hint(std::size_t index) const {
    return static_cast<double>(num_samples(index));
  }
  // Changes whenever the list of utterances does.
  virtual std::uint64_t hash() const = 0;
  // Adds the files that utterances are read from, where each has one of its own.
  virtual void count_files(FilesSeen&) const {}
};

struct AudioOptions {
  int sample_rate = 0;          // Hz; 0: each file's own
  int channel = kFirstChannel;  // for entries that do not say
};

std::shared_ptr<const Dataset> open_manifest(Manifest manifest, AudioOptions options = {});

// Several datasets one after the other. Throws DataError when an id appears in two of them.
struct NamedDataset {
  std::string name;  // for errors
  std::shared_ptr<const Dataset> dataset;
};
std::shared_ptr<const Dataset> combine(std::vector<NamedDataset> parts);

}  // namespace tutti::data
