#include "tutti/systems/standard_checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "tutti/config/load.h"
#include "tutti/config/merge.h"
#include "tutti/config/plugin.h"
#include "tutti/config/recipe_defaults.h"
#include "tutti/config/schemas/callbacks.h"
#include "tutti/config/schemas/files.h"
#include "tutti/config/schemas/schedules.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"
#include "tutti/data/batching/sampler.h"
#include "tutti/data/batching/settings.h"
#include "tutti/data/features/fbank.h"
#include "tutti/data/features/statistics.h"
#include "tutti/data/fields.h"
#include "tutti/data/sources.h"
#include "tutti/parallel/backends/backend.h"
#include "tutti/parallel/registry.h"
#include "tutti/speech/decoding/device_name.h"
#include "tutti/speech/decoding/speech2text_settings.h"
#include "tutti/speech/models/encoder_config.h"
#include "tutti/speech/models/model_config.h"
#include "tutti/systems/dataset_builder.h"
#include "tutti/systems/metric_settings.h"
#include "tutti/systems/models/task_settings.h"
#include "tutti/systems/preprocessor_settings.h"
#include "tutti/systems/torchscript_settings.h"
#include "tutti/trainer/optim/optimizer_settings.h"
#include "tutti/trainer/trainer_settings.h"

namespace tutti::systems {
namespace {

using config::Catalogue;
using config::Node;
using config::Problems;

bool is_recogniser(const Node& root) {
  return !root["task"].is_null() && root["model"].is_map() && !root["model"]["_target_"].defined();
}

bool is_torchscript(const Node& model) {
  return model["_target_"].is_scalar() &&
         model["_target_"].raw() == torchscript_schema().info().name;
}

// Statistics that somebody else made must be of as many features.
void check_dimension(const Node& file, const speech::AsrSettings& model, Problems& problems) {
  const auto expected = model.use_frontend ? model.frontend.n_mels : model.input_size;
  try {
    const auto found = data::Statistics::read_npz(file.raw()).dim();
    if (static_cast<std::int64_t>(found) != expected)
      problems.add(file,
                   fmt::format("got statistics of {} features, expected {} ({})", found, expected,
                               model.use_frontend ? "frontend_conf.n_mels" : "input_size"),
                   "write stats_file: ${stats_dir}/train/feats_stats.npz, and run collect_stats");
  } catch (const Error& error) {
    problems.add(file, error.what());
  }
}

// collect_stats makes features with plain code of its own, which knows fewer kinds than the model.
void check_statistics(const Node& root, const speech::AsrSettings& model, Problems& problems) {
  const Node conf = root["model"]["frontend_conf"];
  if (model.use_frontend) {
    Problems own;
    const auto settings = data::fbank_schema().parse(conf, own);
    for (config::Problem problem : own.sorted()) {
      if (problem.is_unknown_key && problem.what == "unknown key") {
        problem.what = "the collect_stats stage cannot make such features";
        problem.fix = "leave it out";
      }
      problems.add(problem);
    }
    if (own.empty()) {
      try {
        const data::Fbank tried(settings);
      } catch (const ConfigError& e) {
        problems.add(conf, e.what());
      }
    }
  }
  const Node file = root["model"]["normalize_conf"]["stats_file"];
  const Node folder = root["stats_dir"];
  if (model.normalize.kind != speech::NormalizeKind::kGlobal || !file.is_scalar() ||
      !folder.is_scalar())
    return;
  const std::string made = folder.raw() + "/train/feats_stats.npz";
  if (std::filesystem::path(file.raw()).lexically_normal() ==
      std::filesystem::path(made).lexically_normal())
    return;  // collect_stats makes it anew for other features
  if (std::filesystem::exists(file.raw()))
    check_dimension(file, model, problems);
  else
    problems.add(file,
                 fmt::format("'{}' is not there, and collect_stats writes '{}'", file.raw(), made),
                 "write stats_file: ${stats_dir}/train/feats_stats.npz");
}

// What a recogniser reports, by the parts it has.
std::vector<std::string> metrics_of(const speech::AsrSettings& model) {
  std::vector<std::string> names = {"loss"};
  if (model.decoder_kind == speech::AsrDecoderKind::kTransducer)
    names.emplace_back("loss_transducer");
  if (model.decoder_kind == speech::AsrDecoderKind::kAttention && model.ctc_weight < 1) {
    names.emplace_back("loss_att");
    names.emplace_back("acc");
  }
  if (model.ctc_weight > 0) {
    names.emplace_back("loss_ctc");
    names.emplace_back("cer_ctc");
  }
  for (const auto layer : model.encoder.interctc_layer_idx)
    names.push_back(fmt::format("loss_interctc_layer{}", layer));
  return names;
}

void check_monitors(const Node& root, const speech::AsrSettings& model,
                    const std::vector<trainer::OptimizerSettings>& optimizers, Problems& problems) {
  std::vector<std::string> known;  // of a validation: that is when they are looked at
  for (const auto& name : metrics_of(model)) known.push_back("valid/" + name);
  const auto check = [&](const Node& at) {
    if (!at.is_scalar() || std::find(known.begin(), known.end(), at.raw()) != known.end()) return;
    problems.add(at, fmt::format("got '{}', which no validation of this model reports", at.raw()),
                 "it reports " + join(known, ", "));
  };
  for (const Node& criterion : root["best_model_criterion"].elements())
    check(criterion[std::size_t{0}]);
  for (const Node& callback : root["trainer"]["callbacks"].elements()) check(callback["monitor"]);
  for (const auto& optimizer : optimizers) check(optimizer.monitor_node);
}

// What looks at validations would never act without them.
void check_validations_are_made(const Node& root, const Catalogue& catalogue,
                                const std::vector<trainer::OptimizerSettings>& optimizers,
                                Problems& problems) {
  Problems told;  // where the block is checked
  const auto trainer = trainer::trainer_schema().parse(root["trainer"], told);
  if (!told.empty() || trainer.limit_val_batches.value > 0 || trainer.overfit_batches.value > 0 ||
      trainer.fast_dev_run.batches > 0)
    return;
  const auto refuse = [&](const Node& at, const std::string& fix) {
    problems.add(at, "needs validations, but trainer.limit_val_batches is 0: there are none",
                 "set limit_val_batches: 1.0, or " + fix);
  };
  const auto name_of = [&](const char* group, const Node& node) {
    const Node target = node["_target_"];
    const auto* found = target.is_scalar() ? catalogue.find(group, target.raw()) : nullptr;
    return found ? found->name : std::string();
  };
  if (const Node best = root["best_model_criterion"];
      best.size() > 0 && !config::is_recipe_default(best))
    refuse(best, "add to the command: 'best_model_criterion=[]'");
  for (const Node& callback : root["trainer"]["callbacks"].elements()) {
    const std::string name = name_of("callback", callback);
    if (name == config::early_stopping_schema().info().name ||
        (name == config::model_checkpoint_schema().info().name && !callback["monitor"].is_null()))
      refuse(callback, "remove it");
  }
  for (const auto& optimizer : optimizers)
    if (name_of("scheduler", optimizer.scheduler) == config::plateau_lr_schema().info().name)
      refuse(optimizer.scheduler, "take another scheduler");
}

// What an unknown key leaves at its default: the block's other complaints are about that.
void add_causes(const Problems& found, Problems& problems) {
  std::set<std::string> misspelt;  // blocks
  for (const auto& problem : found.sorted())
    if (problem.is_unknown_key) misspelt.insert(problem.key.substr(0, problem.key.rfind('.')));
  for (const auto& problem : found.sorted())
    if (problem.is_unknown_key || misspelt.count(problem.key) == 0) problems.add(problem);
  for (const auto& warning : found.warnings()) problems.warn(warning);
}

// Layers are named by their classes, which the model's parts decide.
void check_layers(const Node& root, const speech::AsrSettings& model, Problems& problems) {
  const auto known = speech::layer_classes(model);
  const Node trainer = root["trainer"], strategy = trainer["strategy"];
  const auto check = [&](const Node& list, bool only_layers) {
    for (const Node& name : list.elements()) {
      if (!name.is_scalar() || std::find(known.begin(), known.end(), name.raw()) != known.end())
        continue;
      const std::string guess = closest_match(name.raw(), known);
      // Units may be any modules: of those only a slip is seen here.
      if (only_layers || !guess.empty())
        problems.add(name,
                     fmt::format("got '{}', expected one of {}", name.raw(), join(known, ", ")),
                     guess.empty() ? "" : fmt::format("did you mean '{}'?", guess));
    }
  };
  check(trainer["activation_checkpointing"], true);
  if (!strategy.is_map()) return;
  check(strategy["activation_checkpointing"], true);
  check(strategy["units"], false);
}

// Norms of all ranks: only where there are some.
void check_sync_batchnorm(const Node& root, const speech::AsrSettings* model, Problems& problems) {
  const Node wanted = root["trainer"]["sync_batchnorm"];
  bool on = false;
  std::string expected;  // the trainer's schema complains
  if (wanted.is_null() || !read(wanted, on, expected) || !on) return;
  if (model == nullptr)
    problems.add(wanted, "got true, but the norms of a TorchScript file cannot be shared",
                 "remove it");
  else if (model->encoder.kind != speech::EncoderKind::kConformer || !model->encoder.use_cnn_module)
    problems.add(wanted, "got true, but this encoder has no batch norm",
                 "remove it: layer norm does not depend on the ranks");
}

// Names of recognisers; all have the keys of speech2text_settings.h.
struct RecogniserRow {
  const char* name;
  const char* doc;
  std::vector<std::string> aliases;
};

const std::vector<RecogniserRow>& recogniser_rows() {
  static const std::vector<RecogniserRow> rows = {
      {"asr",
       "A CTC/attention or transducer recogniser.",
       {"espnet2.bin.asr_inference.Speech2Text",
        "espnet2.bin.asr_transducer_inference.Speech2Text"}},
      {"s2t", "An OWSM-style model.", {"espnet2.bin.s2t_inference.Speech2Text"}},
      {"s2t_ctc",
       "OWSM-CTC, the best path.",
       {"espnet2.bin.s2t_inference_ctc.Speech2TextGreedySearch"}},
      {"s2t_ctc_search", "OWSM-CTC, searched.", {"espnet2.bin.s2t_inference_ctc.Speech2Text"}},
      {"s2t_language",
       "The language an OWSM-style model hears.",
       {"espnet2.bin.s2t_inference_language.Speech2Language"}}};
  return rows;
}

void add_recognisers(config::Catalogue& catalogue) {
  for (const RecogniserRow& row : recogniser_rows()) {
    config::Component component{
        "inference model", row.name, row.aliases, speech::speech2text_schema().info(), {}};
    component.info.name = row.name;
    component.info.doc = row.doc;
    component.check = [](const Node& node, Problems& problems) {
      speech::speech2text_schema().parse(node, problems);
    };
    catalogue.add(std::move(component));
  }
}

// Names of what decodes are no names of models to train.
void refuse_recogniser(const Node& model, Problems& problems) {
  const Node target = model["_target_"];
  if (!target.is_scalar()) return;
  config::Catalogue recognisers;
  add_recognisers(recognisers);
  if (recognisers.find("inference model", target.raw()))
    problems.add(target, fmt::format("got '{}', which decodes with a trained model", target.raw()),
                 "to train one, set task: asr and give model: its parts (encoder, decoder, ...)");
}

// The splits that a builder of this program makes with the config's settings; empty: nobody knows.
std::vector<std::string> known_splits(const Node& root, const std::string& source) {
  const auto* make = dataset_builder_registry().find(source.substr(0, source.find('/')));
  if (make == nullptr) return {};
  // The block has the settings of one builder.
  const Node settings = corpora_of(root).size() == 1 ? root["create_dataset"] : Node();
  try {
    return (*make)(settings)->splits();
  } catch (const Error&) {
    return {};  // its settings are wrong, which is told elsewhere
  }
}

// A split that no build leaves. One that is there is used, whoever made it.
void check_split(const Node& root, const Node& entry, Problems& problems) {
  const Node args = entry["data_src_args"];
  const Node split = args.is_map() && !args["split"].is_null() ? args["split"] : entry["name"];
  if (!split.is_scalar() || !root["data_dir"].is_scalar()) return;
  const auto known = known_splits(root, data_source_of(root, entry));
  if (known.empty() || std::find(known.begin(), known.end(), split.raw()) != known.end()) return;
  std::error_code unreadable;
  if (std::filesystem::exists(manifest_path(root["data_dir"].raw(), split.raw()), unreadable))
    return;
  const std::string guess = closest_match(split.raw(), known);
  problems.add(split,
               fmt::format("got '{}', but {} makes {}", split.raw(), data_source_of(root, entry),
                           join(known, ", ")),
               guess.empty() ? "name one of them" : fmt::format("did you mean '{}'?", guess));
}

// Entries of files of the user's, and the splits of builders.
void check_entries(const Node& root, Problems& problems) {
  const auto sources = data::DatasetSources::standard();
  for (const char* split : {"train", "valid", "test"})
    for (const Node& entry : root["dataset"][split].elements()) {
      if (!entry.is_map()) continue;  // the dataset's own schema has complained
      const std::string source = data::implied_source(entry);
      if (sources.has(source))
        sources.check(config::with_key(entry, "data_src", source), problems);
      else if (entry["data_src"].is_null() || entry["data_src"].is_scalar())
        check_split(root, entry, problems);
    }
}

// A set's results are a folder of its name.
void check_set_names(const Node& root, Problems& problems) {
  std::set<std::string> seen;
  for (const Node& entry : root["dataset"]["test"].elements()) {
    const Node name = entry["name"];
    if (!name.is_scalar()) continue;
    const std::string& text = name.raw();
    if (text.empty() || text == "." || text == ".." ||
        text.find_first_of(std::string_view("/\0\n", 3)) != std::string::npos)
      problems.add(name, fmt::format("got '{}', expected the name of a folder", text),
                   "results of the set come to inference_dir/NAME: leave out / and ..");
    else if (!seen.insert(text).second)
      problems.add(name, fmt::format("got '{}', which another entry of dataset.test has", text),
                   "give each set a name of its own: its results come to inference_dir/NAME");
  }
}

// What a batch has beside speech and text is the same in all entries, and all that a TorchScript
// file may ask for.
void check_batch_tensors(const Node& root, Problems& problems) {
  std::optional<std::vector<std::string>> fields;
  for (const char* split : {"train", "valid"})
    for (const Node& entry : root["dataset"][split].elements()) {
      if (!entry.is_map() || !(entry["fields"].is_null() || entry["fields"].is_map())) return;
      if (!data::DatasetSources::standard().has(data::implied_source(entry)))
        data::check_fields(entry["fields"], problems);  // a builder's: not seen by check_entries
      auto here = data::field_tensors(entry["fields"]);
      std::sort(here.begin(), here.end());
      if (fields && here != *fields)
        problems.add(entry,
                     fmt::format("has the fields [{}], entries before it [{}]", join(here, ", "),
                                 join(*fields, ", ")),
                     "give every entry of train and valid the same fields");
      if (!fields) fields = here;
    }
  const Node model = root["model"];
  if (!fields || !is_torchscript(model)) return;
  std::vector<std::string> known = {"speech", "speech_lengths", "text", "text_lengths"};
  known.insert(known.end(), fields->begin(), fields->end());
  const auto check = [&](const Node& name) {
    if (!name.is_scalar() || std::find(known.begin(), known.end(), name.raw()) != known.end())
      return;
    const std::string guess = closest_match(name.raw(), known);
    problems.add(name, fmt::format("got '{}', but the batch has {}", name.raw(), join(known, ", ")),
                 guess.empty() ? "name it under fields: of the dataset's entries"
                               : fmt::format("did you mean '{}'?", guess));
  };
  for (const Node& name : model["inputs"].elements()) check(name);
  for (const char* key : {"target", "input_lengths", "target_lengths"}) check(model[key]);
}

// A block that does not say what it is: a slip is one in any model of ours.
void check_nameless(const Node& model, Problems& problems) {
  Problems own, of_torchscript;
  speech::speech2text_schema().parse(model, own);
  torchscript_schema().parse(model, of_torchscript);
  std::set<std::string> unknown;
  for (const auto& problem : of_torchscript.sorted())
    if (problem.is_unknown_key) unknown.insert(problem.key);
  for (const auto& problem : own.sorted())
    if (problem.is_unknown_key && unknown.count(problem.key) > 0 &&
        problem.fix.starts_with("did you mean"))
      problems.add(problem);
}

// What a recogniser is by its `_target_` and, where its config.yaml is there already, by its decoder.
speech::SearchFacts facts_of(const std::string& kind, const Node& model) {
  speech::SearchFacts facts;
  const std::string target = model["_target_"].raw();
  facts.is_owsm = kind != "asr";
  facts.is_owsm_ctc = kind.starts_with("s2t_ctc");
  facts.is_greedy =
      kind == "s2t_ctc" || (model["ctc_greedy"].is_scalar() && model["ctc_greedy"].raw() == "true");
  // A published folder may bring one.
  facts.has_lm = !model["lm_file"].is_null() || !model["model_tag"].is_null();
  facts.is_transducer = target.find("asr_transducer") != std::string::npos;
  facts.is_seen = facts.is_owsm;
  std::error_code absent;
  const Node file = model["asr_train_config"];
  if (file.is_scalar() && std::filesystem::is_regular_file(file.raw(), absent)) {
    try {
      const Node trained = config::parse_yaml(read_file(file.raw()), file.raw());
      const Node decoder =
          trained["model"].is_map() ? trained["model"]["decoder"] : trained["decoder"];
      facts.is_transducer =
          facts.is_transducer || (decoder.is_scalar() && decoder.raw() == "transducer");
      facts.is_seen = true;
    } catch (const Error&) {  // the run says what is wrong with it
    }
  }
  return facts;
}

void check_inference(const Node& root, const Catalogue&, Problems& problems) {
  check_entries(root, problems);
  check_set_names(root, problems);
  if (const Node device = root["device"]; device.is_scalar())
    if (const auto mistake = speech::device_mistake(device.raw())) problems.add(device, *mistake);
  const Node model = root["model"];
  if (model.is_map() && !model["_target_"].defined()) check_nameless(model, problems);
  if (!model.is_map() || !model["_target_"].is_scalar()) return;
  config::Catalogue recognisers;
  add_recognisers(recognisers);
  const config::Component* found = recognisers.find("inference model", model["_target_"].raw());
  if (found == nullptr) return;
  const std::string prefix = found->name == "asr" ? "asr" : "s2t";
  // The config lies beside the weights unless it is named.
  const std::string weights = prefix + "_model_file";
  if (model[weights].is_null() && model["model_tag"].is_null())
    problems.add(model, fmt::format("key '{}' is missing", weights),
                 "name the weights of a trained model");
  speech::check_effects(model, facts_of(found->name, model), problems);
}

void check_training(const Node& root, const Catalogue& catalogue, Problems& problems) {
  const auto optimizers = trainer::parse_optimizers(root, catalogue, problems);
  check_validations_are_made(root, catalogue, optimizers, problems);
  check_entries(root, problems);
  check_batch_tensors(root, problems);
  read_text_settings(root, problems);
  refuse_recogniser(root["model"], problems);
  if (is_torchscript(root["model"])) check_sync_batchnorm(root, nullptr, problems);
  if (!is_recogniser(root)) return;
  check_trainable(root, problems);
  Problems own;  // cross-checks only make sense for a model that could be read
  // Where the tokenizer is to make as many tokens as the model says, a list of another size is not
  // the config's fault: the stage that makes it mends that.
  const Node made = root["tokenizer"]["vocab_size"], said = root["model"]["vocab_size"];
  const bool agree = made.is_scalar() && said.is_scalar() && made.raw() == said.raw();
  const auto model =
      speech::read_asr_settings(root, own, {.read_files = false, .judge_token_file = !agree});
  check_statistics(root, model, own);
  if (own.empty()) check_monitors(root, model, optimizers, own);
  if (own.empty()) check_sync_batchnorm(root, &model, own);
  if (own.empty()) check_layers(root, model, own);
  add_causes(own, problems);
}

}  // namespace

config::FileChecker standard_checker() {
  config::FileChecker checker;
  checker.catalogue().add("preprocessor", preprocessor_schema(),
                          {"espnet2.train.preprocessor.CommonPreprocessor",
                           "espnet2.train.preprocessor.S2TPreprocessor"});
  checker.block("parallel", [](const Node& block, const Catalogue&, Problems& problems) {
    parallel::parse_parallel(block, problems);
  });
  // Sharding rules are the checker's: it sees the whole file.
  checker.block("dataloader", [](const Node& block, const Catalogue&, Problems& problems) {
    data::check_dataloader_block(block, {}, problems);
  });
  checker.set_corpora(corpora_of);
  checker.set_file_sources(data::DatasetSources::standard().names());
  checker.set_offers([](config::PluginRegistry& registry) {
    registry.offer(dataset_builder_registry());
    registry.offer(data::sampler_registry());
    registry.offer(parallel::Registry::global());
  });
  trainer::add_strategy_components(checker.catalogue());
  checker.block("trainer", trainer::check_trainer_block);
  add_recognisers(checker.catalogue());
  checker.catalogue().add("inference model", torchscript_schema());
  add_metric_components(checker.catalogue());
  checker.rule(config::FileKind::kTraining, check_training);
  checker.rule(config::FileKind::kInference, check_inference);
  checker.rule(config::FileKind::kMetrics,
               [](const Node& root, const Catalogue&, Problems& problems) {
                 for (const Node& entry : root["metrics"].elements()) read_metric(entry, problems);
               });
  return checker;
}

std::vector<config::SchemaInfo> reference_tables() {
  std::vector<config::SchemaInfo> tables = {trainer::trainer_schema().info(),
                                            config::named_optimizer_schema().info(),
                                            config::named_scheduler_schema().info()};
  for (const auto& part : {data::sources_reference(), speech::asr_model_reference(),
                           data::dataloader_reference(), parallel::parallel_reference()})
    tables.insert(tables.end(), part.begin(), part.end());
  return tables;
}

}  // namespace tutti::systems
