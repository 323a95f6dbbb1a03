#include "tutti/speech/espnet/transducer_config.h"

#include <optional>
#include <string>
#include <vector>

#include "tutti/config/schema.h"

namespace tutti::speech {
namespace {

using config::Node;
using config::Problems;
using config::Schema;

constexpr const char* kKept = "such models are not supported";

// One entry of body_conf.
struct Block {
  std::string block_type;
  std::int64_t hidden_size = 0, linear_size = 0, heads = 4, num_blocks = 1;
  std::int64_t conv_mod_kernel_size = 0;
  std::optional<std::int64_t> depth_conv_kernel_size;
  double dropout_rate = 0, att_dropout_rate = 0, pos_wise_dropout_rate = 0;
  double conv_mod_norm_momentum = 0.1;

  // Whether both become the same layers; how often they stand there has no say.
  bool is_like(const Block& other) const {
    return block_type == other.block_type && hidden_size == other.hidden_size &&
           linear_size == other.linear_size && heads == other.heads &&
           conv_mod_kernel_size == other.conv_mod_kernel_size &&
           depth_conv_kernel_size == other.depth_conv_kernel_size;
  }
};

Schema<Block> block_schema(const std::string& type) {
  using T = Block;
  Schema<T> s("body_conf", "A block of the encoder.");
  s.field("block_type", &T::block_type, "kind",
          {.one_of = {"conformer", "branchformer", "ebranchformer"}, .required = true});
  s.field("hidden_size", &T::hidden_size, "width", {.min = 2, .required = true});
  s.field("linear_size", &T::linear_size, "width inside", {.min = 2, .required = true});
  s.field("heads", &T::heads, "heads", {.min = 1});
  s.field("num_blocks", &T::num_blocks, "how many like this", {.min = 1});
  s.field("conv_mod_kernel_size", &T::conv_mod_kernel_size, "frames", {.min = 1, .required = true});
  s.field("dropout_rate", &T::dropout_rate, "dropout", {.min = 0, .max = 1});
  s.field("att_dropout_rate", &T::att_dropout_rate, "dropout", {.min = 0, .max = 1});
  s.field("pos_wise_dropout_rate", &T::pos_wise_dropout_rate, "dropout", {.min = 0, .max = 1});
  s.field("conv_mod_norm_momentum", &T::conv_mod_norm_momentum, "of training; not used");
  if (type == "ebranchformer")
    s.field("depth_conv_kernel_size", &T::depth_conv_kernel_size, "frames", {.min = 1});
  // What the norms add under the root: 1e-12, of the conformer's BatchNorm 1e-5.
  s.refused("norm_eps", {"1e-12", "1.0e-12"}, kKept);
  s.refused("conv_mod_norm_eps",
            type == "conformer" ? std::vector<std::string>{"1e-05", "1.0e-05", "1e-5"}
                                : std::vector<std::string>{"1e-12", "1.0e-12"},
            kKept);
  for (const char* key : {"norm_partial", "conv_mod_norm_partial"}) s.refused(key, {}, kKept);
  return s;
}

struct MainConf {
  std::string pos_wise_act_type = "swish", conv_mod_act_type = "swish";
  double pos_enc_dropout_rate = 0;
  std::int64_t pos_enc_max_len = 5000;
  bool dynamic_chunk_training = false;
  Node of_training;
};

Schema<MainConf> main_schema() {
  using T = MainConf;
  Schema<T> s("main_conf", "What the blocks share.");
  const std::vector<std::string> curves = {"relu", "swish", "tanh", "hardtanh", "selu"};
  s.field("pos_wise_act_type", &T::pos_wise_act_type, "activation", {.one_of = curves});
  s.field("conv_mod_act_type", &T::conv_mod_act_type, "activation", {.one_of = curves});
  s.field("pos_enc_dropout_rate", &T::pos_enc_dropout_rate, "dropout", {.min = 0, .max = 1});
  s.field("pos_enc_max_len", &T::pos_enc_max_len, "not used: the table grows");
  s.field("dynamic_chunk_training", &T::dynamic_chunk_training, "trained for streams");
  for (const char* key :
       {"blockdrop_rate", "short_chunk_threshold", "short_chunk_size", "num_left_chunks"})
    s.field(key, &T::of_training, "of training");
  s.refused("simplified_att_score", {"false"}, kKept);
  for (const char* key : {"norm_type", "conv_mod_norm_type"}) s.refused(key, {"layer_norm"}, kKept);
  s.refused("after_norm_eps", {"1e-12", "1.0e-12"}, kKept);
  s.refused("after_norm_partial", {}, kKept);
  // Parameters of activations; those with any are not in the list above, but for two.
  s.refused("swish_beta", {"1", "1.0"}, kKept);
  s.refused("hardtanh_min_val", {"-1", "-1.0"}, kKept);
  s.refused("hardtanh_max_val", {"1", "1.0"}, kKept);
  return s;
}

struct InputConf {
  std::int64_t subsampling_factor = 4;
  std::optional<std::int64_t> conv_size, output_size;
};

Schema<InputConf> input_schema() {
  using T = InputConf;
  Schema<T> s("input_conf", "What shortens the features.");
  s.field("subsampling_factor", &T::subsampling_factor, "2, 4 or 6", {.min = 2, .max = 6});
  s.field("conv_size", &T::conv_size, "channels");
  s.field("output_size", &T::output_size, "width");
  s.refused("vgg_like", {"false"}, kKept);
  return s;
}

std::string input_layer(const Node& node, std::int64_t width, Problems& problems) {
  const InputConf conf = input_schema().parse(node, problems);
  if (conf.conv_size.value_or(width) != width)
    problems.add(node["conv_size"], "got " + std::to_string(*conf.conv_size) +
                                        ", and only the blocks' hidden_size, " +
                                        std::to_string(width) + ", is supported");
  if (conf.subsampling_factor % 2 != 0)
    problems.add(node["subsampling_factor"], "expected 2, 4 or 6");
  return conf.subsampling_factor == 4 ? "conv2d"
                                      : "conv2d" + std::to_string(conf.subsampling_factor);
}

void read_encoder(const Node& conf, Json& out, Problems& problems) {
  std::vector<Block> blocks;
  std::int64_t count = 0;
  for (const Node& node : conf["body_conf"].elements()) {
    const std::string type = node.is_map() ? node["block_type"].value_or<std::string>("") : "";
    if (type == "conv1d") {
      problems.add(node["block_type"], "blocks of kind conv1d are not supported");
      return;
    }
    blocks.push_back(block_schema(type).parse(node, problems));
    count += blocks.back().num_blocks;
    if (!blocks.back().is_like(blocks.front()))
      problems.add(node, "blocks of several kinds or sizes in one encoder are not supported");
  }
  if (blocks.empty()) {
    problems.add(conf, "encoder_conf.body_conf: expected a list of blocks");
    return;
  }
  for (const auto& [key, node] : conf.items())
    if (key != "body_conf" && key != "main_conf" && key != "input_conf")
      problems.add({conf.key_mark(key), node.path(), "no such key", ""});
  const Block& block = blocks.front();
  const MainConf main = main_schema().parse(conf["main_conf"], problems);
  const bool is_conformer = block.block_type == "conformer";
  if (is_conformer && main.conv_mod_act_type != main.pos_wise_act_type)
    problems.add(conf["main_conf"],
                 "conv_mod_act_type and pos_wise_act_type differ, which is not "
                 "supported");
  Json encoder = {{"output_size", block.hidden_size},
                  {"attention_heads", block.heads},
                  {"num_blocks", count},
                  {"dropout_rate", block.dropout_rate},
                  {"attention_dropout_rate", block.att_dropout_rate},
                  {"positional_dropout_rate", main.pos_enc_dropout_rate},
                  {"rel_pos_type", "latest"},
                  {"input_layer", input_layer(conf["input_conf"], block.hidden_size, problems)},
                  {"linear_units", block.linear_size},
                  {"causal_conv", main.dynamic_chunk_training},
                  {"scale_input", false}};
  if (is_conformer) {
    encoder["macaron_style"] = true;
    encoder["cnn_module_kernel"] = block.conv_mod_kernel_size;
    encoder["activation_type"] = main.pos_wise_act_type;
  } else {
    const bool is_extended = block.block_type == "ebranchformer";
    encoder["ffn_activation_type"] = main.pos_wise_act_type;
    encoder["use_ffn"] = encoder["macaron_ffn"] = is_extended;
    encoder["cgmlp_linear_units"] = block.linear_size;
    encoder["cgmlp_conv_kernel"] = block.conv_mod_kernel_size;
    encoder["merge_conv_kernel"] =
        is_extended ? block.depth_conv_kernel_size.value_or(block.conv_mod_kernel_size) : 0;
  }
  out["encoder"] = is_conformer ? "conformer" : "e_branchformer";
  out["encoder_conf"] = std::move(encoder);
}

struct RnnConf {
  std::string rnn_type = "lstm";
  std::int64_t embed_size = 256, hidden_size = 256, num_layers = 1, embed_pad = 0;
  double dropout_rate = 0, embed_dropout_rate = 0;
};

void read_decoder(const Node& flat, Json& out, Problems& problems) {
  const std::string name = flat["decoder"].value_or<std::string>("rnn");
  if (name != "rnn" && name != "stateless") {
    problems.add(flat["decoder"], "got '" + name + "', and only rnn and stateless are supported");
    return;
  }
  using T = RnnConf;
  Schema<T> s("decoder_conf", "Prediction network.");
  s.field("embed_size", &T::embed_size, "size of a token's vector", {.min = 1});
  s.field("embed_dropout_rate", &T::embed_dropout_rate, "dropout", {.min = 0, .max = 1});
  s.field("embed_pad", &T::embed_pad, "only 0, the blank", {.min = 0, .max = 0});
  if (name == "rnn") {
    s.field("rnn_type", &T::rnn_type, "kind of layers", {.one_of = {"lstm", "gru"}});
    s.field("hidden_size", &T::hidden_size, "width", {.min = 1});
    s.field("num_layers", &T::num_layers, "number of layers", {.min = 1});
    s.field("dropout_rate", &T::dropout_rate, "dropout", {.min = 0, .max = 1});
  }
  const RnnConf conf = s.parse(flat["decoder_conf"], problems);
  out["decoder"] = name == "rnn" ? "transducer" : "stateless";
  if (name == "rnn")
    out["decoder_conf"] = {
        {"rnn_type", conf.rnn_type},       {"embed_size", conf.embed_size},
        {"hidden_size", conf.hidden_size}, {"num_layers", conf.num_layers},
        {"dropout", conf.dropout_rate},    {"dropout_embed", conf.embed_dropout_rate}};
  else
    out["decoder_conf"] = {{"embed_size", conf.embed_size},
                           {"embed_dropout_rate", conf.embed_dropout_rate}};
}

struct JointConf {
  std::int64_t joint_space_size = 256;
  std::string joint_activation_type = "tanh";
  bool lin_dec_bias = true;
};

void read_joint(const Node& node, Json& out, Problems& problems) {
  using T = JointConf;
  Schema<T> s("joint_network_conf", "Joint network.");
  s.field("joint_space_size", &T::joint_space_size, "width", {.min = 1});
  s.field("joint_activation_type", &T::joint_activation_type, "activation",
          {.one_of = {"tanh", "relu"}});
  s.field("lin_dec_bias", &T::lin_dec_bias, "a bias beside the prediction network");
  const JointConf conf = s.parse(node, problems);
  out["joint_net_conf"] = {{"joint_space_size", conf.joint_space_size},
                           {"joint_activation_type", conf.joint_activation_type},
                           {"lin_dec_bias", conf.lin_dec_bias}};
}

}  // namespace

Json read_transducer_blocks(const Node& flat, Problems& problems) {
  Json out = Json::object();
  read_encoder(flat["encoder_conf"], out, problems);
  read_decoder(flat, out, problems);
  read_joint(flat["joint_network_conf"], out, problems);
  // The rest of model_conf is of training; of its parts only CTC is there in decoding.
  const Node conf = flat["model_conf"];
  const double ctc = conf.is_map() ? conf["auxiliary_ctc_weight"].value_or<double>(0.0) : 0.0;
  out["model_conf"] = {{"ctc_weight", ctc}};
  return out;
}

Json transducer_search_defaults() {
  return {{"beam_size", 5}, {"transducer_conf", {{"search_type", "beam"}, {"score_norm", false}}}};
}

}  // namespace tutti::speech
