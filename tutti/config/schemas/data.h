// `dataset:` as the config layer sees it: keys, types and names that need no data. The dataloader
// block is read and checked by the data room (tutti/data/batching/settings.h), which programs
// register with FileChecker::block.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/config/registry.h"

namespace tutti::config {

// One entry of dataset.train, .valid or .test
struct DatasetEntry {
  std::optional<std::string> name;
  std::optional<std::string> data_src;
  Node data_src_args;
  Node transform;
  Node fields;  // see tutti/data/fields.h
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

}  // namespace tutti::config
