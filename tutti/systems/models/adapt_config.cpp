#include "tutti/systems/models/adapt_config.h"

#include "tutti/config/load.h"
#include "tutti/systems/models/task_settings.h"
#include "tutti/systems/pack.h"

namespace tutti::systems {
namespace {

constexpr const char* kWords =
    "# Adapts this model to your own recordings. Put train.jsonl and valid.jsonl into a folder, go "
    "there, and\n"
    "#   tutti train --config PACK/adapt.yaml\n"
    "#   tutti pack_model --config PACK/adapt.yaml     # then: tutti infer --model "
    "exp/adapted/model_pack FILE...\n"
    "# A line of a manifest: {\"id\": \"a1\", \"audio\": \"a1.wav\", \"text\": \"what was said\"}\n"
    "# Any key may be given on the command line, or in a second config file that is merged over "
    "this one.\n";

Json part(const Json& config, const char* key) {
  return config.contains(key) ? config[key] : Json::object();
}

}  // namespace

std::string adapt_config(const Json& config) {
  if (is_s2t_ctc(config::from_json(config)) || !config.contains("task")) return "";
  Json here = {{"model", part(config, "model")},
               {"dataset", {{"preprocessor", part(part(config, "dataset"), "preprocessor")}}}};
  Json& preprocessor = here["dataset"]["preprocessor"];
  if (!preprocessor.is_object()) preprocessor = Json::object();
  const Json tokenizer = part(config, "tokenizer");
  if (!preprocessor.contains("token_type") && tokenizer.contains("model_type")) {
    const std::string kind = tokenizer["model_type"];
    preprocessor["token_type"] = kind == "char" || kind == "word" ? kind : "bpe";
  }
  for (const auto& pointer : packed_paths()) {
    const Json::json_pointer where(pointer);
    if (here.contains(where) && here[where].is_string())
      here[where] = "${config_path:" + here[where].get<std::string>() + "}";
  }
  const Json batches = {{"type", "unsorted"}, {"batch_size", 8}, {"shape_files", Json::array()}};
  const auto loader = [&](bool shuffle) -> Json {
    return {{"iter_factory", {{"shuffle", shuffle}, {"num_workers", 1}, {"batches", batches}}}};
  };
  const auto entry = [](const char* name) -> Json {
    return Json::array(
        {{{"name", name}, {"data_src_args", {{"manifest", std::string(name) + ".jsonl"}}}}});
  };
  here["dataset"]["train"] = entry("train");
  here["dataset"]["valid"] = entry("valid");
  here["task"] = config["task"];
  here["seed"] = 1;
  here["recipe_dir"] = here["data_dir"] = ".";
  here["exp_tag"] = "adapted";
  here["exp_dir"] = "exp/${exp_tag}";
  here["stats_dir"] = "exp/stats";
  here["init_param"] = Json::array({"${config_path:.}"});
  here["freeze_param"] = Json::array();
  here["optimizer"] = {{"_target_", "torch.optim.AdamW"}, {"lr", 1e-4}, {"weight_decay", 0.01}};
  here["scheduler"] = nullptr;  // the default one warms up for longer than an adaptation lasts
  here["best_model_criterion"] = Json::array({Json::array({"valid/loss", 3, "min"})});
  here["dataloader"] = {{"train", loader(true)}, {"valid", loader(false)}};
  here["trainer"] = {{"accelerator", "auto"},
                     {"devices", 1},
                     {"max_epochs", 10},
                     {"gradient_clip_val", 5.0},
                     {"log_every_n_steps", 10}};
  return kWords + config::to_yaml(config::from_json(here));
}

}  // namespace tutti::systems
