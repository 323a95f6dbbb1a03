// What speech-to-text (OWSM) training makes of a sample, as ESPnet's S2TPreprocessor: speech is moved to the
// right by a random silence and brought to the window's length; time tokens move with it or are left
// out; the text before is told or not.
//
//   text       <eng><asr><0.00> good morning<1.20><1.60> how are you<2.40>, or <eng><asr><notimestamps> ...
//   text_prev  what was said before; <na> or nothing: not known
//   text_ctc   what CTC learns; <na>: not known
//
// Different from ESPnet on purpose: a lone word mark at the beginning of `text` is removed only when it
// is there, and a text without times gets no second <notimestamps>. Every choice is keyed by (seed,
// epoch, utterance). Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/preprocess.h"
#include "tutti/speech/decoding/owsm.h"
#include "tutti/systems/preprocessor_settings.h"

namespace tutti::systems {

// `<eng><asr><0.00> a<1.20>` and `<eng> <asr> <0.00> a <1.20>` as a tokenizer wants it: one that cuts words at blanks has
// them around every mark of the list; others have none between the marks at the beginning.
std::string with_marks_apart(const std::string& text, const speech::TokenList& tokens,
                             bool cuts_at_blanks);

class S2tPreprocessor {
 public:
  // `tokenize` gives the tokens of a text, marks included. Throws DataError when the token list lacks
  // a mark.
  S2tPreprocessor(const S2tSettings& settings, const speech::OwsmSymbols& symbols,
                  const speech::TokenList& tokens, data::Tokenize tokenize, bool cuts_at_blanks,
                  bool needs_ctc, std::uint64_t seed, data::Mode mode);
  // Fills tokens, extra["text_prev"] and extra["text_ctc"]; what is not known has no tokens. Throws
  // DataError, naming the utterance, for a text without language, task and times.
  void operator()(data::Sample& sample, std::uint64_t epoch) const;

 private:
  using Ids = std::vector<std::int64_t>;
  // Returns how many time tokens the speech moved.
  std::int64_t fit_speech(data::Sample& sample, std::uint64_t epoch) const;
  Ids text_of(const data::Sample& sample, std::int64_t shift, bool with_times) const;
  Ids known(const std::string& text) const;  // empty: not known
  bool is_time(std::int64_t id) const { return id >= first_time_ && id <= last_time_; }

  const S2tSettings settings_;
  const speech::TokenList tokens_;
  const data::Tokenize tokenize_;
  const bool cuts_at_blanks_;
  const bool needs_ctc_;
  const std::uint64_t seed_;
  const data::Mode mode_;
  std::int64_t no_times_ = 0, first_time_ = 0, last_time_ = 0, not_available_ = 0, previous_ = 0;
};

}  // namespace tutti::systems
