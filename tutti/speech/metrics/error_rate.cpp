#include "tutti/speech/metrics/error_rate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/random.h"
#include "tutti/core/text.h"
#include "tutti/speech/text/utf8.h"

namespace tutti::speech {

std::string name_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kWord:
      return "WER";
    case ErrorKind::kCharacter:
      return "CER";
    case ErrorKind::kToken:
      return "TER";
  }
  throw InternalError("unknown error kind");
}

ErrorRate::ErrorRate(ErrorRateConfig config)
    : config_(std::move(config)), clean_(config_.cleaners) {
  if (config_.kind == ErrorKind::kToken && config_.tokenizer == nullptr)
    throw ConfigError("TER: bpemodel: got nothing, expected a sentencepiece .model file");
}

std::vector<std::string> ErrorRate::tokens(const std::string& text) const {
  std::string cleaned(trim(clean_(text)));
  if (cleaned.empty()) {
    if (config_.empty_text.empty()) return {};
    return {config_.empty_text};
  }
  switch (config_.kind) {
    case ErrorKind::kWord:
      return split_words(cleaned);
    case ErrorKind::kCharacter:
      return split_characters(cleaned);
    case ErrorKind::kToken:
      return config_.tokenizer->pieces(cleaned);
  }
  throw InternalError("unknown error kind");
}

const ScoredUtterance& ErrorRate::add(UtteranceId who, const std::string& reference,
                                      const std::string& hypothesis) {
  ScoredUtterance scored{std::move(who), tokens(reference), tokens(hypothesis), {}};
  scored.alignment = align(scored.reference, scored.hypothesis);
  total_ += scored.alignment.counts;
  if (scored.alignment.counts.errors() > 0) ++sentence_errors_;
  utterances_.push_back(std::move(scored));
  return utterances_.back();
}

std::map<std::string, EditCounts> ErrorRate::by_speaker() const {
  std::map<std::string, EditCounts> out;
  for (const ScoredUtterance& utterance : utterances_)
    out[utterance.who.speaker] += utterance.alignment.counts;
  return out;
}

Confidence ErrorRate::confidence(std::uint64_t seed, int resamples, double level) const {
  Confidence out{0, 0, level, resamples};
  if (utterances_.empty() || resamples < 1) return out;
  std::vector<const ScoredUtterance*> sorted;
  for (const ScoredUtterance& utterance : utterances_) sorted.push_back(&utterance);
  std::sort(sorted.begin(), sorted.end(),
            [](const auto* a, const auto* b) { return a->who.id < b->who.id; });
  std::vector<double> rates;
  for (int r = 0; r < resamples; ++r) {
    Random rng({seed, static_cast<std::uint64_t>(r)});
    std::int64_t errors = 0;
    std::int64_t size = 0;
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      const EditCounts& counts = sorted[rng.below(sorted.size())]->alignment.counts;
      errors += counts.errors();
      size += counts.reference_size();
    }
    if (size > 0) rates.push_back(100.0 * static_cast<double>(errors) / static_cast<double>(size));
  }
  if (rates.empty()) return out;
  std::sort(rates.begin(), rates.end());
  const auto percentile = [&](double p) {
    const double position = p * static_cast<double>(rates.size() - 1);
    const auto low = static_cast<std::size_t>(position);
    const std::size_t high = std::min(low + 1, rates.size() - 1);
    return rates[low] + (rates[high] - rates[low]) * (position - static_cast<double>(low));
  };
  out.low = percentile((1 - level) / 2);
  out.high = percentile((1 + level) / 2);
  return out;
}

namespace {

std::vector<std::pair<std::string, std::string>> read_lines(const std::filesystem::path& path) {
  std::vector<std::pair<std::string, std::string>> out;
  std::size_t number = 0;
  for (const std::string& line : split(read_file(path), '\n')) {
    ++number;
    if (trim(line).empty()) continue;
    const std::size_t space = line.find_first_of(" \t");
    std::string id = line.substr(0, space);
    if (id.empty())
      throw DataError(fmt::format("{}:{}: expected '<id> <text>'", path.string(), number));
    out.emplace_back(std::move(id),
                     space == std::string::npos ? "" : std::string(trim(line.substr(space + 1))));
  }
  return out;
}

}  // namespace

std::vector<TextPair> read_text_pairs(const std::filesystem::path& reference,
                                      const std::filesystem::path& hypothesis) {
  std::unordered_map<std::string, std::string> hypotheses;
  for (auto& [id, text] : read_lines(hypothesis)) {
    if (!hypotheses.emplace(id, text).second)
      throw DataError(fmt::format("{}: {}: there twice", hypothesis.string(), id));
  }
  std::vector<TextPair> out;
  std::vector<std::string> missing;
  for (auto& [id, text] : read_lines(reference)) {
    const auto it = hypotheses.find(id);
    if (it == hypotheses.end()) {
      missing.push_back(id);
      continue;
    }
    out.push_back({id, text, it->second});
    hypotheses.erase(it);
  }
  const auto complain = [](const std::filesystem::path& path, std::vector<std::string> ids) {
    const std::size_t count = ids.size();
    std::sort(ids.begin(), ids.end());
    if (ids.size() > 5) ids.resize(5);
    throw DataError(fmt::format("{}: {} utterances are missing: {}{}", path.string(), count,
                                join(ids, ", "), count > 5 ? ", ..." : ""),
                    "score files that hold the same utterances, or finish the inference first");
  };
  // A reference that is there twice also ends here: its hypothesis was taken the first time.
  if (!missing.empty()) complain(hypothesis, missing);
  if (!hypotheses.empty()) {
    std::vector<std::string> extra;
    for (const auto& [id, text] : hypotheses) extra.push_back(id);
    complain(reference, extra);
  }
  return out;
}

}  // namespace tutti::speech
