#include "tutti/config/schemas/files.h"

#include <fmt/format.h>

namespace tutti::config {
namespace {

template <class T>
void add_context(Schema<T>& s) {
  s.field("recipe_dir", &T::recipe_dir, "folder of the recipe");
  s.field("exp_tag", &T::exp_tag, "name of the experiment");
  s.field("exp_dir", &T::exp_dir, "folder of the experiment");
}

const char* const kParallelDoc =
    "who runs the items: {env, n_workers, options}; also as parallel_<name>";

}  // namespace

Schema<TrainingFile> training_schema() {
  using S = TrainingFile;
  Schema<S> s("training", "training.yaml: data, model and training of one experiment.");
  s.field("num_device", &S::num_device, "devices per node, for use as ${num_device}", {.min = 1});
  s.field("num_nodes", &S::num_nodes, "machines, for use as ${num_nodes}", {.min = 1});
  s.field("task", &S::task,
          "set: `model` is a model config of this task; null: `model` has a _target_");
  add_context(s);
  s.field("data_dir", &S::data_dir, "folder of prepared data");
  s.field("stats_dir", &S::stats_dir, "folder of collect_stats");
  s.field("dataset_dir", &S::dataset_dir, "folder of the corpus as it came");
  s.field("create_dataset", &S::create_dataset, "arguments of the dataset builders");
  s.field("validate_dataset", &S::validate_dataset, "{min_seconds, max_seconds} of an utterance");
  s.field("dataset", &S::dataset, "corpora");
  s.field("tokenizer", &S::tokenizer, "how the tokenizer is trained");
  s.field("model", &S::model, "the model");
  s.field("optimizer", &S::optimizer, "a _target_ node");
  s.field("scheduler", &S::scheduler, "a _target_ node");
  s.field("scheduler_interval", &S::scheduler_interval, "when the scheduler advances",
          {.one_of = {"step", "epoch"}});
  s.field("scheduler_monitor", &S::scheduler_monitor, "metric a plateau scheduler watches");
  s.field("optimizers", &S::optimizers,
          "named: {optimizer, params, accum_grad_steps, step_every_n_iters, gradient_clip_val, "
          "gradient_clip_algorithm}");
  s.field("schedulers", &S::schedulers, "the same names: {scheduler, interval, monitor}");
  s.field("best_model_criterion", &S::best_model_criterion,
          "list of [metric, how many to keep, min|max]");
  s.field("seed", &S::seed, "of weights, order and augmentation");
  s.field("init", &S::init, "how weights begin; null: each layer's own way",
          {.one_of = {"chainer", "chainer_espnet1", "xavier_uniform", "xavier_normal",
                      "kaiming_uniform", "kaiming_normal"}});
  s.field("parallel", &S::parallel, kParallelDoc);
  s.field("dataloader", &S::dataloader, "how batches are made");
  s.field("trainer", &S::trainer, "one model, many ranks");
  s.field("fit", &S::fit, "{ckpt_path: last | FOLDER | FILE.ckpt | never}: where to go on from");
  s.field("stage_log_mode", &S::stage_log_mode, "who writes train.log",
          {.one_of = {"rank0", "per_rank"}});
  s.field("stage_log_dirs", &S::stage_log_dirs, "folder of each stage's log");
  s.field("plugins", &S::plugins, "shared libraries that add components");
  for (const char* key :
       {"devices", "strategy", "accelerator", "precision", "max_epochs", "callbacks", "logger"})
    s.elsewhere(key, std::string("put it under trainer: trainer.") + key);
  for (const char* key : {"env", "n_workers", "options"})
    s.elsewhere(key, std::string("put it under parallel: parallel.") + key);
  for (const char* key : {"total_shards", "dist_world_size"})
    s.elsewhere(
        key,
        std::string("put it under dataloader.train and dataloader.valid: dataloader.train.") + key);
  return s;
}

std::vector<BestModelCriterion> parse_best_model_criterion(const Node& node, Problems& problems) {
  std::vector<BestModelCriterion> out;
  if (node.is_null()) return {BestModelCriterion{}};
  if (!node.is_list()) {
    problems.add(
        node, "got " + node.describe_value() + ", expected a list of [metric, how many, min|max]",
        "write best_model_criterion: [[valid/loss, 3, min]]");
    return out;
  }
  for (const Node& entry : node.elements()) {
    BestModelCriterion criterion;
    std::string mode;
    std::string expected;
    const bool ok = entry.is_list() && entry.size() == 3 &&
                    read(entry[0], criterion.metric, expected) &&
                    read(entry[1], criterion.keep, expected) && criterion.keep >= 1 &&
                    read(entry[2], mode, expected) && (mode == "min" || mode == "max");
    if (!ok) {
      problems.add(entry,
                   "got " + entry.describe_value() + ", expected [metric, how many, min|max]",
                   "write [valid/loss, 3, min]");
      continue;
    }
    criterion.lower_is_better = mode == "min";
    out.push_back(std::move(criterion));
  }
  return out;
}

Schema<TokenizerSettings> tokenizer_schema() {
  using S = TokenizerSettings;
  Schema<S> s("tokenizer", "How the tokenizer is trained.");
  s.field("vocab_size", &S::vocab_size,
          "number of tokens; characters and words are counted instead", {.min = 1});
  s.field("character_coverage", &S::character_coverage, "share of characters kept",
          {.min = 0, .max = 1});
  s.field("model_type", &S::model_type, "kind of tokens",
          {.one_of = {"bpe", "unigram", "char", "word"}});
  s.field("save_path", &S::save_path, "folder of bpe.model, bpe.vocab and tokens.txt");
  s.field("train_file", &S::train_file, "text to train on");
  s.field("text_builder", &S::text_builder, "{func, ...}: makes that text");
  s.check([](const Node& node, const S& settings, Problems& problems) {
    const bool counted = settings.model_type == "char" || settings.model_type == "word";
    if (!counted && node["vocab_size"].is_null())
      problems.add(node, "key 'vocab_size' is missing", "add vocab_size: <integer>");
  });
  return s;
}

Schema<InferenceFile> inference_schema() {
  using S = InferenceFile;
  Schema<S> s("inference", "inference.yaml: a model over test sets.");
  add_context(s);
  s.field("data_dir", &S::data_dir, "folder of prepared data");
  s.field("inference_dir", &S::inference_dir, "where results go");
  s.field("dataset", &S::dataset, "test sets");
  s.field("parallel", &S::parallel, kParallelDoc);
  s.field("model", &S::model, "a _target_ node");
  s.field("input_key", &S::input_key, "key, or keys, of a sample given to the model");
  s.field("output_keys", &S::output_keys, "keys of the result that are written");
  s.field("idx_key", &S::idx_key, "key of a sample that names it; null: utt_id");
  s.field("batch_size", &S::batch_size, "utterances decoded together; null: one", {.min = 1});
  s.field("on_bad", &S::on_bad,
          "what an utterance does that cannot be decoded; null: as parallel.on_error",
          {.one_of = {"stop", "skip"}});
  s.field("output_fn", &S::output_fn, "name of a function that makes the result");
  s.field("output_artifacts", &S::output_artifacts, "{field: {type: wav|npy|json, sample_rate}}");
  s.field("provider", &S::provider, "a _target_ node: builds dataset and model on each worker");
  s.field("runner", &S::runner, "a _target_ node: runs one item");
  s.field("device", &S::device, "auto, cpu, cuda or cuda:N; null: auto, what the worker was given");
  s.field("device_index", &S::device_index, "number of the GPU", {.min = 0});
  s.field("local_rank", &S::local_rank, "number of the GPU, as a launcher gives it", {.min = 0});
  s.field("plugins", &S::plugins, "shared libraries that add components");
  for (const char* key : {"env", "n_workers", "options"})
    s.elsewhere(key, std::string("put it under parallel: parallel.") + key);
  s.elsewhere("trainer", "trainer: is for training.yaml; inference is parallel: (many items)");
  return s;
}

Schema<MetricsFile> metrics_schema() {
  using S = MetricsFile;
  Schema<S> s("metrics", "metrics.yaml: scores of inference results.");
  add_context(s);
  s.field("inference_dir", &S::inference_dir, "where the results are");
  s.field("dataset", &S::dataset, "test sets to score; null: every folder of inference_dir");
  s.field("parallel", &S::parallel, kParallelDoc);
  s.field("metrics", &S::metrics, "list of {metric: _target_ node, inputs}");
  s.field("plugins", &S::plugins, "shared libraries that add components");
  s.elsewhere("trainer", "trainer: is for training.yaml; scoring is parallel: (many items)");
  return s;
}

Schema<PublicationFile> publication_schema() {
  using S = PublicationFile;
  Schema<S> s("publication", "publication.yaml: a model packed for others.");
  add_context(s);
  s.field("inference_dir", &S::inference_dir, "where the results are");
  s.field("pack_model", &S::pack_model,
          "{out_dir, allow_overwrite, inference_dir, include_model_detail, readme, readme_context, "
          "include, exclude, files, yaml_files}");
  s.field("upload_model", &S::upload_model, "{hf_repo, private, update, delete_patterns}");
  return s;
}

Schema<DemoFile> demo_schema() {
  using S = DemoFile;
  Schema<S> s("demo", "demo.yaml: a page to try the model on.");
  add_context(s);
  s.field("model", &S::model, "{dir_or_tag, trust_user_code, call_args}");
  s.field("ui", &S::ui, "{app_script, title, description, inputs, outputs}");
  s.field("pack", &S::pack, "{out_dir, include, exclude, requirements, readme, readme_context}");
  s.field("upload_demo", &S::upload_demo, "{hf_repo, organization, update, delete_patterns}");
  s.field("parallel", &S::parallel, kParallelDoc);
  s.field("server", &S::server, "{host, port, max_upload}: who may see the page");
  s.field("plugins", &S::plugins, "shared libraries that add components");
  return s;
}

}  // namespace tutti::config
