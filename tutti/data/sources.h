// Dataset entries of the config: `{name, data_src, data_src_args, transform}` to datasets.
//
// ```yaml
// dataset:
//   train:
//     - data_src: kaldi
//       data_src_args: {wav_scp: data/train/wav.scp, text: data/train/text, sample_rate: 16000}
//     - data_src: jsonl
//       data_src_args: {manifest: extra/manifest.jsonl}
// ```
//
//   DatasetSources sources = DatasetSources::standard();   // kaldi, jsonl, tsv, archive
//   sources.add("mini_an4/asr", open_mini_an4);            // a recipe adds its own
//   auto train = sources.open_list(config["dataset"]["train"], problems);
//
// A value: build it in main, pass it on. Why no global registry: tests and plugins each see only
// what they added.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tutti/config/problem.h"
#include "tutti/config/schema.h"
#include "tutti/data/dataset.h"

namespace tutti::data {

// Opens a dataset from its data_src_args. Adds problems (and returns null) for what the config got
// wrong; throws DataError or IoError for what the files got wrong.
using OpenDataset = std::function<std::shared_ptr<const Dataset>(const config::Node& args,
                                                                 config::Problems& problems)>;
// Changes a sample after reading, before preprocessing. Called from many threads.
using Transform = std::function<void(Sample& sample)>;
using MakeTransform =
    std::function<Transform(const config::Node& transform, config::Problems& problems)>;

class DatasetSources {
 public:
  static DatasetSources standard();
  // Of data_src_args; adds every problem that can be seen without files.
  using CheckArgs = std::function<void(const config::Node& args, config::Problems& problems)>;
  void add(const std::string& data_src, OpenDataset open, CheckArgs check = {}) {
    open_[data_src] = std::move(open);
    if (check) check_[data_src] = std::move(check);
  }
  void set_transforms(MakeTransform make) { make_transform_ = std::move(make); }
  bool has(const std::string& data_src) const { return open_.contains(data_src); }
  std::vector<std::string> names() const;  // sorted
  // What samples are resampled to in the end; 0: as they are. An entry's own sample_rate comes
  // first: {sample_rate: 8000} under a model of 16 kHz is speech as a telephone carries it.
  void set_sample_rate(int sample_rate) { sample_rate_ = sample_rate; }
  // What an entry without data_src means (a recipe's own dataset).
  void set_default(std::string data_src) { default_src_ = std::move(data_src); }

  // One entry; null when problems were added.
  std::shared_ptr<const Dataset> open(const config::Node& entry, config::Problems& problems) const;
  // A list of entries, combined. Throws DataError when an id is in two of them.
  std::shared_ptr<const Dataset> open_list(const config::Node& entries,
                                           config::Problems& problems) const;
  // The checks that need no files: keys, names and arguments.
  void check(const config::Node& entry, config::Problems& problems) const;

 private:
  std::map<std::string, OpenDataset> open_;
  std::map<std::string, CheckArgs> check_;
  MakeTransform make_transform_;
  std::string default_src_;
  int sample_rate_ = 0;  // Hz
};

// The data_src that an entry names, or that its arguments mean; empty: neither (a builder's).
std::string implied_source(const config::Node& entry);

// For the reference in docs/.
std::vector<config::SchemaInfo> sources_reference();

}  // namespace tutti::data
