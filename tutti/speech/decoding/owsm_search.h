// The search of an OWSM model: prompts, languages, and ESPnet's rules for time tokens.
//
//   OwsmSearch search(model, codec, options, device);
//   auto found = search.run(model->encode(...), {.timestamps = true});   // n-best per utterance
//   search.languages(encoded, 3)[0];                                      // {<eng>, 0.93}, ...
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/speech/decoding/beam_search.h"
#include "tutti/speech/decoding/owsm.h"
#include "tutti/speech/decoding/speech2text.h"

namespace tutti::speech {

class OwsmSearch {
 public:
  // Keeps a reference to the codec. Throws ConfigError or DataError for options that the model
  // cannot serve.
  OwsmSearch(AsrModel model, const TextCodec& codec, const Speech2TextOptions& options,
             torch::Device device, LanguageModel lm = nullptr);

  const OwsmTokens& tokens() const noexcept { return tokens_; }
  // At least one per utterance; token_ids are what follows the prompt. REQUIRES: no gradients.
  std::vector<std::vector<Recognition>> run(const Encoded& encoded, const OwsmCall& call) const;
  // The `nbest` likeliest languages per utterance.
  std::vector<std::vector<LanguageGuess>> languages(const Encoded& encoded,
                                                    std::size_t nbest) const;
  // What was said between pairs of time tokens; an utterance that was not ended ends with the window.
  std::vector<LongSegment> segments(const Recognition& recognition) const;

 private:
  BeamSearchOptions options_for(std::vector<std::int64_t> prompt) const;
  std::vector<std::vector<Recognition>> search_language(const Encoded& encoded,
                                                        const std::string& language,
                                                        const OwsmCall& call) const;
  std::vector<std::string> language_per_utterance(const Encoded& encoded) const;

  AsrModel model_;
  LanguageModel lm_;  // may be null
  const TextCodec& codec_;
  Speech2TextOptions options_;
  torch::Device device_;
  OwsmTokens tokens_;
  std::vector<std::int64_t> language_ids_;  // what languages() chooses from
};

}  // namespace tutti::speech
