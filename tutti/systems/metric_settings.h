// One entry of `metrics:`: an error rate, which fields it compares, how texts are cleaned before. Torch-free.
#pragma once

#include <string>
#include <vector>

#include "tutti/config/registry.h"

namespace tutti::systems {

struct MetricSettings {
  std::string target;  // as written; heads the results
  std::string name;    // ours: wer, cer, ter
  std::string ref_key = "ref";
  std::string hyp_key = "hyp";
  std::vector<std::string> clean_types;
  std::string bpemodel;   // ter; empty: the experiment's
  config::Node cleaners;  // clean_types as written: one name or a list
};

void add_metric_components(config::Catalogue& catalogue);
// `entry` is {metric: _target_ node, inputs: {ref: FIELD}}.
MetricSettings read_metric(const config::Node& entry, config::Problems& problems);

}  // namespace tutti::systems
