#include "tutti/speech/models/lm_settings.h"

#include "tutti/config/schema.h"
#include "tutti/speech/models/encoder_config.h"

namespace tutti::speech {
namespace {

using config::Node;
using config::Problems;
using config::Schema;

struct LmConf : LmSettings {
  std::optional<std::string> pos_enc;
  double rate = 0;  // dropout is for training
  std::int64_t ignore_id = 0;
};

Schema<LmConf> lm_schema(bool is_transformer) {
  Schema<LmConf> s("lm_conf", "A language model.");
  if (is_transformer) {
    s.field("pos_enc", &LmConf::pos_enc, "positions; null: none", {.one_of = {"sinusoidal"}});
    s.field("embed_unit", of<LmConf>(&LmSettings::embed_unit), "width of a token", {.min = 1});
    s.field("att_unit", of<LmConf>(&LmSettings::att_unit), "width", {.min = 1});
    s.field("head", of<LmConf>(&LmSettings::head), "attention heads", {.min = 1});
    s.field("unit", of<LmConf>(&LmSettings::unit), "width of the feed-forward layers", {.min = 1});
    s.field("layer", of<LmConf>(&LmSettings::layer), "number of blocks", {.min = 1});
    for (const char* key : {"dropout_rate", "positional_dropout_rate", "attention_dropout_rate"})
      s.field(key, &LmConf::rate, "in training");
  } else {
    s.field("unit", of<LmConf>(&LmSettings::unit), "width of a token", {.min = 1});
    s.field("nhid", of<LmConf>(&LmSettings::nhid), "width; null: as unit", {.min = 0});
    s.field("nlayers", of<LmConf>(&LmSettings::nlayers), "number of layers", {.min = 1});
    s.field("tie_weights", of<LmConf>(&LmSettings::tie_weights), "one matrix for input and output");
    s.field("rnn_type", of<LmConf>(&LmSettings::rnn_type), "kind of layers",
            {.one_of = {"lstm", "gru", "rnn_tanh", "rnn_relu"}});
    s.field("dropout_rate", &LmConf::rate, "in training");
    s.field("ignore_id", &LmConf::ignore_id, "padding");
  }
  return s;
}

}  // namespace

LmSettings read_lm_settings(const Node& config, Problems& problems) {
  const std::string kind = config["lm"].value_or<std::string>("seq_rnn");
  if (kind != "seq_rnn" && kind != "transformer") {
    problems.add(config["lm"], "got '" + kind + "', expected seq_rnn or transformer",
                 "leave the language model out (lm_weight: 0)");
    return {};
  }
  LmConf conf = lm_schema(kind == "transformer").parse(config["lm_conf"], problems);
  if (kind == "seq_rnn" && config["lm_conf"]["unit"].is_null()) conf.unit = 650;
  conf.kind = kind;
  conf.has_positions = conf.pos_enc.has_value();
  if (conf.nhid == 0) conf.nhid = conf.unit;
  std::string expected;
  if (!read(config["token_list"], conf.token_list, expected))
    problems.add(config, "key 'token_list' is missing, or no list",
                 "give the config.yaml that the training of the language model left");
  return conf;
}

}  // namespace tutti::speech
