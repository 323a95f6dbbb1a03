// `dataset.preprocessor` and `tokenizer`: how text becomes tokens and what happens to speech. ESPnet's keys and ours,
// read once for check, training, statistics and inference. Torch-free.
#pragma once

#include <string>
#include <vector>

#include "tutti/config/schema.h"
#include "tutti/data/preprocess.h"

namespace tutti::systems {

// The block under ESPnet's names; data::PreprocessSettings has what becomes of speech.
struct PreprocessorSettings : data::PreprocessSettings {
  // ---- text
  std::optional<std::string> token_type;  // bpe, char, word; null: the tokenizer's kind
  config::Node token_list;                // a file or a list; null: the model's
  std::optional<std::string> bpemodel;
  std::vector<std::string> text_cleaner;
  std::string space_symbol = "<space>";
  std::vector<std::string> non_linguistic_symbols;
  std::string delimiter;
  // ---- as written, read into the base
  config::Node noise_db_range, data_aug_effects, data_aug_num, data_aug_prob, text_cleaners,
      symbols;
  bool train = false;  // augmentation depends on the stage, not on this
  int fs = 0;          // the frontend decides
};
config::Schema<PreprocessorSettings> preprocessor_schema();
PreprocessorSettings read_preprocessor(const config::Node& block, config::Problems& problems);

// What turns text into tokens, from the blocks that have a say: dataset.preprocessor, model.token_list, tokenizer.
struct TextSettings {
  std::string token_type = "bpe";
  std::string bpemodel;     // bpe only
  config::Node token_list;  // a file or a list
  PreprocessorSettings preprocessor;
};
// `training` is a whole training config. Adds a problem where the blocks contradict each other.
TextSettings read_text_settings(const config::Node& training, config::Problems& problems);

}  // namespace tutti::systems
