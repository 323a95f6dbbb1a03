// What turns text into tokens belongs to the weights: training keeps it in exp_dir, where no other experiment's
// train_tokenizer writes, and exp_dir/config.yaml names these copies. Decoding and packing read them from there.
//
//   config::Node noted = keep_tokens(training, exp_dir);   // EXP_DIR/tokens.txt, EXP_DIR/bpe.model
//   for (const TokenChange& change : token_changes(before, now)) ...
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/config/node.h"

namespace tutti::systems {

struct TokenFile {
  std::string
      key;  // "model.token_list", "dataset.preprocessor.token_list", "dataset.preprocessor.bpemodel"
  std::filesystem::path file;
};
// Those of a training config that are there; a sentencepiece model also where only tokenizer.save_path tells.
std::vector<TokenFile> token_files(const config::Node& training);

// Copies them to exp_dir (a file of other content becomes NAME.1, NAME.2, ...) and gives the config that names the
// copies.
config::Node keep_tokens(const config::Node& training, const std::filesystem::path& exp_dir);

struct TokenChange {
  std::string key;
  std::string before, now;  // "30 tokens", "40 tokens"
  bool resizes = false;     // the weights
  std::filesystem::path kept;
};
// By content, of keys that name files in both. `compared` gets the keys whose paths mean nothing more.
std::vector<TokenChange> token_changes(const config::Node& before, const config::Node& now,
                                       std::vector<std::string>& compared);

}  // namespace tutti::systems
