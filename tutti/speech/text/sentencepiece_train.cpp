#include "tutti/speech/text/sentencepiece_train.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"
#include "tutti/speech/text/sentencepiece_file.h"
#include "tutti/speech/text/token_list.h"

namespace tutti::speech {
namespace {

void check(const SentencePieceTraining& config) {
  const std::vector<std::string> types{"bpe", "unigram", "char", "word"};
  if (std::find(types.begin(), types.end(), config.model_type) == types.end())
    throw ConfigError(fmt::format(
        "tokenizer.model_type: got '{}', expected bpe, unigram, char or word", config.model_type));
  if (config.vocab_size < 1)
    throw ConfigError(
        fmt::format("tokenizer.vocab_size: got {}, expected at least 1", config.vocab_size));
  if (!(config.character_coverage > 0 && config.character_coverage <= 1))
    throw ConfigError(
        fmt::format("tokenizer.character_coverage: got {}, expected more than 0 and at most 1",
                    config.character_coverage));
  for (const std::string& symbol : config.user_defined_symbols)
    if (symbol.empty() || symbol.find(',') != std::string::npos)
      throw ConfigError(fmt::format(
          "tokenizer.user_defined_symbols: got '{}', expected a symbol without commas", symbol));
}

// Beside its results: what a killed one has left, the next one finds and removes.
TempFolder work_folder(const std::filesystem::path& save_path) {
  auto results = std::filesystem::absolute(save_path).lexically_normal();
  if (!results.has_filename()) results = results.parent_path();
  const auto place = results.parent_path();
  const std::string name = results.filename().string() + ".training";
  make_folders(place);
  for (const auto& entry : std::filesystem::directory_iterator(place))
    if (entry.path().filename().string().starts_with(name + "-"))
      std::filesystem::remove_all(entry.path());
  return TempFolder(name, place);
}

// spm_train writes forty lines before the one that matters.
[[noreturn]] void refuse(const SentencePieceTraining& config, const CommandResult& result) {
  static const std::regex kTooHigh("Please set it to a value <= ([0-9]+)");
  static const std::regex kTooLow("smaller than required_chars\\. [0-9]+ vs ([0-9]+)");
  std::smatch found;
  if (std::regex_search(result.err, found, kTooHigh))
    throw ConfigError(fmt::format("tokenizer.vocab_size: got {}, expected at most {}: the text has "
                                  "no more different pieces",
                                  config.vocab_size, found[1].str()),
                      fmt::format("set vocab_size: {}, or train on more text", found[1].str()));
  if (std::regex_search(result.err, found, kTooLow))
    throw ConfigError(
        fmt::format("tokenizer.vocab_size: got {}, expected at least {}: every character of the "
                    "text is a piece",
                    config.vocab_size, found[1].str()),
        fmt::format("set vocab_size: {} or more, or lower character_coverage", found[1].str()));
  throw ConfigError("tokenizer: " + result.describe(),
                    "check vocab_size and character_coverage against the size of the text");
}

}  // namespace

bool SentencePieceFiles::complete() const {
  return std::filesystem::exists(model) && std::filesystem::exists(vocab) &&
         std::filesystem::exists(tokens);
}

SentencePieceFiles sentencepiece_files(const SentencePieceTraining& config) {
  return {config.save_path / (config.model_type + ".model"),
          config.save_path / (config.model_type + ".vocab"), config.save_path / "tokens.txt"};
}

SentencePieceFiles train_sentencepiece(const SentencePieceTraining& config, CommandRunner& runner) {
  check(config);
  if (!std::filesystem::exists(config.input))
    throw IoError(
        fmt::format("cannot train a tokenizer: {} does not exist", config.input.string()));
  const TempFolder folder = work_folder(config.save_path);
  const std::string prefix = (folder.path() / "model").string();
  Command command{.argv = {"spm_train", "--input=" + config.input.string(),
                           "--model_prefix=" + prefix, "--model_type=" + config.model_type,
                           fmt::format("--vocab_size={}", config.vocab_size),
                           fmt::format("--character_coverage={}", config.character_coverage),
                           fmt::format("--input_sentence_size={}", config.input_sentence_size),
                           "--normalization_rule_name=" + config.normalization_rule_name,
                           fmt::format("--byte_fallback={}", config.byte_fallback)}};
  if (!config.user_defined_symbols.empty())
    command.argv.push_back("--user_defined_symbols=" + join(config.user_defined_symbols, ","));
  const CommandResult result = runner.run(command);
  if (result.exit_code == 127)
    throw IoError("cannot start spm_train", "install the Debian package sentencepiece");
  if (!result.ok()) refuse(config, result);

  const SentencePieceFile model = read_sentencepiece_file(prefix + ".model");
  std::vector<std::string> tokens{std::string(kBlank), std::string(kUnknown)};
  for (std::size_t i = 3; i < model.pieces.size(); ++i) tokens.push_back(model.pieces[i].text);
  tokens.emplace_back(kSosEos);

  const SentencePieceFiles files = sentencepiece_files(config);
  make_folders(config.save_path);
  write_file_atomic(files.vocab, read_file(prefix + ".vocab"));
  TokenList(std::move(tokens)).write(files.tokens);
  // The model last: a folder that has it has everything.
  write_file_atomic(files.model, read_file(prefix + ".model"));
  return files;
}

}  // namespace tutti::speech
