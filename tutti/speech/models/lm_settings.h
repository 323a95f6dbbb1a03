// A language model that a search may listen to: ESPnet's config of it, read. Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/config/node.h"
#include "tutti/config/problem.h"

namespace tutti::speech {

struct LmSettings {
  std::string kind = "seq_rnn";  // seq_rnn, transformer
  std::vector<std::string> token_list;
  // ---- transformer
  bool has_positions = false;  // pos_enc: sinusoidal
  std::int64_t embed_unit = 128;
  std::int64_t att_unit = 256;
  std::int64_t head = 2;
  std::int64_t unit = 1024;  // of the feed-forward layers; seq_rnn: of the embedding (650)
  std::int64_t layer = 4;
  // ---- seq_rnn
  std::int64_t nhid = 0;  // 0: as unit
  std::int64_t nlayers = 2;
  bool tie_weights = false;
  std::string rnn_type = "lstm";  // lstm, gru, rnn_tanh, rnn_relu
};

// From ESPnet's config.yaml of a language model: `lm`, `lm_conf` and `token_list`; what else is there
// trained it. Adds problems for models that are not known.
LmSettings read_lm_settings(const config::Node& config, config::Problems& problems);

}  // namespace tutti::speech
