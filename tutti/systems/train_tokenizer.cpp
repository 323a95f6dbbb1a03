#include <fmt/format.h>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/status.h"
#include "tutti/core/text.h"
#include "tutti/speech/text/sentencepiece_train.h"
#include "tutti/speech/text/token_list.h"
#include "tutti/systems/corpus.h"
#include "tutti/systems/stages.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

// The training texts: `train_file` where it is given, else what the training set says.
std::vector<std::string> training_texts(const StageContext& context) {
  const config::Node file = context.training["tokenizer"]["train_file"];
  std::vector<std::string> lines;
  if (!file.is_null()) {
    for (auto& line : split(read_file(file.as<std::string>()), '\n'))
      if (!trim(line).empty()) lines.push_back(std::move(line));
    return lines;
  }
  for (const auto& part : open_parts(context.training, "train", context.folder("data_dir"), 0))
    for (std::size_t i = 0; i < part.dataset->size(); ++i) lines.push_back(part.dataset->text(i));
  return lines;
}

// The list that was there before; empty when none was.
std::string old_list(const fs::path& tokens) {
  return fs::exists(tokens) ? read_file(tokens) : std::string();
}

void say_replaced(const fs::path& tokens, const std::string& before) {
  if (before.empty() || before == read_file(tokens)) return;
  log::warning(
      "{}: another tokenizer was here, of other settings or text; it is replaced (models trained "
      "with it have a copy in their exp_dir)",
      shown_path(tokens));
}

}  // namespace

void train_tokenizer(const StageContext& context) {
  const config::Node tokenizer = context.training["tokenizer"];
  if (tokenizer.is_null()) {
    log::info("no tokenizer block: nothing to train");
    return;
  }
  const std::string model_type = tokenizer["model_type"].value_or<std::string>("bpe");
  const fs::path save_path = tokenizer["save_path"].as<std::string>();
  make_folders(save_path);
  const std::string before = old_list(save_path / "tokens.txt");
  const auto lines = training_texts(context);
  if (lines.empty())
    throw DataError("no text to train a tokenizer on",
                    "set tokenizer.train_file, or fill dataset.train");
  if (model_type == "char" || model_type == "word") {
    const auto units = speech::make_tokenizer({.token_type = model_type});
    const auto tokens = speech::build_token_list(lines, *units);
    tokens.write(save_path / "tokens.txt");
    log::info("{} {} tokens in {}", tokens.size(), model_type,
              shown_path(save_path / "tokens.txt"));
    say_replaced(save_path / "tokens.txt", before);
    return;
  }
  const fs::path text = context.folder("data_dir") / "train_tokenizer" / "train.txt";
  make_folders(text.parent_path());
  write_file_atomic(text, join(lines, "\n") + "\n");
  log::info("spm_train makes {} pieces of {} lines", tokenizer["vocab_size"].value_or(5000),
            lines.size());
  const auto files = speech::train_sentencepiece(
      {.input = text,
       .save_path = save_path,
       .vocab_size = tokenizer["vocab_size"].value_or(5000),
       .character_coverage = tokenizer["character_coverage"].value_or(1.0),
       .model_type = model_type});
  log::info("{} pieces in {}", speech::TokenList::read(files.tokens).size(),
            shown_path(files.tokens));
  say_replaced(files.tokens, before);
}

}  // namespace tutti::systems
