#include "tutti/speech/espnet/flat_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tutti/config/load.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/speech/espnet/transducer_config.h"

namespace tutti::speech {
namespace {

namespace fs = std::filesystem;
using config::Kind;
using config::Mark;
using config::Node;
using config::Problems;
using config::Value;
using config::ValuePtr;

// The model's own blocks, handed on as they are.
const std::set<std::string_view> kModelKeys = {
    "token_list",    "input_size",        "frontend",       "frontend_conf",
    "normalize",     "encoder",           "encoder_conf",   "normalize_conf",
    "decoder",       "decoder_conf",      "preencoder",     "postencoder",
    "model",         "model_conf",        "joint_net_conf", "ctc_conf",
    "promptencoder", "promptencoder_conf"};
// Read below.
const std::set<std::string_view> kReadHere = {
    "token_type",     "bpemodel",          "use_adapter",       "save_strategy",
    "use_lora",       "preprocessor",      "preprocessor_conf", "speech_volume_normalize",
    "save_lora_only", "save_adapter_only", "joint_network_conf"};
// What trained the model, fed it, or ran the program: nothing of it changes what a trained model
// says. A *_conf of a module that is refused itself is here too.
const std::set<std::string_view> kHarmless = {
    // augmentation, in training only
    "specaug", "specaug_conf", "rir_scp", "rir_apply_prob", "noise_scp", "noise_apply_prob",
    "noise_db_range", "short_noise_thres", "use_preprocessor", "use_lang_prompt", "use_nlp_prompt",
    "aux_ctc_tasks", "preencoder_conf", "postencoder_conf", "waveaug", "waveaug_conf",
    // texts of training
    "cleaner", "g2p", "non_linguistic_symbols",
    // training
    "init", "optim", "optim_conf", "optim2", "optim2_conf", "scheduler", "scheduler_conf",
    "max_epoch", "patience", "val_scheduler_criterion", "early_stopping_criterion",
    "best_model_criterion", "keep_nbest_models", "nbest_averaging_interval", "grad_clip",
    "grad_clip_type", "grad_noise", "accum_grad", "train_dtype", "use_amp", "resume", "init_param",
    "ignore_init_mismatch", "freeze_param", "pretrain_path", "pretrain_key", "exclude_weight_decay",
    "exclude_weight_decay_conf", "no_forward_run", "detect_anomaly", "adapter", "adapter_conf",
    "lora_conf",
    // data
    "train_data_path_and_name_and_type", "valid_data_path_and_name_and_type", "train_shape_file",
    "valid_shape_file", "batch_type", "batch_size", "batch_bins", "valid_batch_type",
    "valid_batch_size", "valid_batch_bins", "max_batch_size", "min_batch_size", "fold_length",
    "sort_in_batch", "sort_batch", "shuffle_within_batch", "multiple_iterator", "chunk_length",
    "chunk_shift_ratio", "chunk_excluded_key_prefixes", "chunk_default_fs", "chunk_max_abs_length",
    "chunk_discard_short_samples", "num_cache_chunks", "iterator_type", "valid_iterator_type",
    "drop_last_iter", "num_iters_per_epoch", "category_sample_size", "upsampling_factor",
    "category_upsampling_factor", "dataset_upsampling_factor", "dataset_scaling_factor",
    "allow_variable_data_keys", "multi_task_dataset", "allow_multi_rates", "max_cache_size",
    "max_cache_fd", "valid_max_cache_size", "validate_train_iter", "skip_stats_npz",
    // running
    "config", "print_config", "log_level", "dry_run", "output_dir", "ngpu", "seed", "num_workers",
    "num_att_plot", "dist_backend", "dist_init_method", "dist_world_size", "dist_rank",
    "dist_master_addr", "dist_master_port", "dist_launcher", "local_rank",
    "multiprocessing_distributed", "unused_parameters", "sharded_ddp", "ddp_sharded",
    "use_deepspeed", "deepspeed_config", "gradient_as_bucket_view", "ddp_comm_hook",
    "cudnn_enabled", "cudnn_benchmark", "cudnn_deterministic", "use_tf32", "collect_stats",
    "write_collected_feats", "log_interval", "use_matplotlib", "use_tensorboard",
    "create_graph_in_tensorboard", "create_graph_in_tensoarbord", "model_log_interval", "use_wandb",
    "wandb_project", "wandb_id", "wandb_entity", "wandb_name", "wandb_model_log_interval",
    "wandb_allow_val_change", "required", "version", "distributed"};

// A key that only one other task of ESPnet writes.
constexpr std::pair<const char*, const char*> kOtherTasks[] = {{"promptencoder", "s2t_ctc"},
                                                               {"lm", "lm"},
                                                               {"tts", "tts"},
                                                               {"svs", "svs"},
                                                               {"separator", "enh"},
                                                               {"enh_encoder", "enh_s2t"},
                                                               {"src_token_list", "st"},
                                                               {"codec", "gan_codec"},
                                                               {"attractor", "diar"},
                                                               {"pooling", "spk"},
                                                               {"vocoder", "s2st"},
                                                               {"generator", "uasr"}};

ValuePtr scalar(std::string text, const Mark& mark = {}) {
  auto value = std::make_shared<Value>();
  value->kind = Kind::kScalar;
  value->quoted = true;
  value->text = std::move(text);
  value->mark = mark;
  return value;
}

ValuePtr number(const char* text, const Mark& mark) {
  auto value = std::make_shared<Value>();
  value->kind = Kind::kScalar;
  value->text = text;
  value->mark = mark;
  return value;
}

ValuePtr null_value(const Mark& mark = {}) {
  auto value = std::make_shared<Value>();
  value->mark = mark;
  return value;
}

// A map that is put together; values keep the places where they were written.
class MapBuilder {
 public:
  MapBuilder() { map_->kind = Kind::kMap; }
  explicit MapBuilder(const Node& old) : MapBuilder() {
    if (!old.is_map()) return;
    *map_ = *old.value();
    map_->key_marks.resize(map_->map.size());
  }
  void set(const std::string& key, ValuePtr value) {
    const Mark mark = value->mark;
    for (std::size_t i = 0; i < map_->map.size(); ++i) {
      if (map_->map[i].first != key) continue;
      map_->map[i].second = std::move(value);
      return;
    }
    map_->map.emplace_back(key, std::move(value));
    map_->key_marks.push_back(mark);
  }
  void erase(const std::string& key) {
    for (std::size_t i = 0; i < map_->map.size(); ++i) {
      if (map_->map[i].first != key) continue;
      map_->map.erase(map_->map.begin() + static_cast<std::ptrdiff_t>(i));
      map_->key_marks.erase(map_->key_marks.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
  }
  ValuePtr take() { return std::move(map_); }

 private:
  std::shared_ptr<Value> map_ = std::make_shared<Value>();
};

std::string text_of(const Node& node) { return node.is_scalar() ? node.raw() : ""; }

// What concerns the loss alone does not stop a model from being decoded.
ValuePtr ctc_conf(const Node& conf) {
  MapBuilder out(conf);
  for (const char* key :
       {"ctc_type", "brctc_risk_strategy", "brctc_group_strategy", "brctc_risk_factor"})
    out.erase(key);
  return out.take();
}

ValuePtr normalize_conf(const Node& conf, const ModelFolder& model) {
  MapBuilder out(conf);
  if (const Node stats = conf.is_map() ? conf["stats_file"] : Node(); stats.is_scalar())
    // The weights hold mean and deviation too; a statistics file that was not published is no loss.
    out.set("stats_file", scalar(find_in_folder(model, stats.raw()).string(), stats.mark()));
  return out.take();
}

void check_adapters(const Node& flat, Problems& problems) {
  const bool used =
      flat["use_adapter"].value_or<bool>(false) || flat["use_lora"].value_or<bool>(false);
  if (!used) return;
  const std::string kept = text_of(flat["save_strategy"]);
  const bool partial = (!kept.empty() && kept != "all") || flat["save_lora_only"].value_or(false) ||
                       flat["save_adapter_only"].value_or(false);
  if (partial)
    problems.add(flat["save_strategy"].defined() ? flat["save_strategy"] : flat,
                 "the weights are an adapter alone, without the model it belongs to",
                 "give a model that was saved with save_strategy: all");
}

ValuePtr model_block(const Node& flat, const ModelFolder& model) {
  MapBuilder out;
  for (const auto& [key, node] : flat.items())
    if (kModelKeys.contains(key) && node.defined()) out.set(key, node.value());
  const Node weight = flat["model_conf"].is_map() ? flat["model_conf"]["ctc_weight"] : Node();
  const bool is_owsm_ctc = !flat["promptencoder"].is_null();
  if (is_owsm_ctc) {  // CTC is all there is, which its config need not say
    MapBuilder conf(flat["model_conf"]);
    conf.set("ctc_weight", number("1.0", flat["model_conf"].mark()));
    out.set("model_conf", conf.take());
  }
  if (is_owsm_ctc || (!weight.is_null() && weight.as<double>() == 1.0)) {
    // ESPnet builds no decoder then, whatever its default names.
    out.set("decoder", null_value());
    out.erase("decoder_conf");
  }
  if (flat["decoder"].is_scalar() && flat["decoder"].raw() != "transducer" &&
      flat["decoder"].raw() != "stateless")
    out.erase("joint_net_conf");
  out.set("ctc_conf", ctc_conf(flat["ctc_conf"]));
  if (flat["normalize_conf"].is_map())
    out.set("normalize_conf", normalize_conf(flat["normalize_conf"], model));
  if (const Node list = flat["token_list"]; list.is_scalar())
    if (const fs::path found = find_in_folder(model, list.raw()); !found.empty())
      out.set("token_list", scalar(found.string(), list.mark()));
  return out.take();
}

ValuePtr preprocessor_block(const Node& flat, const ModelFolder& model, bool is_s2t,
                            Problems& problems) {
  // Of S2TTask: the names of its marks, its window.
  MapBuilder out(is_s2t ? flat["preprocessor_conf"] : Node());
  const Node type = flat["token_type"];
  const std::string name = type.value_or<std::string>("bpe");
  if (name != "bpe" && name != "char" && name != "word")
    problems.add(type, "got " + type.describe_value() + ", expected bpe, char or word",
                 "models with phonemes, or tokens of Whisper or Hugging Face, are not supported");
  out.set("token_type", scalar(name, type.mark()));
  if (!model.bpemodel.empty()) {
    out.set("bpemodel", scalar(model.bpemodel.string()));
  } else if (const Node bpe = flat["bpemodel"]; name == "bpe" && bpe.is_scalar()) {
    const fs::path found = find_in_folder(model, bpe.raw());
    if (found.empty())
      problems.add(bpe, "file not found: " + bpe.raw() + " (looked in " + model.root.string() + ")",
                   "put the sentencepiece model there; it is published with the weights");
    out.set("bpemodel", scalar(found.string(), bpe.mark()));
  }
  // ESPnet's stages do it when decoding too; the model has heard nothing else.
  if (const Node volume = flat["speech_volume_normalize"]; !volume.is_null())
    out.set("speech_volume_normalize", volume.value());
  return out.take();
}

Node from_flat(const Node& flat, const ModelFolder& model, Problems& problems) {
  // What the config holds says more than meta.yaml: s2t_train_config is also OWSM-CTC's.
  const std::string guessed = guess_task(flat);
  const std::string task = guessed == "asr" && !model.task.empty() ? model.task : guessed;
  const bool is_transducer = task == "asr_transducer", is_asr = task == "asr" || is_transducer;
  if (!is_asr && task != "s2t" && task != "s2t_ctc") {
    problems.add(flat,
                 fmt::format("a model of ESPnet's task '{}', expected asr, asr_transducer, s2t "
                             "(OWSM) or s2t_ctc",
                             task),
                 "only speech recognition is supported");
    return flat;
  }
  for (const auto& [key, node] : flat.items())
    if (!kModelKeys.contains(key) && !kReadHere.contains(key) && !kHarmless.contains(key))
      problems.warn({flat.key_mark(key), key, "ignored: no key of an ESPnet2 version we know", ""});
  check_adapters(flat, problems);
  MapBuilder dataset;
  dataset.set("preprocessor", preprocessor_block(flat, model, !is_asr, problems));
  MapBuilder out;
  out.set("task", scalar(is_asr ? "espnet2.tasks.asr.ASRTask"
                                : fmt::format("espnet2.tasks.{}.S2TTask", task)));
  MapBuilder block(Node(model_block(flat, model)));
  if (is_transducer) {
    const Json blocks = read_transducer_blocks(flat, problems);
    for (const auto& [key, conf] : blocks.items()) block.set(key, config::from_json(conf).value());
    out.set("espnet_task", scalar(task));
  }
  out.set("model", block.take());
  out.set("dataset", dataset.take());
  return Node(out.take());
}

// A config of ours, or of ESPnet3, that came with a folder: files named in it may lie in the folder.
Node with_found_paths(const Node& config, const ModelFolder& model) {
  const auto found = [&](const Node& block, const char* key, MapBuilder& out) {
    if (!block.is_map() || !block[key].is_scalar()) return;
    if (const fs::path path = find_in_folder(model, block[key].raw()); !path.empty())
      out.set(key, scalar(path.string(), block[key].mark()));
  };
  MapBuilder block(config["model"]);
  found(config["model"], "token_list", block);
  if (const Node old = config["model"]["normalize_conf"]; old.is_map()) {
    MapBuilder conf(old);
    found(old, "stats_file", conf);
    block.set("normalize_conf", conf.take());
  }
  MapBuilder out(config);
  out.set("model", block.take());
  if (const Node old = config["dataset"]["preprocessor"]; old.is_map()) {
    MapBuilder preprocessor(old);
    found(old, "token_list", preprocessor);
    found(old, "bpemodel", preprocessor);
    MapBuilder dataset(config["dataset"]);
    dataset.set("preprocessor", preprocessor.take());
    out.set("dataset", dataset.take());
  }
  return Node(out.take());
}

}  // namespace

bool is_flat_config(const Node& config) {
  return config.is_map() && !config["task"].defined() && !config["model"].is_map();
}

std::string guess_task(const Node& flat) {
  for (const auto& [key, task] : kOtherTasks)
    if (!flat[key].is_null()) return task;
  if (flat["encoder_conf"].is_map() && flat["encoder_conf"]["body_conf"].defined())
    return "asr_transducer";
  if (text_of(flat["preprocessor"]) == "s2t") return "s2t";
  if (flat["model_conf"].is_map() && flat["model_conf"]["sym_na"].defined()) return "s2t";
  for (const Node& token : flat["token_list"].elements())
    if (token.is_scalar() && token.raw() == "<sop>") return "s2t";
  return "asr";
}

Node read_training_config(const ModelFolder& model, Problems& problems) {
  const std::string name = model.config.string();
  const Node config = config::parse_yaml(read_file(model.config), name);
  if (!config.is_map())
    throw DataError(name + ": not a config: got " + config.describe_value() + ", expected a map");
  if (is_flat_config(config)) return from_flat(config, model, problems);
  return config["model"].is_map() ? with_found_paths(config, model) : config;
}

}  // namespace tutti::speech
