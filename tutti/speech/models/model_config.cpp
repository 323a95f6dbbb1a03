#include "tutti/speech/models/model_config.h"

#include <algorithm>
#include <filesystem>

#include "tutti/config/schemas/files.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"
#include "tutti/speech/models/encoder_config.h"
#include "tutti/speech/models/feature_settings.h"

namespace tutti::speech {

namespace {

using config::Node;
using config::Problems;
using config::Schema;

std::string text_of(const Node& node) { return node.is_scalar() ? node.raw() : ""; }

// A part that another toolkit has and we do not: the known names, the nearest of them, what to do.
void refuse_name(const Node& at, const std::vector<std::string>& known, bool or_null,
                 const std::string& advice, Problems& problems) {
  const std::string guess = closest_match(text_of(at), known);
  problems.add(at,
               "got " + at.describe_value() + ", expected " + join(known, ", ") +
                   (or_null ? " or null" : ""),
               guess.empty() ? advice : "did you mean '" + guess + "'?");
}

// The `model` block under a task.
struct ModelBlock {
  std::optional<std::int64_t> vocab_size, input_size;
  Node token_list;
  Node frontend, frontend_conf, specaug, specaug_conf, normalize, normalize_conf;
  Node encoder, encoder_conf, decoder, decoder_conf, ctc_conf, joint_net_conf, model_conf;
  Node promptencoder, promptencoder_conf;
  std::optional<std::string> init;
};

Schema<ModelBlock> model_schema() {
  using T = ModelBlock;
  Schema<T> s("model", "A speech recogniser under `task`, with ESPnet's names.");
  s.field("vocab_size", &T::vocab_size, "number of tokens; null: the token list decides",
          {.min = 1});
  s.field("token_list", &T::token_list, "a file with one token per line, or a list");
  s.field("input_size", &T::input_size,
          "features per frame, for features made elsewhere; null: frontend", {.min = 0});
  s.field("frontend", &T::frontend, "default, or absent");
  s.field("frontend_conf", &T::frontend_conf, "its settings");
  s.field("specaug", &T::specaug, "specaug or null");
  s.field("specaug_conf", &T::specaug_conf, "its settings");
  s.field("normalize", &T::normalize, "global_mvn, utterance_mvn or null");
  s.field("normalize_conf", &T::normalize_conf, "its settings");
  s.field("encoder", &T::encoder, join(encoder_names(), ", "));
  s.field("encoder_conf", &T::encoder_conf, "its settings");
  s.field("promptencoder", &T::promptencoder, "transformer, of OWSM-CTC; null: none");
  s.field("promptencoder_conf", &T::promptencoder_conf, "its settings");
  s.field("decoder", &T::decoder, "transformer, transducer, stateless or null (CTC alone)");
  s.field("decoder_conf", &T::decoder_conf, "its settings");
  s.field("joint_net_conf", &T::joint_net_conf, "joint network of a transducer");
  s.field("ctc_conf", &T::ctc_conf, "CTC head");
  s.field("model_conf", &T::model_conf, "losses");
  std::vector<std::string> methods = config::init_methods();
  methods.emplace_back("none");
  s.field("init", &T::init, "how weights begin; null: as the top-level init", {.one_of = methods});
  s.refused("model", {"espnet", "espnet_ctc"}, "remove it: the task decides");
  for (const char* part : {"preencoder", "postencoder"}) {
    s.refused(part, {}, "leave it out");
    s.refused(std::string(part) + "_conf", {}, "leave it out");
  }
  s.elsewhere("joint_network", "is called joint_net_conf here");
  s.elsewhere("joint_network_conf", "is called joint_net_conf here");
  s.elsewhere("preprocessor", "belongs to dataset.preprocessor");
  s.elsewhere("preprocessor_conf", "belongs to dataset.preprocessor");
  s.elsewhere("src_token_list", "translation is not there");
  s.elsewhere("ctc_weight", "belongs to model_conf: model.model_conf.ctc_weight");
  s.elsewhere("token_type", "belongs to dataset.preprocessor.token_type");
  s.elsewhere("bpemodel", "belongs to dataset.preprocessor.bpemodel");
  return s;
}

Schema<NormalizeSettings> normalize_schema(bool is_global) {
  using T = NormalizeSettings;
  Schema<T> s("normalize_conf", "Mean and variance normalisation.");
  s.field("norm_means", &T::norm_means, "subtract the mean");
  s.field("norm_vars", &T::norm_vars, "divide by the standard deviation");
  s.field("eps", &T::eps, "smallest variance", {.min = 0});
  if (is_global)
    s.field("stats_file", &T::stats_file, "feats_stats.npz of the training data (global_mvn)",
            {.required = true});
  return s;
}

NormalizeSettings read_normalize(const Node& name, const Node& node, ReadOptions options,
                                 Problems& problems) {
  NormalizeSettings conf;
  const std::string kind = name.defined() ? name.value_or<std::string>("") : "utterance_mvn";
  if (kind.empty()) {
    conf.kind = NormalizeKind::kNone;
    return conf;
  }
  if (kind == "global_mvn") {
    conf = normalize_schema(true).parse(node, problems);
    conf.kind = NormalizeKind::kGlobal;
    if (!options.read_files) {
      conf.stats_file.clear();
    } else if (!conf.stats_file.empty() && !std::filesystem::exists(conf.stats_file)) {
      problems.add(node["stats_file"], "file not found: " + conf.stats_file,
                   "run the collect_stats stage first");
    }
    return conf;
  }
  conf = normalize_schema(false).parse(node, problems);
  conf.kind = NormalizeKind::kUtterance;
  if (!node["norm_vars"].defined()) conf.norm_vars = false;
  if (kind != "utterance_mvn")
    refuse_name(name, {"global_mvn", "utterance_mvn"}, true, "", problems);
  return conf;
}

struct DecoderConf : DecoderSettings {
  std::string input_layer = "embed";
  bool use_output_layer = true;
  bool normalize_before = true;
  bool concat_after = false;
  bool use_flash_attn = true;
};

Schema<DecoderConf> decoder_schema() {
  using T = DecoderConf;
  Schema<T> s("decoder_conf", "Transformer decoder.");
  s.field("attention_heads", of<T>(&DecoderSettings::attention_heads), "heads", {.min = 1});
  s.field("linear_units", of<T>(&DecoderSettings::linear_units), "width of the feed-forward layers",
          {.min = 1});
  s.field("num_blocks", of<T>(&DecoderSettings::num_blocks), "number of blocks", {.min = 1});
  s.field("dropout_rate", of<T>(&DecoderSettings::dropout_rate), "dropout", {.min = 0, .max = 1});
  s.field("positional_dropout_rate", of<T>(&DecoderSettings::positional_dropout_rate),
          "dropout after positions", {.min = 0, .max = 1});
  s.field("self_attention_dropout_rate", of<T>(&DecoderSettings::self_attention_dropout_rate),
          "dropout", {.min = 0, .max = 1});
  s.field("src_attention_dropout_rate", of<T>(&DecoderSettings::src_attention_dropout_rate),
          "dropout", {.min = 0, .max = 1});
  s.field("layer_drop_rate", of<T>(&DecoderSettings::layer_drop_rate), "chance to skip a block",
          {.min = 0, .max = 1});
  s.field("qk_norm", of<T>(&DecoderSettings::qk_norm), "LayerNorm on queries and keys");
  s.field("gradient_checkpoint_layers", of<T>(&DecoderSettings::gradient_checkpoint_layers),
          "blocks (from 1) recomputed in the backward pass");
  s.field("input_layer", &T::input_layer, "only embed", {.one_of = {"embed"}});
  s.field("use_output_layer", &T::use_output_layer, "only true");
  s.field("normalize_before", &T::normalize_before, "only true");
  s.field("concat_after", &T::concat_after, "only false");
  s.field("use_flash_attn", &T::use_flash_attn,
          "accepted: the fastest attention that libtorch has is always used");
  return s;
}

DecoderSettings read_attention_decoder(const Node& node, Problems& problems) {
  const DecoderConf conf = decoder_schema().parse(node, problems);
  if (!conf.use_output_layer) problems.add(node["use_output_layer"], "only true is supported");
  if (!conf.normalize_before) problems.add(node["normalize_before"], "only true is supported");
  if (conf.concat_after) problems.add(node["concat_after"], "only false is supported");
  return conf;
}

struct PredictorConf : PredictorSettings {
  std::string rnn_type = "lstm";
  std::optional<std::int64_t> vector_size;
  double embed_dropout_rate = 0.0;
  std::int64_t embed_pad = 0;
};

Schema<PredictorConf> predictor_schema(const std::string& name) {
  using T = PredictorConf;
  Schema<T> s("decoder_conf", "Prediction network of a transducer.");
  if (name == "stateless") {
    s.field("embed_size", &T::vector_size, "size of a token's vector; null: 256", {.min = 1});
    s.field("embed_dropout_rate", &T::embed_dropout_rate, "dropout", {.min = 0, .max = 1});
  } else {
    s.field("rnn_type", &T::rnn_type, "kind of layers", {.one_of = {"lstm", "gru"}});
    s.field("num_layers", of<T>(&PredictorSettings::num_layers), "number of layers", {.min = 1});
    s.field("hidden_size", of<T>(&PredictorSettings::hidden_size), "width", {.min = 1});
    s.field("embed_size", &T::vector_size, "size of a token's vector; null: hidden_size",
            {.min = 1});
    s.field("dropout", of<T>(&PredictorSettings::dropout), "dropout after a layer",
            {.min = 0, .max = 1});
    s.field("dropout_embed", of<T>(&PredictorSettings::dropout_embed), "dropout of embeddings",
            {.min = 0, .max = 1});
  }
  s.field("embed_pad", &T::embed_pad, "only 0, the blank", {.min = 0, .max = 0});
  return s;
}

PredictorSettings read_predictor(const std::string& name, const Node& node, Problems& problems) {
  PredictorConf conf = predictor_schema(name).parse(node, problems);
  conf.kind = name == "stateless" ? "stateless" : conf.rnn_type;
  if (name == "stateless") {
    conf.hidden_size = conf.vector_size.value_or(256);
    conf.dropout_embed = conf.embed_dropout_rate;
  }
  conf.embed_size = conf.vector_size.value_or(0);
  return conf;
}

struct JointConf {
  std::int64_t joint_space_size = 256;
  std::string joint_activation_type = "tanh";
  bool lin_dec_bias = true;
};

Schema<JointConf> joint_schema() {
  Schema<JointConf> s("joint_net_conf", "Joint network of a transducer.");
  s.field("joint_space_size", &JointConf::joint_space_size, "width", {.min = 1});
  s.field("joint_activation_type", &JointConf::joint_activation_type, "activation",
          {.one_of = {"tanh", "relu"}});
  s.field("lin_dec_bias", &JointConf::lin_dec_bias, "a bias beside the prediction network");
  return s;
}

JointSettings read_joint(const Node& node, Problems& problems) {
  const JointConf conf = joint_schema().parse(node, problems);
  return {conf.joint_space_size,
          conf.joint_activation_type == "relu" ? Activation::kRelu : Activation::kTanh,
          conf.lin_dec_bias};
}

struct CtcConf {
  double dropout_rate = 0.0;
  std::string ctc_type = "builtin";
  bool reduce = true;
  std::optional<bool> ignore_nan_grad;
  bool zero_infinity = true;
  std::string brctc_risk_strategy = "exp", brctc_group_strategy = "end";
  double brctc_risk_factor = 0.0;
};

Schema<CtcConf> ctc_schema() {
  Schema<CtcConf> s("ctc_conf", "CTC head.");
  s.field("dropout_rate", &CtcConf::dropout_rate, "dropout", {.min = 0, .max = 1});
  s.field("ctc_type", &CtcConf::ctc_type, "only builtin", {.one_of = {"builtin"}});
  s.field("reduce", &CtcConf::reduce, "accepted: the loss is always a mean over utterances");
  s.field("ignore_nan_grad", &CtcConf::ignore_nan_grad, "old name of zero_infinity");
  s.field("zero_infinity", &CtcConf::zero_infinity,
          "utterances too short for their text cost nothing");
  // ESPnet writes them into every file since 2023.
  s.field("brctc_risk_strategy", &CtcConf::brctc_risk_strategy, "of ctc_type brctc; not used");
  s.field("brctc_group_strategy", &CtcConf::brctc_group_strategy, "of ctc_type brctc; not used");
  s.field("brctc_risk_factor", &CtcConf::brctc_risk_factor, "of ctc_type brctc; not used");
  return s;
}

CtcSettings read_ctc(const Node& node, Problems& problems) {
  const CtcConf conf = ctc_schema().parse(node, problems);
  return {conf.dropout_rate, conf.ignore_nan_grad.value_or(conf.zero_infinity)};
}

struct ModelConf {
  double ctc_weight = 0.5;
  double interctc_weight = 0.0;
  std::int64_t ignore_id = -1;
  double lsm_weight = 0.0;
  bool length_normalized_loss = false;
  bool report_cer = true, report_wer = true;
  std::string sym_space = "<space>", sym_blank = "<blank>";
  std::optional<std::string> sym_sos, sym_eos, sym_sop, sym_na;
  bool extract_feats_in_collect_stats = true;
  bool autocast_frontend = false;
  double multi_blank_sigma = 0.05;
  Node ctc_asr_only;
};

Schema<ModelConf> model_conf_schema(bool is_s2t) {
  using T = ModelConf;
  Schema<T> s("model_conf", "Losses.");
  s.field("ctc_weight", &T::ctc_weight, "weight of CTC; the attention decoder has the rest",
          {.min = 0, .max = 1});
  s.field("interctc_weight", &T::interctc_weight, "weight of CTC at inner blocks within CTC",
          {.min = 0, .max = 1});
  s.field("ignore_id", &T::ignore_id, "padding of texts; only -1", {.min = -1, .max = -1});
  s.field("lsm_weight", &T::lsm_weight, "label smoothing", {.min = 0, .max = 1});
  s.field("length_normalized_loss", &T::length_normalized_loss,
          "mean over tokens instead of utterances");
  s.field("report_cer", &T::report_cer, "character error rate in validation");
  s.field("report_wer", &T::report_wer, "word error rate in validation");
  s.field("sym_space", &T::sym_space, "the token of a space");
  s.field("sym_blank", &T::sym_blank, "the token of blank");
  s.field("sym_sos", &T::sym_sos, "the token before a text");
  s.field("sym_eos", &T::sym_eos, "the token after a text");
  s.field("extract_feats_in_collect_stats", &T::extract_feats_in_collect_stats,
          "accepted: stats are of features");
  s.field("autocast_frontend", &T::autocast_frontend, "accepted: the frontend is always float32");
  s.field("transducer_multi_blank_sigma", &T::multi_blank_sigma, "of multi-blank losses; not used");
  for (const char* key : {"aux_ctc", "transducer_multi_blank_durations"})
    s.refused(key, {}, "leave it out");
  s.refused("lang_token_id", {"-1"}, "leave it out");
  if (is_s2t) {
    s.field("sym_sop", &T::sym_sop, "the token before a previous text");
    s.field("sym_na", &T::sym_na, "the token of 'not available'");
    s.field("ctc_asr_only", &T::ctc_asr_only,
            "OWSM-CTC: which CTC layers learnt text_ctc; of training, which is not there");
  }
  return s;
}

void read_model_conf(const Node& node, bool is_s2t, AsrSettings& settings, Problems& problems) {
  const ModelConf conf = model_conf_schema(is_s2t).parse(node, problems);
  settings.ctc_weight = conf.ctc_weight;
  settings.interctc_weight = conf.interctc_weight;
  settings.lsm_weight = conf.lsm_weight;
  settings.length_normalized_loss = conf.length_normalized_loss;
  const auto index_of = [&](const std::string& token, std::int64_t fallback) {
    const auto found = std::find(settings.token_list.begin(), settings.token_list.end(), token);
    return found == settings.token_list.end() ? fallback : found - settings.token_list.begin();
  };
  const std::int64_t last = settings.vocab_size - 1;
  settings.blank_id = index_of(conf.sym_blank, 0);
  settings.sos_id = index_of(conf.sym_sos.value_or(is_s2t ? "<sos>" : "<sos/eos>"), last);
  settings.eos_id = index_of(conf.sym_eos.value_or(is_s2t ? "<eos>" : "<sos/eos>"), last);
  if (settings.blank_id != 0)
    problems.add(node, "blank is token " + std::to_string(settings.blank_id) +
                           " of the token list, expected the first");
}

void read_tokens(const Node& model, ReadOptions options, AsrSettings& settings,
                 Problems& problems) {
  const Node list = model["token_list"];
  if (list.is_list()) {
    std::string expected;
    if (!read(list, settings.token_list, expected))
      problems.add(list, "got " + list.describe_value() + ", expected " + expected);
  } else if (list.is_scalar()) {
    const std::string path = list.raw();
    if (!std::filesystem::exists(path)) {
      if (options.read_files)
        problems.add(list, "file not found: " + path, "run the train_tokenizer stage first");
      return;
    }
    settings.token_list = split(read_file(path), '\n');
    for (std::string& token : settings.token_list)
      while (!token.empty() && (token.back() == '\r' || token.back() == ' ')) token.pop_back();
    if (!settings.token_list.empty() && settings.token_list.back().empty())
      settings.token_list.pop_back();
  }
  const auto count = static_cast<std::int64_t>(settings.token_list.size());
  if (count > 0 && settings.vocab_size > 0 && count != settings.vocab_size) {
    const std::string what = "got " + std::to_string(settings.vocab_size) +
                             ", but the token list has " + std::to_string(count) + " tokens";
    const std::string fix =
        std::string(list.is_list() ? "" : "run the train_tokenizer stage again, or ") +
        "remove vocab_size; the token list decides";
    if (list.is_list() || options.judge_token_file)
      problems.add(model["vocab_size"], what, fix);
    else
      problems.warn(model["vocab_size"], what + ": training refuses that", fix);
  }
  if (count > 0) settings.vocab_size = count;
  if (settings.vocab_size < 2 && options.read_files)
    problems.add(model, "the vocabulary is empty",
                 "set token_list (a file or a list) or vocab_size");
}

// Its input is a token's vector of its own width: it has no input layer.
void read_prompt_encoder(const Node& model, AsrSettings& settings, Problems& problems) {
  const Node name = model["promptencoder"];
  const bool looks = !settings.encoder.cross_attention.empty();
  if (name.is_null() != !looks)
    problems.add(name.is_null() ? model["encoder"] : name,
                 "a prompt encoder and encoder: e_branchformer_ctc go together",
                 "set both (OWSM-CTC), or neither");
  if (name.is_null()) return;
  if (text_of(name) != "transformer") refuse_name(name, {"transformer"}, true, "", problems);
  settings.prompt_encoder =
      read_encoder_conf("transformer", name, model["promptencoder_conf"], problems);
}

AsrSettings read_block(const Node& model, const ModelBlock& block, bool is_s2t, ReadOptions options,
                       Problems& problems) {
  AsrSettings settings;
  settings.vocab_size = block.vocab_size.value_or(0);
  read_tokens(model, options, settings, problems);

  settings.input_size = block.input_size.value_or(0);
  settings.use_frontend = settings.input_size == 0;
  if (settings.use_frontend) {
    const Node name = model["frontend"];
    if (name.defined() && text_of(name) != "default")
      refuse_name(
          name, {"default"}, false,
          "self-supervised and Whisper frontends are not there; for features made elsewhere set "
          "input_size and leave frontend out",
          problems);
    settings.frontend = read_frontend(model["frontend_conf"], problems);
  }
  if (!model["specaug"].is_null()) {
    if (text_of(model["specaug"]) != "specaug")
      refuse_name(model["specaug"], {"specaug"}, true, "", problems);
    settings.specaug = read_specaug(model["specaug_conf"], problems);
  }
  settings.normalize =
      read_normalize(model["normalize"], model["normalize_conf"], options, problems);

  const Node encoder = model["encoder"];
  if (encoder.is_null())
    problems.add(model, "key 'encoder' is missing", "add encoder: conformer");
  else
    settings.encoder =
        read_encoder_conf(text_of(encoder), encoder, model["encoder_conf"], problems);

  read_prompt_encoder(model, settings, problems);
  const Node decoder = model["decoder"];
  const std::string name = text_of(decoder);
  if (name.empty()) {
    settings.decoder_kind = AsrDecoderKind::kNone;
  } else if (name == "transformer") {
    settings.decoder_kind = AsrDecoderKind::kAttention;
    settings.decoder = read_attention_decoder(model["decoder_conf"], problems);
  } else if (name == "transducer" || name == "stateless") {
    settings.decoder_kind = AsrDecoderKind::kTransducer;
    settings.predictor = read_predictor(name, model["decoder_conf"], problems);
    settings.joint = read_joint(model["joint_net_conf"], problems);
  } else {
    refuse_name(decoder, {"transformer", "transducer", "stateless"}, true,
                "recurrent attention decoders and language-model decoders are not there", problems);
  }
  settings.ctc = read_ctc(model["ctc_conf"], problems);
  read_model_conf(model["model_conf"], is_s2t, settings, problems);
  if (settings.decoder_kind == AsrDecoderKind::kNone && settings.ctc_weight < 1.0 &&
      !encoder.is_null())
    problems.add(model,
                 "ctc_weight is " + config::format_number(settings.ctc_weight) +
                     " and there is no decoder for the rest",
                 "set model_conf.ctc_weight: 1.0 or decoder: transformer");
  if (settings.encoder.interctc_use_conditioning && settings.ctc_weight == 0.0)
    problems.add(model["encoder_conf"], "interctc_use_conditioning needs CTC, but ctc_weight is 0");

  const std::string init = block.init.value_or("none");
  settings.init = init == "none" ? "" : init;
  return settings;
}

}  // namespace

AsrSettings read_asr_model_block(const Node& model, bool is_s2t, Problems& problems,
                                 ReadOptions options) {
  if (!model.is_map()) {
    problems.add(model,
                 "got " + model.describe_value() + ", expected the model's settings as a map");
    return {};
  }
  return read_block(model, model_schema().parse(model, problems), is_s2t, options, problems);
}

AsrSettings read_asr_settings(const Node& config, Problems& problems, ReadOptions options) {
  config::Catalogue tasks;
  config::add_task_components(tasks);
  const config::Component* task = tasks.require("task", config["task"], problems);
  if (task == nullptr) return {};
  return read_asr_model_block(config["model"], task->name != "asr", problems, options);
}

std::vector<config::SchemaInfo> asr_model_reference() {
  std::vector<config::SchemaInfo> tables = {model_schema().info(), frontend_info(), specaug_info(),
                                            normalize_schema(true).info()};
  const auto add = [&](config::SchemaInfo info, const std::string& name) {
    info.name = name;
    tables.push_back(std::move(info));
  };
  for (const config::SchemaInfo& encoder : encoder_reference())
    add(encoder, "encoder_conf of " + encoder.name);
  add(decoder_schema().info(), "decoder_conf of transformer");
  add(predictor_schema("transducer").info(), "decoder_conf of transducer");
  add(predictor_schema("stateless").info(), "decoder_conf of stateless");
  for (const config::SchemaInfo& info :
       {joint_schema().info(), ctc_schema().info(), model_conf_schema(true).info()})
    tables.push_back(info);
  for (config::SchemaInfo& table : tables)
    if (table.name != "model") table.name = "model." + table.name;
  return tables;
}

}  // namespace tutti::speech
