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
  std::string dataset_dir;
  Node create_dataset, validate_dataset, dataset, tokenizer, model;
  Node optimizer, scheduler, optimizers, schedulers;
  std::string scheduler_interval = "step";
  std::optional<std::string> scheduler_monitor;
  Node best_model_criterion;
  std::optional<std::uint64_t> seed;
  std::optional<std::string> init;
  Node parallel, dataloader, trainer, fit;
  std::string stage_log_mode = "rank0";
  Node stage_log_dirs;
  std::vector<std::string> plugins;
};
Schema<TrainingFile> training_schema();

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
  Node text_builder;
};
Schema<TokenizerSettings> tokenizer_schema();

struct InferenceFile {
  std::string recipe_dir = ".";
  std::string exp_tag, exp_dir, data_dir, inference_dir;
  Node dataset, parallel, model;
  Node input_key;  // text or list
  Node output_keys;
  std::optional<std::string> idx_key;
  std::optional<int> batch_size;
  std::optional<std::string> output_fn;
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
  Node pack_model, upload_model;
};
Schema<PublicationFile> publication_schema();

struct DemoFile {
  std::string recipe_dir = ".";
  std::string exp_tag, exp_dir;
  Node model, ui, pack, upload_demo, parallel, server;
  std::vector<std::string> plugins;
};
Schema<DemoFile> demo_schema();

// Tasks, inference models, providers, runners, metrics.
void add_speech_components(Catalogue& catalogue);

}  // namespace tutti::config
