// Word, character and token error rates of a test set, with alignments, speakers and confidence.
//
//   ErrorRate wer({.kind = ErrorKind::kWord, .cleaners = {"whisper_basic"}});
//   wer.add({.id = "utt1", .speaker = "s1"}, "the reference", "the hypothesis");
//   log::info("{} [{}, ...]", wer.total().error_rate(), wer.confidence().low);
//
// One object is one metric on one test set; not thread-safe. Characters include the spaces between
// words, as jiwer counts them. Tokens come from a sentencepiece model.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tutti/speech/metrics/edit_distance.h"
#include "tutti/speech/text/cleaners.h"
#include "tutti/speech/text/tokenizer.h"

namespace tutti::speech {

enum class ErrorKind { kWord, kCharacter, kToken };
// "WER", "CER", "TER".
std::string name_of(ErrorKind kind);

struct ErrorRateConfig {
  ErrorKind kind = ErrorKind::kWord;
  std::vector<std::string> cleaners;           // names of TextCleaner, applied to both sides
  std::shared_ptr<const Tokenizer> tokenizer;  // kToken only; shared by the metrics of a run
  // ESPnet3 scores an empty text as this one token, so that jiwer accepts it. "" scores it as
  // empty.
  std::string empty_text = ".";
};

struct UtteranceId {
  std::string id;
  std::string speaker;  // empty: unknown
};

struct ScoredUtterance {
  UtteranceId who;
  std::vector<std::string> reference;
  std::vector<std::string> hypothesis;
  Alignment alignment;
};

// Percentile bootstrap over utterances, in percent like the rate in reports.
struct Confidence {
  double low = 0;
  double high = 0;
  double level = 0.95;
  int resamples = 0;
};

class ErrorRate {
 public:
  // Throws ConfigError for an unknown cleaner or a missing tokenizer.
  explicit ErrorRate(ErrorRateConfig config);

  const ScoredUtterance& add(UtteranceId who, const std::string& reference,
                             const std::string& hypothesis);

  const EditCounts& total() const noexcept { return total_; }
  std::int64_t sentence_errors() const noexcept { return sentence_errors_; }
  const std::vector<ScoredUtterance>& utterances() const noexcept { return utterances_; }
  std::map<std::string, EditCounts> by_speaker() const;
  // The same seed gives the same interval, whatever the order in which utterances were added.
  Confidence confidence(std::uint64_t seed = 0, int resamples = 1000, double level = 0.95) const;
  ErrorKind kind() const noexcept { return config_.kind; }

 private:
  std::vector<std::string> tokens(const std::string& text) const;

  ErrorRateConfig config_;
  TextCleaner clean_;
  std::vector<ScoredUtterance> utterances_;
  EditCounts total_;
  std::int64_t sentence_errors_ = 0;
};

// "<id> <text>" lines of two files, joined by id: every id must be in both, once. Order is the
// reference's. Throws DataError naming the first ids that are missing.
struct TextPair {
  std::string id;
  std::string reference;
  std::string hypothesis;
};
std::vector<TextPair> read_text_pairs(const std::filesystem::path& reference,
                                      const std::filesystem::path& hypothesis);

}  // namespace tutti::speech
