// encoder_conf and decoder_conf by ESPnet's names and defaults.
#include "tutti/speech/models/encoder_config.h"

#include <algorithm>

#include "tutti/config/schema.h"
#include "tutti/core/text.h"

namespace tutti::speech {

namespace {

using config::Node;
using config::Problems;
using config::Schema;

// What the three encoders have in common, with the transformer's defaults.
struct CommonConf {
  std::int64_t output_size = 256;
  std::int64_t attention_heads = 4;
  std::int64_t linear_units = 2048;
  std::int64_t num_blocks = 6;
  double dropout_rate = 0.1;
  double positional_dropout_rate = 0.1;
  double attention_dropout_rate = 0.0;
  std::string input_layer = "conv2d";
  std::int64_t padding_idx = -1;
  double layer_drop_rate = 0.0;
  bool qk_norm = false;
  bool use_flash_attn = true;
  std::optional<std::vector<std::int64_t>> interctc_layer_idx;
  bool interctc_use_conditioning = false;
  std::vector<std::int64_t> gradient_checkpoint_layers;
};
struct TransformerConf : CommonConf {
  std::string pos_enc_layer_type = "abs_pos";
  bool normalize_before = true;
  bool concat_after = false;
  std::string positionwise_layer_type = "linear";
  std::int64_t positionwise_conv_kernel_size = 1;
};
struct RelativeConf : CommonConf {
  std::string rel_pos_type = "latest";
  std::string pos_enc_layer_type = "rel_pos";
  std::string attention_type = "rel_selfattn";
  std::string activation = "swish";
  std::string positionwise_layer_type = "linear";
  bool zero_triu = false;
  std::int64_t max_pos_emb_len = 5000;
  bool causal_conv = false;
  bool scale_input = true;
};
struct ConformerConf : RelativeConf {
  ConformerConf() { rel_pos_type = "legacy"; }
  bool normalize_before = true;
  bool concat_after = false;
  std::int64_t positionwise_conv_kernel_size = 3;
  bool macaron_style = false;
  bool use_cnn_module = true;
  std::int64_t cnn_module_kernel = 31;
  bool ctc_trim = false;
  Node stochastic_depth_rate;
};
struct EBranchformerConf : RelativeConf {
  EBranchformerConf() { num_blocks = 12; }
  Node use_cross_attention;
  std::int64_t cgmlp_linear_units = 2048;
  std::int64_t cgmlp_conv_kernel = 31;
  bool use_linear_after_conv = false;
  std::string gate_activation = "identity";
  bool use_ffn = false;
  bool macaron_ffn = false;
  std::int64_t merge_conv_kernel = 3;
};

constexpr std::pair<const char*, Activation> kActivationTable[] = {
    {"relu", Activation::kRelu}, {"swish", Activation::kSwish},
    {"tanh", Activation::kTanh}, {"hardtanh", Activation::kHardtanh},
    {"selu", Activation::kSelu}, {"identity", Activation::kIdentity}};

std::vector<std::string> activations(bool with_identity) {
  std::vector<std::string> names;
  for (const auto& [name, activation] : kActivationTable)
    if (with_identity || activation != Activation::kIdentity) names.emplace_back(name);
  return names;
}

template <class T>
void add_common(Schema<T>& s) {
  s.field("output_size", of<T>(&CommonConf::output_size), "width of the encoder", {.min = 2});
  s.field("attention_heads", of<T>(&CommonConf::attention_heads), "heads; must divide output_size",
          {.min = 1});
  s.field("linear_units", of<T>(&CommonConf::linear_units), "width of the feed-forward layers",
          {.min = 1});
  s.field("num_blocks", of<T>(&CommonConf::num_blocks), "number of blocks", {.min = 1});
  s.field("dropout_rate", of<T>(&CommonConf::dropout_rate), "dropout", {.min = 0, .max = 1});
  s.field("positional_dropout_rate", of<T>(&CommonConf::positional_dropout_rate),
          "dropout after positions", {.min = 0, .max = 1});
  s.field("attention_dropout_rate", of<T>(&CommonConf::attention_dropout_rate),
          "dropout of attention weights", {.min = 0, .max = 1});
  s.field("input_layer", of<T>(&CommonConf::input_layer), "what shortens the features",
          {.one_of = {"linear", "conv1d1", "conv1d2", "conv1d3", "conv2d", "conv2d1", "conv2d2",
                      "conv2d6", "conv2d8"}});
  s.field("padding_idx", of<T>(&CommonConf::padding_idx),
          "of input_layer embed; accepted and not used");
  s.field("layer_drop_rate", of<T>(&CommonConf::layer_drop_rate),
          "chance to skip a block in training", {.min = 0, .max = 1});
  s.field("qk_norm", of<T>(&CommonConf::qk_norm),
          "LayerNorm on queries and keys (plain attention)");
  s.field("use_flash_attn", of<T>(&CommonConf::use_flash_attn),
          "accepted: the fastest attention that libtorch has is always used");
  s.field("interctc_layer_idx", of<T>(&CommonConf::interctc_layer_idx),
          "blocks (from 1) with a CTC loss of their own");
  s.field("interctc_use_conditioning", of<T>(&CommonConf::interctc_use_conditioning),
          "feed the posteriors of these blocks back");
  s.field("gradient_checkpoint_layers", of<T>(&CommonConf::gradient_checkpoint_layers),
          "layers recomputed in the backward pass; 0 is the input layer");
}

template <class T>
void add_relative(Schema<T>& s, const std::string& attention_key,
                  const std::string& activation_key) {
  s.field("rel_pos_type", of<T>(&RelativeConf::rel_pos_type), "relative positions",
          {.one_of = {"latest", "legacy"}});
  s.field("pos_enc_layer_type", of<T>(&RelativeConf::pos_enc_layer_type), "positions",
          {.one_of = {"rel_pos", "legacy_rel_pos", "abs_pos"}});
  s.field(attention_key, of<T>(&RelativeConf::attention_type), "attention",
          {.one_of = {"rel_selfattn", "legacy_rel_selfattn", "selfattn"}});
  s.field(activation_key, of<T>(&RelativeConf::activation), "of the feed-forward layers",
          {.one_of = activations(false)});
  s.field("positionwise_layer_type", of<T>(&RelativeConf::positionwise_layer_type),
          "feed-forward layers", {.one_of = {"linear"}});
  s.field("zero_triu", of<T>(&RelativeConf::zero_triu), "zero scores of positions ahead");
  s.field("max_pos_emb_len", of<T>(&RelativeConf::max_pos_emb_len),
          "where legacy relative positions begin; other tables grow as needed", {.min = 1});
  s.field("causal_conv", of<T>(&RelativeConf::causal_conv),
          "convolutions over time see no later frames, as in models for streams");
  s.field("scale_input", of<T>(&RelativeConf::scale_input),
          "multiply the blocks' input by the root of output_size; false: as in asr_transducer");
}

template <class T>
void refuse(Schema<T>& s, bool T::*member, bool supported, const std::string& key) {
  s.check([=](const Node& node, const T& conf, Problems& problems) {
    if (conf.*member != supported)
      problems.add(node[key], "got " + node[key].describe_value() + ", and only " +
                                  (supported ? "true" : "false") + " is supported");
  });
}

Schema<TransformerConf> transformer_schema() {
  Schema<TransformerConf> s("transformer", "Transformer encoder.");
  add_common(s);
  s.field("pos_enc_layer_type", &TransformerConf::pos_enc_layer_type, "positions",
          {.one_of = {"abs_pos"}});
  s.field("normalize_before", &TransformerConf::normalize_before, "LayerNorm before each branch");
  s.field("concat_after", &TransformerConf::concat_after,
          "concatenate attention's input and output");
  s.field("positionwise_layer_type", &TransformerConf::positionwise_layer_type,
          "feed-forward layers", {.one_of = {"linear"}});
  s.field("positionwise_conv_kernel_size", &TransformerConf::positionwise_conv_kernel_size,
          "of convolutional feed-forward layers; accepted and not used");
  refuse(s, &TransformerConf::normalize_before, true, "normalize_before");
  refuse(s, &TransformerConf::concat_after, false, "concat_after");
  return s;
}

Schema<ConformerConf> conformer_schema() {
  Schema<ConformerConf> s("conformer", "Conformer encoder.");
  add_common(s);
  add_relative(s, "selfattention_layer_type", "activation_type");
  s.field("normalize_before", &ConformerConf::normalize_before, "LayerNorm before each branch");
  s.field("concat_after", &ConformerConf::concat_after, "concatenate attention's input and output");
  s.field("positionwise_conv_kernel_size", &ConformerConf::positionwise_conv_kernel_size,
          "of convolutional feed-forward layers; accepted and not used");
  s.field("macaron_style", &ConformerConf::macaron_style,
          "a half feed-forward layer before attention");
  s.field("use_cnn_module", &ConformerConf::use_cnn_module, "the convolution module");
  s.field("cnn_module_kernel", &ConformerConf::cnn_module_kernel, "its width in frames, odd",
          {.min = 1});
  s.field("ctc_trim", &ConformerConf::ctc_trim, "trim silent tails by CTC");
  s.field("stochastic_depth_rate", &ConformerConf::stochastic_depth_rate,
          "chance to skip a block, or one per block");
  refuse(s, &ConformerConf::normalize_before, true, "normalize_before");
  refuse(s, &ConformerConf::concat_after, false, "concat_after");
  refuse(s, &ConformerConf::ctc_trim, false, "ctc_trim");
  return s;
}

Schema<EBranchformerConf> e_branchformer_schema(bool is_ctc = false) {
  Schema<EBranchformerConf> s(
      is_ctc ? "e_branchformer_ctc" : "e_branchformer",
      is_ctc ? "E-Branchformer that reads a prompt (OWSM-CTC)." : "E-Branchformer encoder.");
  if (is_ctc)
    s.field("use_cross_attention", &EBranchformerConf::use_cross_attention,
            "whether blocks look at the prompt: true, false, or one per block");
  add_common(s);
  add_relative(s, "attention_layer_type", "ffn_activation_type");
  s.field("cgmlp_linear_units", &EBranchformerConf::cgmlp_linear_units,
          "width of the gating MLP, even", {.min = 2});
  s.field("cgmlp_conv_kernel", &EBranchformerConf::cgmlp_conv_kernel,
          "its convolution in frames, odd", {.min = 1});
  s.field("use_linear_after_conv", &EBranchformerConf::use_linear_after_conv,
          "a linear layer after it");
  s.field("gate_activation", &EBranchformerConf::gate_activation, "of the gate",
          {.one_of = activations(true)});
  s.field("use_ffn", &EBranchformerConf::use_ffn, "feed-forward layers");
  s.field("macaron_ffn", &EBranchformerConf::macaron_ffn, "one before the branches too");
  s.field("merge_conv_kernel", &EBranchformerConf::merge_conv_kernel,
          "merging convolution in frames, odd; 0: none, as in a Branchformer", {.min = 0});
  return s;
}

PositionKind position_kind(const Node& node, const RelativeConf& conf, Problems& problems) {
  const bool relative = conf.pos_enc_layer_type != "abs_pos";
  if (relative != (conf.attention_type != "selfattn")) {
    problems.add(node,
                 "attention '" + conf.attention_type + "' does not go with positions '" +
                     conf.pos_enc_layer_type + "'",
                 "use rel_selfattn with rel_pos, or selfattn with abs_pos");
  }
  if (!relative) return PositionKind::kAbsolute;
  const bool legacy = conf.rel_pos_type == "legacy" ||
                      conf.pos_enc_layer_type == "legacy_rel_pos" ||
                      conf.attention_type == "legacy_rel_selfattn";
  return legacy ? PositionKind::kLegacyRelative : PositionKind::kRelative;
}

void check_odd(const Node& node, const std::string& key, std::int64_t kernel, Problems& problems) {
  if (kernel % 2 == 0)
    problems.add(node[key].defined() ? node[key] : node,
                 key + ": got " + std::to_string(kernel) + ", expected an odd number");
}

EncoderSettings from_common(const Node& node, const CommonConf& conf, Problems& problems) {
  EncoderSettings s;
  s.output_size = conf.output_size;
  s.attention_heads = conf.attention_heads;
  s.linear_units = conf.linear_units;
  s.num_blocks = conf.num_blocks;
  s.dropout_rate = conf.dropout_rate;
  s.positional_dropout_rate = conf.positional_dropout_rate;
  s.attention_dropout_rate = conf.attention_dropout_rate;
  s.input_layer = conf.input_layer;
  s.layer_drop_rate = conf.layer_drop_rate;
  s.qk_norm = conf.qk_norm;
  s.interctc_layer_idx = conf.interctc_layer_idx.value_or(std::vector<std::int64_t>{});
  s.interctc_use_conditioning = conf.interctc_use_conditioning;
  s.gradient_checkpoint_layers = conf.gradient_checkpoint_layers;
  if (conf.attention_heads > 0 && conf.output_size % conf.attention_heads != 0)
    problems.add(node, "output_size " + std::to_string(conf.output_size) +
                           " is not a multiple of attention_heads " +
                           std::to_string(conf.attention_heads));
  for (const std::int64_t layer : s.interctc_layer_idx)
    if (layer < 1 || layer >= conf.num_blocks)
      problems.add(node["interctc_layer_idx"], "got " + std::to_string(layer) + ", expected 1.." +
                                                   std::to_string(conf.num_blocks - 1) +
                                                   " (below num_blocks)");
  for (const std::int64_t layer : s.gradient_checkpoint_layers)
    if (layer < 0 || layer > conf.num_blocks)
      problems.add(
          node["gradient_checkpoint_layers"],
          "got " + std::to_string(layer) + ", expected 0.." + std::to_string(conf.num_blocks));
  return s;
}

// The schema has complained already about a name that is not in the table.
Activation activation_or_identity(const std::string& name) {
  for (const auto& [known, activation] : kActivationTable)
    if (name == known) return activation;
  return Activation::kIdentity;
}

EncoderSettings read_transformer(const Node& node, Problems& problems) {
  const TransformerConf conf = transformer_schema().parse(node, problems);
  EncoderSettings s = from_common(node, conf, problems);
  s.kind = EncoderKind::kTransformer;
  s.positions = PositionKind::kAbsolute;
  s.activation = Activation::kRelu;
  // ESPnet's two-dimensional input layers make their own positional encoding here, with
  // dropout_rate.
  if (conf.input_layer.starts_with("conv2d")) s.positional_dropout_rate = conf.dropout_rate;
  return s;
}

EncoderSettings read_conformer(const Node& node, Problems& problems) {
  const ConformerConf conf = conformer_schema().parse(node, problems);
  EncoderSettings s = from_common(node, conf, problems);
  s.kind = EncoderKind::kConformer;
  s.positions = position_kind(node, conf, problems);
  s.zero_triu = conf.zero_triu && s.positions == PositionKind::kRelative;
  s.max_pos_emb_len = conf.max_pos_emb_len;
  s.causal_conv = conf.causal_conv;
  s.scale_input = conf.scale_input;
  s.activation = activation_or_identity(conf.activation);
  s.macaron = conf.macaron_style;
  s.use_cnn_module = conf.use_cnn_module;
  s.conv_kernel = static_cast<int>(conf.cnn_module_kernel);
  check_odd(node, "cnn_module_kernel", conf.cnn_module_kernel, problems);
  const Node depth = conf.stochastic_depth_rate;
  if (depth.is_list()) {
    s.stochastic_depth_rate = depth.as<std::vector<double>>();
    if (static_cast<std::int64_t>(s.stochastic_depth_rate.size()) != conf.num_blocks)
      problems.add(depth, "got " + std::to_string(s.stochastic_depth_rate.size()) +
                              " rates, expected num_blocks = " + std::to_string(conf.num_blocks));
  } else if (!depth.is_null() && depth.as<double>() > 0) {
    s.stochastic_depth_rate.assign(conf.num_blocks, depth.as<double>());
  }
  return s;
}

EncoderSettings from_e_branchformer(const Node& node, const EBranchformerConf& conf,
                                    Problems& problems) {
  EncoderSettings s = from_common(node, conf, problems);
  s.kind = EncoderKind::kEBranchformer;
  s.positions = position_kind(node, conf, problems);
  s.zero_triu = conf.zero_triu && s.positions == PositionKind::kRelative;
  s.max_pos_emb_len = conf.max_pos_emb_len;
  s.causal_conv = conf.causal_conv;
  s.scale_input = conf.scale_input;
  s.activation = activation_or_identity(conf.activation);
  s.use_ffn = conf.use_ffn;
  s.macaron = conf.macaron_ffn;
  s.cgmlp_linear_units = conf.cgmlp_linear_units;
  s.conv_kernel = static_cast<int>(conf.cgmlp_conv_kernel);
  s.use_linear_after_conv = conf.use_linear_after_conv;
  s.gate_activation = activation_or_identity(conf.gate_activation);
  s.merge_conv_kernel = static_cast<int>(conf.merge_conv_kernel);
  check_odd(node, "cgmlp_conv_kernel", conf.cgmlp_conv_kernel, problems);
  if (conf.merge_conv_kernel > 0)
    check_odd(node, "merge_conv_kernel", conf.merge_conv_kernel, problems);
  if (conf.cgmlp_linear_units % 2 != 0)
    problems.add(node["cgmlp_linear_units"], "expected an even number");
  return s;
}

EncoderSettings read_e_branchformer(const Node& node, Problems& problems) {
  return from_e_branchformer(node, e_branchformer_schema().parse(node, problems), problems);
}

EncoderSettings read_e_branchformer_ctc(const Node& node, Problems& problems) {
  EBranchformerConf conf = e_branchformer_schema(true).parse(node, problems);
  if (node["input_layer"].is_null()) conf.input_layer = "conv2d8";
  EncoderSettings s = from_e_branchformer(node, conf, problems);
  const Node& looks = conf.use_cross_attention;
  const auto count = static_cast<std::size_t>(s.num_blocks);
  if (looks.is_list())
    for (const Node& one : looks.elements()) s.cross_attention.push_back(one.value_or(false));
  else
    s.cross_attention.assign(count, looks.value_or(true));
  if (s.cross_attention.size() != count)
    problems.add(looks, "got " + std::to_string(s.cross_attention.size()) +
                            " values, expected num_blocks = " + std::to_string(count));
  return s;
}

struct EncoderRow {
  const char* name;
  EncoderSettings (*read)(const Node& conf, Problems& problems);
  config::SchemaInfo (*info)();
};
const EncoderRow kEncoders[] = {
    {"transformer", read_transformer, [] { return transformer_schema().info(); }},
    {"conformer", read_conformer, [] { return conformer_schema().info(); }},
    {"e_branchformer", read_e_branchformer, [] { return e_branchformer_schema().info(); }},
    {"e_branchformer_ctc", read_e_branchformer_ctc,
     [] { return e_branchformer_schema(true).info(); }},
};

}  // namespace

std::vector<std::string> encoder_names() {
  std::vector<std::string> names;
  for (const EncoderRow& row : kEncoders) names.emplace_back(row.name);
  return names;
}

std::vector<config::SchemaInfo> encoder_reference() {
  std::vector<config::SchemaInfo> tables;
  for (const EncoderRow& row : kEncoders) tables.push_back(row.info());
  return tables;
}

EncoderSettings read_encoder_conf(const std::string& name, const Node& name_node, const Node& conf,
                                  Problems& problems) {
  for (const EncoderRow& row : kEncoders)
    if (name == row.name) return row.read(conf, problems);
  const std::string guess = closest_match(name, encoder_names());
  problems.add(
      name_node, "got " + name_node.describe_value() + ", expected " + join(encoder_names(), ", "),
      guess.empty() ? "streaming, recurrent and self-supervised encoders are not there; use "
                      "e_branchformer or conformer"
                    : "did you mean '" + guess + "'?");
  return {};
}

std::vector<std::string> layer_classes(const AsrSettings& settings) {
  std::vector<std::string> names;
  switch (settings.encoder.kind) {
    case EncoderKind::kTransformer:
      names = {"TransformerBlock"};
      break;
    case EncoderKind::kConformer:
      names = {"ConformerBlock"};
      break;
    case EncoderKind::kEBranchformer:
      names = {"EBranchformerBlock"};
      break;
  }
  if (settings.decoder_kind == AsrDecoderKind::kAttention) names.emplace_back("DecoderLayer");
  return names;
}

}  // namespace tutti::speech
