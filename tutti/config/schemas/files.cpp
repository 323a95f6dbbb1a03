#include "tutti/config/schemas/files.h"

#include <fmt/format.h>

#include "tutti/config/schemas/callbacks.h"

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
  s.field("create_dataset", &S::create_dataset, "keys of the dataset builder, see there");
  s.field("validate_dataset", &S::validate_dataset, "{min_seconds, max_seconds} of an utterance");
  s.field("dataset", &S::dataset, "corpora");
  s.field("tokenizer", &S::tokenizer, "how the tokenizer is trained");
  s.field("model", &S::model, "the model");
  s.field("optimizer", &S::optimizer, "a _target_ node");
  s.field("param_groups", &S::param_groups,
          "parameters with other settings: [{match: [patterns], dims: 1, lr, weight_decay, ...}]");
  s.field("scheduler", &S::scheduler, "a _target_ node");
  s.field("scheduler_interval", &S::scheduler_interval, "when the scheduler advances",
          {.one_of = {"step", "epoch"}});
  s.field("scheduler_monitor", &S::scheduler_monitor, "metric a plateau scheduler watches");
  s.field("optimizers", &S::optimizers,
          "named: {optimizer, params, param_groups, gradient_clip_val, gradient_clip_algorithm}");
  s.field("schedulers", &S::schedulers, "the same names: {scheduler, interval, monitor}");
  s.field("best_model_criterion", &S::best_model_criterion,
          "list of [metric, how many to keep, min|max]");
  s.field("seed", &S::seed, "of weights, order and augmentation");
  s.field("init", &S::init, "how weights begin; null: each layer's own way",
          {.one_of = init_methods()});
  s.field("init_param", &S::init_param,
          "weights to begin with: list of SOURCE[:NAME_THERE[:NAME_HERE[:EXCEPT,...]]]");
  s.field("ignore_init_mismatch", &S::ignore_init_mismatch,
          "leave out tensors of init_param that do not fit");
  s.field("freeze_param", &S::freeze_param, "parts of the model that do not learn");
  s.field("parallel", &S::parallel, kParallelDoc);
  s.field("dataloader", &S::dataloader, "how batches are made");
  s.field("trainer", &S::trainer, "one model, many ranks");
  s.field("fit", &S::fit,
          "{ckpt_path: last | best | FOLDER | FILE.ckpt | never}: where to go on from");
  s.field("stage_log_mode", &S::stage_log_mode, "who writes train.log",
          {.one_of = {"rank0", "per_rank"}});
  s.refused("stage_log_dirs", {}, "remove it: each stage logs into logs/ of its folder");
  s.field("plugins", &S::plugins, "shared libraries that add components");
  for (const char* key :
       {"devices", "strategy", "accelerator", "precision", "max_epochs", "callbacks", "logger"})
    s.elsewhere(key, std::string("put it under trainer: trainer.") + key);
  for (const char* key : {"env", "n_workers", "options"})
    s.elsewhere(key, std::string("put it under parallel: parallel.") + key);
  // What ESPnet2's train.yaml has at the top level.
  const std::pair<const char*, const char*> from_espnet2[] = {
      {"ngpu", "is called num_device here"},
      {"max_epoch", "is called trainer.max_epochs here"},
      {"accum_grad", "is called trainer.accumulate_grad_batches here"},
      {"grad_clip", "is called trainer.gradient_clip_val here"},
      {"use_amp", "is written trainer.precision: 16-mixed here"},
      {"log_interval", "is called trainer.log_every_n_steps here"},
      {"patience", "is the early_stopping callback under trainer.callbacks here"},
      {"keep_nbest_models",
       "is the second number of best_model_criterion: [[valid/loss, 10, min]]"},
      {"optim", "is written optimizer: {_target_: adam} here"},
      {"optim_conf", "goes into optimizer, beside _target_"},
      {"lr", "goes into optimizer: optimizer.lr"},
      {"learning_rate", "is called optimizer.lr here"},
      {"scheduler_conf", "goes into scheduler, beside _target_"},
      {"batch_type", "is called dataloader.train.iter_factory.batches.type here"},
      {"batch_bins", "is called dataloader.train.iter_factory.batches.batch_bins here"},
      {"batch_size", "is called dataloader.train.iter_factory.batches.batch_size here"},
      {"num_workers", "is called dataloader.train.iter_factory.num_workers here"},
      {"token_list", "belongs to the model: model.token_list"},
      {"token_type", "belongs to dataset.preprocessor.token_type"},
      {"bpemodel", "belongs to dataset.preprocessor.bpemodel"},
      {"encoder", "belongs to the model: model.encoder"},
      {"encoder_conf", "belongs to the model: model.encoder_conf"},
      {"decoder", "belongs to the model: model.decoder"},
      {"decoder_conf", "belongs to the model: model.decoder_conf"},
      {"frontend", "belongs to the model: model.frontend"},
      {"frontend_conf", "belongs to the model: model.frontend_conf"},
      {"model_conf", "belongs to the model: model.model_conf"},
      {"specaug", "belongs to the model: model.specaug"},
      {"specaug_conf", "belongs to the model: model.specaug_conf"},
      {"normalize", "belongs to the model: model.normalize"}};
  for (const auto& [key, sentence] : from_espnet2) s.elsewhere(key, sentence);
  for (const char* key : {"total_shards", "dist_world_size"})
    s.elsewhere(
        key,
        std::string("put it under dataloader.train and dataloader.valid: dataloader.train.") + key);
  return s;
}

const std::vector<std::string>& init_methods() {
  static const std::vector<std::string> methods = {
      "chainer",         "chainer_espnet1", "xavier_uniform", "xavier_normal",
      "kaiming_uniform", "kaiming_normal",  "normal"};
  return methods;
}

Schema<NamedOptimizer> named_optimizer_schema() {
  using S = NamedOptimizer;
  Schema<S> s("optimizers.<name>", "One of several optimizers.");
  s.field("optimizer", &S::optimizer, "a _target_ node", {.required = true});
  s.field("params", &S::params,
          "parts of the model it trains: a name between dots, a pattern with *, or a list of them; "
          "null: all");
  s.field("param_groups", &S::param_groups, "as the top-level key, for these parameters");
  s.field("gradient_clip_val", &S::gradient_clip_val, "limit of its gradient; null: the trainer's",
          {.min = 0});
  s.field("gradient_clip_algorithm", &S::gradient_clip_algorithm,
          "norm or value; null: the trainer's", {.one_of = {"norm", "value"}});
  s.elsewhere("accum_grad_steps", "use trainer.accumulate_grad_batches");
  s.elsewhere("step_every_n_iters",
              "let the model return this optimizer's loss in every n-th step");
  return s;
}

Schema<NamedScheduler> named_scheduler_schema() {
  using S = NamedScheduler;
  Schema<S> s("schedulers.<name>", "The scheduler of the optimizer of this name.");
  s.field("scheduler", &S::scheduler, "a _target_ node", {.required = true});
  s.field("interval", &S::interval, "when it advances", {.one_of = {"step", "epoch"}});
  s.field("monitor", &S::monitor, "metric a plateau scheduler watches");
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
    Node wrong;
    std::string what = "[metric, how many, min|max]";
    if (!entry.is_list() || entry.size() != 3) {
      wrong = entry;
    } else if (!read(entry[0], criterion.metric, expected)) {
      wrong = entry[0], what = "the name of a metric";
    } else if (!read(entry[1], criterion.keep, expected) || criterion.keep < 1) {
      wrong = entry[1], what = "how many to keep, 1 or more";
    } else if (!read(entry[2], mode, expected) || (mode != "min" && mode != "max")) {
      wrong = entry[2], what = "min or max";
    }
    if (wrong.defined()) {
      problems.add(wrong, "got " + wrong.describe_value() + ", expected " + what,
                   "write [valid/loss, 3, min]");
      continue;
    }
    criterion.lower_is_better = mode == "min";
    warn_of_direction(entry[2], criterion.metric, mode, problems);
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
  s.refused("text_builder", {}, "write the text to a file yourself, and name it in train_file");
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
  s.refused("input_key", {"speech"}, "remove it: models get the speech of a sample");
  s.field("output_keys", &S::output_keys, "keys of the result that are written");
  s.field("idx_key", &S::idx_key, "key of a sample that names it; null: utt_id");
  s.field("batch_size", &S::batch_size, "utterances decoded together; null: one, on a GPU up to 32",
          {.min = 1});
  s.field("on_bad", &S::on_bad,
          "what an utterance does that cannot be decoded; null: as parallel.on_error",
          {.one_of = {"stop", "skip"}});
  s.refused("output_fn", {}, "use runner: {_target_: NAME} of a plugin to make other results");
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
  s.refused("pack_model", {},
            "the pack_model stage needs no settings: it packs what the training and inference "
            "configs name");
  s.refused("upload_model", {}, "nothing is uploaded here: copy the folder exp_dir/model_pack");
  return s;
}

Schema<DemoFile> demo_schema() {
  using S = DemoFile;
  Schema<S> s("demo", "demo.yaml: a page to try the model on.");
  add_context(s);
  Schema<DemoModel> model("demo model", "The packed model.");
  model.field("dir_or_tag", &DemoModel::dir_or_tag, "a folder that pack_model made");
  model.field("call_args", &DemoModel::call_args, "search settings, as model of inference.yaml");
  model.refused("trust_user_code", {"false", "False"}, "remove it: a pack holds no code");
  s.group("model", &S::model, model);
  Schema<DemoUi> ui("demo ui", "The page.");
  ui.field("title", &DemoUi::title, "heading of the page");
  ui.field("description", &DemoUi::description, "a sentence under it");
  ui.field("examples", &DemoUi::examples, "audio files to try it with, one button each");
  for (const char* key : {"app_script", "inputs", "outputs"})
    ui.refused(key, {}, "remove it: the page takes audio and shows text");
  s.group("ui", &S::ui, ui);
  Schema<DemoServerKeys> server("demo server", "Who may see the page.");
  server.field("host", &DemoServerKeys::host, "address it listens on; 0.0.0.0: every one");
  server.field("port", &DemoServerKeys::port, "0: any free one", {.min = 0, .max = 65535});
  server.field("max_requests", &DemoServerKeys::max_requests, "per minute and client", {.min = 1});
  server.field("max_upload", &DemoServerKeys::max_upload, "largest recording");
  s.group("server", &S::server, server);
  s.refused("pack", {}, "remove it: the demo stage serves the page itself");
  s.refused("upload_demo", {}, "remove it: nothing is uploaded here");
  s.refused("parallel", {}, "remove it: a demo is one process");
  s.field("plugins", &S::plugins, "shared libraries that add components");
  return s;
}

}  // namespace tutti::config
