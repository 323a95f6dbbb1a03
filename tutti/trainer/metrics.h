// Numbers to log, as sums: value x weight and weight are added up, in double, over batches and
// ranks, and divided once at the end. So a mean over ranks with unequal data is the true mean.
//
// Adding never communicates and never waits for a GPU; merge() does both, once per log line.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/trainer/control.h"
#include "tutti/trainer/model.h"

namespace tutti::trainer {

using Metrics = std::map<std::string, double>;

class MetricSums {
 public:
  // Takes stats and ratios of a step under `prefix` ("train/"). Tensors on a GPU are kept, not
  // read.
  void add(const std::string& prefix, const StepOutput& output);
  void add(const std::string& name, double numerator, double denominator);
  // Adds the sums of `other`.
  void add(const MetricSums& other);
  void clear();
  bool empty() const { return sums_.empty() && pending_.empty(); }

  // Those of each rank, the same bits on each. A collective call.
  std::vector<MetricSums> of_ranks(Control& control, const std::string& what);
  // Their sums over all ranks. A collective call.
  MetricSums merged(Control& control, const std::string& what);
  Metrics means() const;  // metrics whose weight is 0 are left out

  Json to_json() const;
  static MetricSums from_json(const Json& json);

 private:
  void read_pending();
  std::string encode() const;
  void add_encoded(const std::string& blob);

  struct Pending {
    std::string name;
    at::Tensor value;
    double weight;
  };
  std::map<std::string, Ratio> sums_;
  std::vector<Pending> pending_;  // on a GPU
};

}  // namespace tutti::trainer
