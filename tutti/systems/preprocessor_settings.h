// `dataset.preprocessor` and `tokenizer`: how text becomes tokens and what happens to speech. ESPnet's keys and ours,
// read once for check, training, statistics and inference. Torch-free.
#pragma once

#include <string>
#include <vector>

#include "tutti/config/schema.h"
#include "tutti/data/preprocess.h"

namespace tutti::systems {

// What S2TTask (OWSM) adds: names of its marks, its window, and how often it hears what.
struct S2tSettings {
  std::string na_symbol = "<na>", notime_symbol = "<notimestamps>";
  std::string first_time_symbol = "<0.00>", last_time_symbol = "<30.00>";
  double speech_length = 30;         // seconds that the model hears
  double speech_resolution = 0.02;   // seconds between two time tokens
  double speech_init_silence = 1.0;  // seconds, the most silence put before speech in training
  double text_prev_apply_prob = 0.5;
  double time_apply_prob = 0.5;
  std::string nolang_symbol = "<nolang>";  // OWSM-CTC
  double lang_apply_prob = 0.5;            // of its training
};

// The block under ESPnet's names; data::PreprocessSettings has what becomes of speech.
struct PreprocessorSettings : data::PreprocessSettings, S2tSettings {
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
