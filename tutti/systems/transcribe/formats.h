// Transcripts as other programs read them: SubRip, WebVTT, NIST's CTM, JSON lines.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/speech/decoding/speech2text.h"
#include "tutti/speech/text/token_list.h"

namespace tutti::systems {

struct TimedWord {
  std::string text;
  double begin = 0;  // seconds
  double end = 0;
  std::optional<double> confidence;  // 0 to 1; the least of its tokens; null: nobody scored it
};

// What the tokens of a model are: characters and <space>, sentencepieces with their mark, or whole words. By the whole
// list: one text may have neither a space nor a mark.
enum class Units { kCharacters, kPieces, kWords };
Units units_of(const speech::TokenList& list);

// The words of a hypothesis with times. Empty when it has no times.
std::vector<TimedWord> timed_words(const speech::Recognition& found, Units units);

struct Cue {
  double begin = 0;
  double end = 0;
  std::string text;
};

// Subtitles of at most 7 s and 84 characters, all within the recording's `seconds`, that have every word: by the times
// of the words, or else by those of the pieces (a piece begins a line), of which each word has its part.
std::vector<Cue> make_cues(const speech::Recognised& recognised, double seconds, Units units);

std::string to_srt(const std::vector<Cue>& cues);
std::string to_vtt(const std::vector<Cue>& cues);
// `NAME 1 BEGIN DURATION WORD [CONFIDENCE]`; blanks part the columns, so `name` has none. Without words: a comment (`;;`) that says so.
std::string to_ctm(const std::string& name, const std::vector<TimedWord>& words);

}  // namespace tutti::systems
