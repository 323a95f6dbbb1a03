#include "tutti/systems/training/kept_tokens.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/config/merge.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"
#include "tutti/speech/text/sentencepiece_file.h"
#include "tutti/systems/preprocessor_settings.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using config::Node;

constexpr const char* kModelList = "model.token_list";
constexpr const char* kList = "dataset.preprocessor.token_list";
constexpr const char* kPieces = "dataset.preprocessor.bpemodel";

bool is_there(const fs::path& file) {
  std::error_code unreadable;  // whoever opens it says so
  return fs::is_regular_file(file, unreadable);
}

std::vector<TokenFile> named_files(const Node& training) {
  std::vector<TokenFile> files;
  for (const char* key : {kModelList, kList})
    if (const Node list = training.find(key); list.is_scalar() && !list.is_null())
      files.push_back({key, list.raw()});
  config::Problems elsewhere;  // reported where the config is checked
  const TextSettings text = read_text_settings(training, elsewhere);
  if (!text.bpemodel.empty()) files.push_back({kPieces, text.bpemodel});
  return files;
}

// Keys keep their order in the file.
Node with_file(const Node& training, const std::string& key, const fs::path& file) {
  config::Problems none;  // either way it can be set
  return Node(
      config::apply_override(training.value(), fmt::format("++{}={}", key, file.string()), none));
}

void copy_to(const fs::path& from, const fs::path& to) {
  const std::string content = read_file(from);
  if (fs::exists(to)) {
    if (read_file(to) == content) return;
    int number = 1;
    while (fs::exists(fmt::format("{}.{}", to.string(), number))) ++number;
    fs::copy_file(to, fmt::format("{}.{}", to.string(), number));
  }
  write_file_atomic(to, content);
}

// Sentencepiece notes in a model which files it was made of; what it does is in its pieces.
bool cut_alike(const std::string& a, const std::string& b, const fs::path& file) {
  const auto of = [&](const std::string& bytes) {
    return speech::parse_sentencepiece_file(bytes, file.string());
  };
  const speech::SentencePieceFile x = of(a), y = of(b);
  const auto same = [](const speech::Piece& p, const speech::Piece& q) {
    return p.text == q.text && p.score == q.score && p.type == q.type;
  };
  return x.model == y.model && x.byte_fallback == y.byte_fallback &&
         x.normalizer.precompiled_charsmap == y.normalizer.precompiled_charsmap &&
         std::equal(x.pieces.begin(), x.pieces.end(), y.pieces.begin(), y.pieces.end(), same);
}

TokenChange change_of_list(const std::string& before, const std::string& now) {
  const auto a = split(trim(before), '\n'), b = split(trim(now), '\n');
  TokenChange change;
  change.resizes = a.size() != b.size();
  if (change.resizes) {
    change.before = fmt::format("{} tokens", a.size());
    change.now = fmt::format("{} tokens", b.size());
    return change;
  }
  const auto at = std::mismatch(a.begin(), a.end(), b.begin());
  if (at.first == a.end()) return change;  // spaces at the end of the file
  change.before = fmt::format("token {} is '{}'", at.first - a.begin(), *at.first);
  change.now = fmt::format("'{}'", *at.second);
  return change;
}

}  // namespace

std::vector<TokenFile> token_files(const Node& training) {
  std::vector<TokenFile> files = named_files(training);
  std::erase_if(files, [](const TokenFile& named) { return !is_there(named.file); });
  return files;
}

Node keep_tokens(const Node& training, const fs::path& exp_dir) {
  Node noted = training;
  std::vector<std::pair<fs::path, std::string>> copied;  // name, content
  for (const TokenFile& source : token_files(training)) {
    fs::path name = source.file.filename();
    const std::string content = read_file(source.file);
    for (const auto& [taken, other] : copied)
      if (taken == name && other != content) name = "preprocessor_" + name.string();
    copied.emplace_back(name, content);
    copy_to(source.file, exp_dir / name);
    noted = with_file(noted, source.key, exp_dir / name);
  }
  return noted;
}

std::vector<TokenChange> token_changes(const Node& before, const Node& now,
                                       std::vector<std::string>& compared) {
  std::vector<TokenChange> changes;
  const auto kept = token_files(before);
  for (const TokenFile& is : named_files(now)) {
    const auto was = std::find_if(kept.begin(), kept.end(),
                                  [&](const TokenFile& file) { return file.key == is.key; });
    const bool is_lost = !is_there(is.file);  // training says so itself
    if (is_lost || was != kept.end()) compared.push_back(is.key);
    if (is_lost || was == kept.end()) continue;
    const std::string old_content = read_file(was->file), content = read_file(is.file);
    if (old_content == content) continue;
    TokenChange change;
    if (is.key != kPieces) {
      change = change_of_list(old_content, content);
    } else if (!cut_alike(old_content, content, is.file)) {
      change.before = was->file.string();
      change.now = "other pieces in " + is.file.string();
    }
    if (change.before.empty()) continue;
    change.key = is.key;
    change.kept = was->file;
    changes.push_back(change);
  }
  return changes;
}

}  // namespace tutti::systems
