#include "tutti/systems/transcribe/formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "tutti/core/text.h"
#include "tutti/speech/decoding/owsm.h"
#include "tutti/speech/text/utf8.h"

namespace tutti::systems {
namespace {

constexpr std::string_view kMark = "\u2581";  // sentencepiece: a word begins
constexpr std::string_view kSpace = "<space>";
constexpr double kCueSeconds = 7;
constexpr std::size_t kCueCharacters = 84;

enum class Units { kCharacters, kPieces, kWords };

Units units_of(const std::vector<std::string>& tokens) {
  bool single = true;
  for (const std::string& token : tokens) {
    if (token.compare(0, kMark.size(), kMark) == 0) return Units::kPieces;
    if (token == kSpace) return Units::kCharacters;
    single = single && speech::to_utf32(token).size() == 1;
  }
  return single ? Units::kCharacters : Units::kWords;
}

// HH:MM:SS and the milliseconds after `point`.
std::string clock_time(double seconds, char point) {
  const auto ms = static_cast<long long>(std::llround(1000 * std::max(0.0, seconds)));
  return fmt::format("{:02}:{:02}:{:02}{}{:03}", ms / 3600000, ms / 60000 % 60, ms / 1000 % 60,
                     point, ms % 1000);
}

// "-->" ends a time line for every reader.
std::string cue_text(std::string text) {
  for (std::size_t at = text.find("-->"); at != std::string::npos; at = text.find("-->", at))
    text.erase(at, 1);
  return std::string(trim(text));
}

}  // namespace

std::vector<TimedWord> timed_words(const speech::Recognition& found) {
  if (found.times.size() != found.tokens.size()) return {};
  const Units units = units_of(found.tokens);
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

std::vector<Cue> make_cues(const speech::Recognised& recognised, double seconds) {
  const auto words = timed_words(recognised.nbest.at(0));
  std::vector<Cue> cues;
  if (words.empty()) {
    for (const auto& segment : recognised.segments)  // OWSM's may lie in the silence behind the end
      if (!trim(segment.text).empty() && segment.begin < seconds)
        cues.push_back({segment.begin, std::min(segment.end, seconds), segment.text});
    if (recognised.segments.empty() && !trim(recognised.nbest[0].text).empty())
      cues.push_back({0, seconds, recognised.nbest[0].text});
    return cues;
  }
  for (const TimedWord& word : words) {
    const bool fits = !cues.empty() && word.end - cues.back().begin <= kCueSeconds &&
                      cues.back().text.size() + 1 + word.text.size() <= kCueCharacters &&
                      word.begin - cues.back().end < 1.0;
    if (!fits) {
      cues.push_back({word.begin, word.end, word.text});
      continue;
    }
    cues.back().text += " " + word.text;
    cues.back().end = word.end;
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

std::string to_ctm(const std::string& file, const std::vector<TimedWord>& words) {
  std::string out;
  const std::string name = std::filesystem::path(file).stem().string();
  if (words.empty()) return fmt::format(";; {}: no words\n", name);  // CTM's comment
  for (const TimedWord& word : words)
    out += fmt::format("{} 1 {:.2f} {:.2f} {}{}\n", name, word.begin,
                       std::max(0.01, word.end - word.begin), word.text,
                       word.confidence ? fmt::format(" {:.2f}", *word.confidence) : "");
  return out;
}

}  // namespace tutti::systems
