#include "tutti/config/recipe_defaults.h"

#include <algorithm>

#include "tutti/config/merge.h"

namespace tutti::config {
namespace {

constexpr const char* kName = "recipe defaults";  // as Mark::describe knows it

constexpr const char* kPaths = R"(
recipe_dir: .
exp_tag: ${self_name:}
exp_dir: ${recipe_dir}/exp/${exp_tag}
)";

constexpr const char* kTraining = R"(
data_dir: ${recipe_dir}/data
stats_dir: ${recipe_dir}/exp/stats
num_device: 1
num_nodes: 1
optimizer:
  _target_: torch.optim.Adam
  lr: 0.002
  weight_decay: 0.000001
scheduler:
  _target_: espnet2.schedulers.warmup_lr.WarmupLR
  warmup_steps: 15000
scheduler_interval: step
best_model_criterion:
  - [valid/loss, 3, min]
parallel:
  env: local
  n_workers: 1
dataloader:
  collate_fn:
    _target_: espnet2.train.collate_fn.CommonCollateFn
    int_pad_value: -1
  train:
    iter_factory:
      _target_: espnet2.iterators.sequence_iter_factory.SequenceIterFactory
      shuffle: true
      collate_fn: ${dataloader.collate_fn}
      batches:
        type: unsorted
        shape_files: ["${stats_dir}/train/feats_shape"]
        batch_size: 4
        batch_bins: 4000000
  valid:
    iter_factory:
      _target_: espnet2.iterators.sequence_iter_factory.SequenceIterFactory
      shuffle: false
      collate_fn: ${dataloader.collate_fn}
      batches:
        type: ${dataloader.train.iter_factory.batches.type}
        shape_files: ["${stats_dir}/valid/feats_shape"]
        batch_size: ${dataloader.train.iter_factory.batches.batch_size}
        batch_bins: ${dataloader.train.iter_factory.batches.batch_bins}
trainer:
  accelerator: auto
  devices: ${num_device}
  num_nodes: ${num_nodes}
  accumulate_grad_batches: 1
  check_val_every_n_epoch: 1
  gradient_clip_val: 1.0
  log_every_n_steps: 100
  max_epochs: 100
  strategy: auto
  logger:
    - _target_: lightning.pytorch.loggers.TensorBoardLogger
      save_dir: ${exp_dir}/tensorboard
      name: tb_logger
)";

constexpr const char* kInference = R"(
data_dir: ${recipe_dir}/data
inference_dir: ${exp_dir}/${self_name:}
parallel:
  env: local
  n_workers: 1
)";

constexpr const char* kMetrics = R"(
inference_dir: ${exp_dir}/inference
)";

constexpr const char* kDemo = R"(
model: {dir_or_tag: "${exp_dir}/model_pack"}
)";

std::string text_of(FileKind kind) {
  const std::string paths = kPaths;
  switch (kind) {
    case FileKind::kTraining:
      return paths + kTraining;
    case FileKind::kInference:
      return paths + kInference;
    case FileKind::kMetrics:
      return paths + kMetrics;
    case FileKind::kDemo:
      return paths + kDemo;
    case FileKind::kPublication:
    case FileKind::kParallel:
      break;
  }
  return {};
}

std::string target_of(const Node& node) {
  return node.is_map() && node["_target_"].is_scalar() ? node["_target_"].raw() : "";
}

// The defaults without what the file's own choices make senseless.
ValuePtr fitting(const Node& defaults, const Node& file) {
  if (!defaults.is_map() || !file.is_map()) return defaults.value();
  auto out = std::make_shared<Value>(*defaults.value());
  out->map.clear();
  out->key_marks.clear();
  for (const auto& [key, value] : defaults.items()) {
    const std::string chosen = target_of(file[key]);
    if (!chosen.empty() && chosen != target_of(value)) continue;
    const bool several = (key == "optimizer" && file["optimizers"].defined()) ||
                         (key == "scheduler" && file["schedulers"].defined());
    if (several) continue;
    // A mode with batches of its own, or torch's plain keys, wants no factory.
    if (key == "iter_factory" && (file["batches"].defined() || file["batch_size"].defined()))
      continue;
    // Another backend has options of its own, and its workers are counted by whoever names it.
    if (key == "parallel" && file[key].is_map() && file[key]["env"].defined()) continue;
    out->map.emplace_back(key, fitting(value, file[key]));
    out->key_marks.push_back(defaults.key_mark(key));
  }
  return out;
}

}  // namespace

Node with_recipe_defaults(FileKind kind, const Node& file) {
  const std::string text = text_of(kind);
  if (text.empty() || !file.is_map()) return file;
  return with_own_limits(Node(merge(fitting(parse_yaml(text, kName), file), file.value())));
}

Node with_own_limits(const Node& config) {
  Node out = config;
  Problems none;
  for (const std::string part : {"train", "valid"}) {
    const Node batches = config["dataloader"][part]["iter_factory"]["batches"];
    const auto is_own = [&](const char* key) {
      return batches[key].defined() && !is_recipe_default(batches[key]);
    };
    if (is_own("batch_size") == is_own("batch_bins")) continue;
    const std::string other = is_own("batch_size") ? "batch_bins" : "batch_size";
    if (batches[other].defined())
      out = Node(apply_override(
          out.value(), "dataloader." + part + ".iter_factory.batches." + other + "=null", none));
  }
  return out;
}

bool is_recipe_default(const Node& node) {
  return node.defined() && node.mark().file && *node.mark().file == kName;
}

}  // namespace tutti::config
