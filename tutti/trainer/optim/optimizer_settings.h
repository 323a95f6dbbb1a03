// The optimizers and schedulers of a training config, read once for `config check` and for the run.
//
//   Problems problems;
//   for (const OptimizerSettings& each : parse_optimizers(root, catalogue, problems)) ...
//   problems.throw_if_any();
//
// `optimizer` + `param_groups` + `scheduler` is one without a name; `optimizers` and `schedulers` give each a
// name. Nodes are checked, not built: building takes torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/config/registry.h"
#include "tutti/trainer/trainer_settings.h"

namespace tutti::trainer {

// Of `param_groups: [{match: ["*.bias", norm], dims: 1, weight_decay: 0}, {match: encoder, lr: 1e-4}]`.
struct GroupSettings {
  std::vector<std::string> match;
  std::optional<std::int64_t> dims;
  config::Node optimizer;  // the optimizer's node with the group's own keys over it
};

struct OptimizerSettings {
  std::string name;                 // empty for the only one
  std::vector<std::string> params;  // as GroupSettings::match; empty: all
  config::Node optimizer;
  std::vector<GroupSettings> groups;
  std::optional<double> gradient_clip_val;  // empty: the trainer's
  std::optional<ClipAlgorithm> gradient_clip_algorithm;
  config::Node scheduler;  // null: the rate stays
  bool by_epoch = false;
  std::string monitor = "valid/loss";
  config::Node monitor_node;  // where it was written, if it was
};

std::vector<OptimizerSettings> parse_optimizers(const config::Node& root,
                                                const config::Catalogue& catalogue,
                                                config::Problems& problems);

}  // namespace tutti::trainer
