// The top-level keys of the config files a recipe has: training, inference, metrics, publication
// and demo. Blocks another room reads stay raw (Node) here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/config/registry.h"

namespace tutti::config {

struct TrainingFile {
  int num_device = 1;
  int num_nodes = 1;
  std::optional<std::string> task;
  std::string recipe_dir = ".";
  std::string data_dir;
  std::string exp_tag;
  std::string exp_dir;
  std::string stats_dir;
  Node create_dataset, validate_dataset, dataset, tokenizer, model;
  Node optimizer, param_groups, scheduler, optimizers, schedulers;
  std::string scheduler_interval = "step";
  std::optional<std::string> scheduler_monitor;
  Node best_model_criterion;
  std::optional<std::uint64_t> seed;
  std::optional<std::string> init;
  Node init_param, freeze_param;
  bool ignore_init_mismatch = false;
  Node parallel, dataloader, trainer, fit;
  std::string stage_log_mode = "rank0";
  std::vector<std::string> plugins;
};
Schema<TrainingFile> training_schema();

// One of `optimizers:`, and the one of `schedulers:` with the same name.
struct NamedOptimizer {
  Node optimizer;  // a _target_ node
  Node params;     // names or patterns of parts of the model: one, or a list
  Node param_groups;
  std::optional<double> gradient_clip_val;             // null: the trainer's
  std::optional<std::string> gradient_clip_algorithm;  // null: the trainer's
};
Schema<NamedOptimizer> named_optimizer_schema();
struct NamedScheduler {
  Node scheduler;  // a _target_ node
  std::string interval = "epoch";
  std::string monitor = "valid/loss";
};
Schema<NamedScheduler> named_scheduler_schema();

// `best_model_criterion: [[valid/loss, 3, min]]`
struct BestModelCriterion {
  std::string metric = "valid/loss";
  int keep = 3;
  bool lower_is_better = true;
};
std::vector<BestModelCriterion> parse_best_model_criterion(const Node& node, Problems& problems);

struct TokenizerSettings {
  int vocab_size = 0;
  double character_coverage = 1.0;
  std::string model_type = "bpe";
  std::string save_path;
  std::optional<std::string> train_file;
};
Schema<TokenizerSettings> tokenizer_schema();

struct InferenceFile {
  std::string recipe_dir = ".";
  std::string exp_tag, exp_dir, data_dir, inference_dir;
  Node dataset, parallel, model;
  Node output_keys;
  std::optional<std::string> idx_key;
  std::optional<int> batch_size;
  std::optional<std::string> on_bad;
  Node output_artifacts, provider, runner;
  std::optional<std::string> device;
  std::optional<int> device_index, local_rank;
  std::vector<std::string> plugins;
};
Schema<InferenceFile> inference_schema();

struct MetricsFile {
  std::string recipe_dir = ".";
  std::string exp_tag, exp_dir;
  std::optional<std::string> inference_dir;
  Node dataset, parallel;
  std::vector<Node> metrics;
  std::vector<std::string> plugins;
};
Schema<MetricsFile> metrics_schema();

struct PublicationFile {
  std::string recipe_dir = ".";
  std::string exp_tag, exp_dir, inference_dir;
};
Schema<PublicationFile> publication_schema();

struct DemoModel {
  std::string dir_or_tag;
  Node call_args;
};
struct DemoUi {
  std::string title = "Tutti";
  std::string description;
  std::vector<std::string> examples;
};
struct DemoServerKeys {
  std::string host = "127.0.0.1";
  int port = 8000;
  int max_requests = 60;
  Bytes max_upload{25U << 20U};
};
struct DemoFile {
  std::string recipe_dir = ".";
  std::string exp_tag, exp_dir;
  DemoModel model;
  DemoUi ui;
  DemoServerKeys server;
  std::vector<std::string> plugins;
};
Schema<DemoFile> demo_schema();

// What `init` may name.
const std::vector<std::string>& init_methods();

// The tasks alone, for whoever builds them.
void add_task_components(Catalogue& catalogue);
// Tasks, inference models, providers, runners, metrics.
void add_speech_components(Catalogue& catalogue);

}  // namespace tutti::config
