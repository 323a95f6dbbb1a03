// `dataloader:` and `dataset:` as the config layer sees them: keys, types and rules that need no
// data. The data room has its own, stricter readers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/config/registry.h"

namespace tutti::config {

// dataloader.train / dataloader.valid
struct LoaderSettings {
  std::optional<std::int64_t> total_shards;
  std::optional<std::int64_t> dist_world_size;
  std::string batch_distribution = "per_gpu";
  Node iter_factory;
  Node collate_fn;
  int batch_size = 1;
  bool shuffle = false;
  int num_workers = 0;
  bool drop_last = false;
  bool pin_memory = false;
  int prefetch_factor = 2;
  bool persistent_workers = false;
  Duration timeout;
};
Schema<LoaderSettings> loader_schema();

// `batches:` of an iter_factory
struct BatchSettings {
  std::string type = "unsorted";
  std::vector<std::string> shape_files;
  int batch_size = 1;
  std::int64_t batch_bins = 1'000'000;
  int min_batch_size = 1;
  std::optional<int> max_batch_size;
  std::string sort_in_batch = "descending";
  std::string sort_batch = "ascending";
  bool drop_last = false;
  bool padding = true;
  std::vector<std::int64_t> fold_lengths;
  std::string utt2category_file;
  std::optional<double> upsampling_factor;
  std::optional<double> dataset_upsampling_factor;
  std::optional<double> dataset_scaling_factor;
};
Schema<BatchSettings> batch_schema();

struct SequenceIterSettings {
  BatchSettings batches;
  std::optional<std::int64_t> num_iters_per_epoch;
  std::uint64_t seed = 0;
  bool shuffle = false;
  bool shuffle_within_batch = false;
  int num_workers = 0;
  bool pin_memory = false;
  Node collate_fn;
};
Schema<SequenceIterSettings> sequence_iter_schema();

// One entry of dataset.train, .valid or .test
struct DatasetEntry {
  std::optional<std::string> name;
  std::optional<std::string> data_src;
  Node data_src_args;
  Node transform;
};
Schema<DatasetEntry> dataset_entry_schema();

struct DatasetSettings {
  std::string recipe_dir = ".";
  std::vector<Node> train;
  std::vector<Node> valid;
  std::vector<Node> test;
  Node preprocessor;
};
Schema<DatasetSettings> dataset_schema();

void add_data_components(Catalogue& catalogue);
void check_dataset(const Node& dataset, const Catalogue& catalogue, Problems& problems);
void check_dataloader(const Node& dataloader, const Catalogue& catalogue, Problems& problems);

}  // namespace tutti::config
