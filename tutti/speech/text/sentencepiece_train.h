// Training a sentencepiece model with the `spm_train` program.
//
//   auto trained = train_sentencepiece({.input = "data/train.txt", .save_path = "data/bpe_500",
//                                       .vocab_size = 500, .model_type = "unigram"});
//   trained.model, trained.tokens
//
// Leaves `<model_type>.model`, `<model_type>.vocab` and `tokens.txt` (<blank>, <unk>, the pieces
// after the three special ones, <sos/eos>) in save_path, all of them or none: the program writes to
// a temporary folder first. Throws ConfigError when the program refuses the options (the message
// has its words), IoError when it is not installed or the input cannot be read.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/core/subprocess.h"

namespace tutti::speech {

struct SentencePieceTraining {
  std::filesystem::path input;      // one sentence per line
  std::filesystem::path save_path;  // folder
  int vocab_size = 5000;
  double character_coverage = 1.0;  // (0, 1]
  std::string model_type = "bpe";   // bpe, unigram, char or word
  std::vector<std::string> user_defined_symbols;
  bool byte_fallback = false;
  std::string normalization_rule_name = "nmt_nfkc";
  long input_sentence_size = 100000000;
};

struct SentencePieceFiles {
  std::filesystem::path model;
  std::filesystem::path vocab;
  std::filesystem::path tokens;
  bool complete() const;  // all three exist
};

// Where the files of a training go, whether they are there or not.
SentencePieceFiles sentencepiece_files(const SentencePieceTraining& config);
SentencePieceFiles train_sentencepiece(const SentencePieceTraining& config,
                                       CommandRunner& runner = CommandRunner::system());

}  // namespace tutti::speech
