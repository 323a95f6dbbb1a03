#include "tutti/systems/transcribe/formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tutti/core/text.h"
#include "tutti/speech/decoding/owsm.h"
#include "tutti/speech/text/utf8.h"

namespace tutti::systems {
namespace {

constexpr std::string_view kMark = "\u2581";  // sentencepiece: a word begins
constexpr std::string_view kSpace = "<space>";
constexpr double kCueSeconds = 7;
constexpr double kPause = 1;            // seconds between words: a new line
constexpr double kLeastSeconds = 0.01;  // a line lasts
constexpr std::size_t kCueCharacters = 84;

// HH:MM:SS and the milliseconds after `point`.
std::string clock_time(double seconds, char point) {
  const auto ms = static_cast<long long>(std::llround(1000 * std::max(0.0, seconds)));
  return fmt::format("{:02}:{:02}:{:02}{}{:03}", ms / 3600000, ms / 60000 % 60, ms / 1000 % 60,
                     point, ms % 1000);
}

std::size_t num_characters(const std::string& text) { return speech::to_utf32(text).size(); }

// What can be in a line of its own: a word; of scripts without blanks, and of words that fill more than a line, a
// character.
struct Part {
  std::string text;
  double begin = 0;
  double end = 0;
  bool begins_word = true;
};

bool is_unspaced(const std::string& word) {
  for (const char32_t c : speech::to_utf32(word)) {
    const bool is_hangul = c >= 0xAC00 && c < 0xD7B0;
    if (c >= 0x2E80 && !is_hangul) return true;  // from the radicals of Chinese on
  }
  return num_characters(word) > kCueCharacters;
}

// The parts of a text of which only the whole has times: each lasts as long as its letters are of all.
std::vector<Part> parts_of(const Cue& whole) {
  std::vector<Part> parts;
  for (const std::string& word : split_words(whole.text)) {
    if (!is_unspaced(word)) {
      parts.push_back({.text = word});
      continue;
    }
    bool begins = true;
    for (std::string& character : speech::split_characters(word))
      parts.push_back({.text = std::move(character), .begins_word = std::exchange(begins, false)});
  }
  double all = 0, before = 0;
  for (const Part& part : parts) all += static_cast<double>(num_characters(part.text));
  for (Part& part : parts) {
    part.begin = whole.begin + (whole.end - whole.begin) * before / all;
    before += static_cast<double>(num_characters(part.text));
    part.end = whole.begin + (whole.end - whole.begin) * before / all;
  }
  return parts;
}

// What a model hears in the silence behind the end was said at the end: no word is lost.
std::vector<Cue> within(std::vector<Cue> said, double seconds) {
  std::vector<Cue> out;
  for (Cue& stretch : said) {
    if (trim(stretch.text).empty()) continue;
    if (stretch.begin + kLeastSeconds > seconds)
      stretch.begin = std::max(out.empty() ? 0.0 : out.back().end, seconds - kCueSeconds);
    stretch.end = std::max(std::min(stretch.end, seconds), stretch.begin + kLeastSeconds);
    if (out.empty() || stretch.begin + kLeastSeconds <= seconds)
      out.push_back(std::move(stretch));
    else
      out.back().text += " " + stretch.text;
  }
  return out;
}

void add(const Part& part, bool may_join, std::vector<Cue>& cues) {
  const std::string blank = part.begins_word ? " " : "";
  const bool fits = may_join && !cues.empty() && part.end - cues.back().begin <= kCueSeconds &&
                    num_characters(cues.back().text + blank + part.text) <= kCueCharacters &&
                    part.begin - cues.back().end < kPause;
  if (!fits) {  // one word may be drawn out for longer than a line is shown
    cues.push_back({part.begin, std::min(part.end, part.begin + kCueSeconds), part.text});
    return;
  }
  cues.back().text += blank + part.text;
  cues.back().end = part.end;
}

// "-->" ends a time line for every reader.
std::string cue_text(std::string text) {
  for (std::size_t at = text.find("-->"); at != std::string::npos; at = text.find("-->", at))
    text.erase(at, 1);
  return std::string(trim(text));
}

}  // namespace

Units units_of(const speech::TokenList& list) {
  bool has_space = false, all_single = true;
  for (const std::string& token : list.tokens()) {
    if (token.starts_with(kMark)) return Units::kPieces;
    has_space = has_space || token == kSpace;
    if (!speech::is_owsm_mark(token)) all_single = all_single && num_characters(token) == 1;
  }
  return has_space || all_single ? Units::kCharacters : Units::kWords;
}

std::vector<TimedWord> timed_words(const speech::Recognition& found, Units units) {
  if (found.times.size() != found.tokens.size()) return {};
  const bool sure = found.token_confidences.size() == found.tokens.size();
  const bool is_owsm = !found.full_text.empty();
  std::vector<TimedWord> words;
  bool begins = true;
  for (std::size_t k = 0; k < found.tokens.size(); ++k) {
    std::string piece = found.tokens[k];
    if (is_owsm && speech::is_owsm_mark(piece)) continue;
    if (units == Units::kCharacters && piece == kSpace) {
      begins = true;
      continue;
    }
    if (units == Units::kPieces && piece.compare(0, kMark.size(), kMark) == 0) {
      begins = true;
      piece.erase(0, kMark.size());
    }
    const auto confidence = sure ? std::optional(found.token_confidences[k]) : found.confidence();
    if (begins || units == Units::kWords || words.empty()) {
      words.push_back({piece, found.times[k].begin, found.times[k].end, confidence});
    } else {
      words.back().text += piece;
      words.back().end = found.times[k].end;
      words.back().confidence = std::min(words.back().confidence, confidence);
    }
    begins = false;
  }
  std::erase_if(words, [](const TimedWord& word) { return word.text.empty(); });
  return words;
}

std::vector<Cue> make_cues(const speech::Recognised& recognised, double seconds, Units units) {
  std::vector<Cue> said;
  const auto words = timed_words(recognised.nbest.at(0), units);
  for (const TimedWord& word : words) said.push_back({word.begin, word.end, word.text});
  if (words.empty())
    for (const auto& segment : recognised.segments)
      said.push_back({segment.begin, segment.end, segment.text});
  if (said.empty()) said.push_back({0, seconds, recognised.nbest[0].text});
  std::vector<Cue> cues;
  for (const Cue& stretch : within(std::move(said), seconds)) {
    bool may_join = !words.empty();  // a segment is a sentence: it begins a line
    for (const Part& part : parts_of(stretch)) {
      add(part, may_join, cues);
      may_join = true;
    }
  }
  return cues;
}

std::string to_srt(const std::vector<Cue>& cues) {
  std::string out;
  for (std::size_t i = 0; i < cues.size(); ++i)
    out += fmt::format("{}\n{} --> {}\n{}\n\n", i + 1, clock_time(cues[i].begin, ','),
                       clock_time(cues[i].end, ','), cue_text(cues[i].text));
  return out;
}

std::string to_vtt(const std::vector<Cue>& cues) {
  std::string out = "WEBVTT\n\n";
  for (const Cue& cue : cues)
    out += fmt::format("{} --> {}\n{}\n\n", clock_time(cue.begin, '.'), clock_time(cue.end, '.'),
                       cue_text(cue.text));
  return out;
}

std::string to_ctm(const std::string& name, const std::vector<TimedWord>& words) {
  std::string out;
  if (words.empty()) return fmt::format(";; {}: no words\n", name);  // CTM's comment
  for (const TimedWord& word : words)
    out += fmt::format("{} 1 {:.2f} {:.2f} {}{}\n", name, word.begin,
                       std::max(0.01, word.end - word.begin), word.text,
                       word.confidence ? fmt::format(" {:.2f}", *word.confidence) : "");
  return out;
}

}  // namespace tutti::systems
