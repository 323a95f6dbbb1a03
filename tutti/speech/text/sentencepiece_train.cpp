#include "tutti/speech/text/sentencepiece_train.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <regex>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/progress.h"
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

// How far spm_train is, from what it writes: pieces of bpe, or rounds of unigram, which throws away a quarter of its
// pieces after every two rounds until a tenth more than the wanted ones are left.
class SpmProgress {
 public:
  explicit SpmProgress(const SentencePieceTraining& config) : config_(config) {
    if (config.model_type == "bpe") bar_.emplace("making pieces", config.vocab_size);
  }
  void see(std::string_view text) {
    rest_ += text;
    for (std::size_t end; (end = rest_.find('\n')) != std::string::npos; rest_.erase(0, end + 1))
      see_line(rest_.substr(0, end));
  }

 private:
  void see_line(const std::string& line) {
    static const std::regex kRound("EM sub_iter=[0-9]+ size=([0-9]+)");
    static const std::regex kPieces("Added: .* size=([0-9]+)");
    std::smatch found;
    if (config_.model_type == "bpe" && std::regex_search(line, found, kPieces)) {
      const std::uint64_t made = std::stoull(found[1]);
      if (made > made_) bar_->add(made - std::exchange(made_, made));
    } else if (config_.model_type == "unigram" && std::regex_search(line, found, kRound)) {
      if (!bar_) {
        const double surplus = std::stod(found[1]) / (1.1 * config_.vocab_size);
        const double cuts = std::ceil(std::log(std::max(surplus, 1.0)) / std::log(4.0 / 3.0));
        bar_.emplace("rounds of unigram", 2 * static_cast<std::uint64_t>(cuts + 1));
      }
      bar_->add();
    }
  }

  const SentencePieceTraining& config_;
  std::optional<ProgressBar> bar_;
  std::string rest_;  // of a line
  std::uint64_t made_ = 0;
};

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
  CommandResult result;
  {
    SpmProgress progress(config);
    command.on_stderr = [&](std::string_view text) { progress.see(text); };
    result = runner.run(command);
  }
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
