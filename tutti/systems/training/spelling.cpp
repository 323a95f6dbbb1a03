#include "tutti/systems/training/spelling.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/speech/text/cleaners.h"
#include "tutti/speech/text/utf8.h"
#include "tutti/systems/models/s2t_preprocess.h"
#include "tutti/systems/models/task_settings.h"
#include "tutti/systems/preprocess.h"
#include "tutti/systems/preprocessor_settings.h"

namespace tutti::systems {
namespace {

constexpr std::size_t kLookedAt = 1000;
constexpr double kMostUnknown = 0.5;  // of all letters
constexpr std::size_t kExamples = 5;
constexpr std::string_view kWordBegins = "\u2581";

struct Spelled {
  std::size_t utterances = 0, with_unknown = 0;
  std::size_t letters = 0, unknown = 0;
  std::vector<std::string> examples;

  double share() const {
    return letters == 0 ? 0 : static_cast<double>(unknown) / static_cast<double>(letters);
  }
};

void count(const speech::TextCodec& codec, const std::string& text, Spelled& out) {
  const speech::TextCodec::Encoded encoded = codec.encode(text);
  const int unknown_id = codec.tokens().find(speech::kUnknown);
  bool is_spelled = true;
  for (std::size_t k = 0; k < encoded.ids.size(); ++k) {
    std::string piece = encoded.pieces[k];
    const bool is_unknown = encoded.ids[k] == unknown_id;
    if (!is_unknown && speech::is_owsm_mark(piece)) continue;  // <space>, <eng>: no letters
    if (piece.starts_with(kWordBegins)) piece.erase(0, kWordBegins.size());
    const std::size_t letters = speech::to_utf32(piece).size();
    out.letters += letters;
    if (!is_unknown) continue;
    is_spelled = false;
    out.unknown += letters;
    piece = fmt::format("'{}'", piece);
    if (out.examples.size() < kExamples &&
        std::find(out.examples.begin(), out.examples.end(), piece) == out.examples.end())
      out.examples.push_back(piece);
  }
  ++out.utterances;
  if (!is_spelled) ++out.with_unknown;
}

}  // namespace

void check_spelling(const config::Node& training, const data::Dataset& dataset) {
  config::Problems problems;
  const TextSettings settings = read_text_settings(training, problems);
  problems.throw_if_any();
  const speech::TextCodec codec = make_codec(training);
  const speech::TextCleaner clean(settings.preprocessor.text_cleaner);
  Spelled as_written, as_upper, as_lower;
  const std::size_t number = std::min(kLookedAt, dataset.size());
  for (std::size_t i = 0; i < number; ++i) {
    std::string text = dataset.text(i * dataset.size() / number);
    if (is_s2t(training))
      text = with_marks_apart(text, codec.tokens(), settings.token_type == "word");
    text = clean(text);
    count(codec, text, as_written);
    count(codec, speech::to_upper(text), as_upper);
    count(codec, speech::to_lower(text), as_lower);
  }
  if (as_written.with_unknown == 0) return;
  const bool is_refused = as_written.share() > kMostUnknown;
  const std::string what = fmt::format(
      "dataset.train: {} of {} utterances have what the model cannot spell, e.g. {}; {:.0f} % of "
      "all letters become <unk>{}",
      as_written.with_unknown, as_written.utterances, join(as_written.examples, ", "),
      std::max(1.0, 100 * as_written.share()), is_refused ? ", expected at most half" : "");
  std::string fix =
      "write the text as that of the model, by dataset.preprocessor.text_cleaner or in the data";
  if (as_upper.share() < as_written.share() / 2)
    fix = "dataset.preprocessor.text_cleaner=upper writes it as the model's text is";
  else if (as_lower.share() < as_written.share() / 2)
    fix = "dataset.preprocessor.text_cleaner=lower writes it as the model's text is";
  if (is_refused) throw DataError(what, fix);
  log::warning("{}; {}", what, fix);
}

}  // namespace tutti::systems
