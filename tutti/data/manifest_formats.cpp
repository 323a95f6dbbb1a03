// JSONL and TSV manifests: two spellings of the same named fields.
#include <fmt/format.h>

#include <array>
#include <cmath>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/text.h"
#include "tutti/data/io/table_text.h"
#include "tutti/data/manifest.h"

namespace tutti::data {
namespace fs = std::filesystem;
namespace {

enum class Field {
  kId,
  kAudio,
  kText,
  kTextPrev,
  kTextCtc,
  kSpeaker,
  kBegin,
  kEnd,
  kDuration,
  kChannel,
  kNumSamples,
  kOther
};

Field field_of(std::string_view name) {
  struct Name {
    std::string_view name;
    Field field;
  };
  static constexpr std::array kNames = {Name{"id", Field::kId},
                                        Name{"uid", Field::kId},
                                        Name{"utt_id", Field::kId},
                                        Name{"key", Field::kId},
                                        Name{"audio", Field::kAudio},
                                        Name{"audio_path", Field::kAudio},
                                        Name{"audio_filepath", Field::kAudio},  // NeMo's word
                                        Name{"wav", Field::kAudio},
                                        Name{"path", Field::kAudio},
                                        Name{"text", Field::kText},
                                        Name{"text_prev", Field::kTextPrev},
                                        Name{"text_ctc", Field::kTextCtc},
                                        Name{"speaker", Field::kSpeaker},
                                        Name{"begin", Field::kBegin},
                                        Name{"start", Field::kBegin},
                                        Name{"offset", Field::kBegin},
                                        Name{"end", Field::kEnd},
                                        Name{"duration", Field::kDuration},
                                        Name{"channel", Field::kChannel},
                                        Name{"num_samples", Field::kNumSamples}};
  for (const Name& known : kNames)
    if (known.name == name) return known.field;
  return Field::kOther;
}

// The strings of one entry while it is read; ManifestEntry only points.
struct Draft {
  std::string uid, audio, text, text_prev, text_ctc, speaker;
  double begin_s = 0, end_s = -1, duration_s = -1;
  int channel = -1;
  std::uint64_t num_samples = 0;
};

void check_times(Draft& draft, const std::string& where) {
  if (draft.duration_s >= 0) {
    if (draft.end_s >= 0)
      throw DataError(where + ": both 'end' and 'duration'", "give one of them");
    draft.end_s = draft.begin_s + draft.duration_s;
  }
  if (!(draft.begin_s >= 0) || !(draft.begin_s < 1e9) || !(draft.end_s < 1e9) ||
      (draft.end_s >= 0 && draft.end_s <= draft.begin_s))
    throw DataError(fmt::format("{}: got begin {} and end {}, expected 0 <= begin < end (seconds)",
                                where, draft.begin_s, draft.end_s));
}

void add(ManifestWriter& writer, Draft& draft, const std::string& where, const fs::path& root) {
  if (draft.uid.empty()) throw DataError(where + ": no 'id'");
  if (draft.uid.find_first_of(" \t\r\n") != std::string::npos ||
      draft.uid.find('\0') != std::string::npos)
    throw DataError(fmt::format("{}: id '{}' has white space in it", where, draft.uid),
                    "ids become keys of shape files and results; use _ instead");
  check_times(draft, where);
  const bool relative = !draft.audio.empty() && draft.audio.front() != '/' && !root.empty();
  const std::string audio = relative ? (root / draft.audio).string() : draft.audio;
  writer.add({.uid = draft.uid,
              .audio = audio,
              .text = draft.text,
              .speaker = draft.speaker,
              .text_prev = draft.text_prev,
              .text_ctc = draft.text_ctc,
              .begin_s = draft.begin_s,
              .end_s = draft.end_s,
              .channel = draft.channel,
              .num_samples = draft.num_samples});
}

// The whole number in `value` (from JSON or TSV), within [0, limit].
std::uint64_t whole(double value, double limit, const std::string& where, const char* name) {
  if (!(value >= 0 && value <= limit) || value != std::floor(value))
    throw DataError(fmt::format("{}: got {} {}, expected a whole number from 0 to {}", where, name,
                                value, limit));
  return static_cast<std::uint64_t>(value);
}
constexpr double kMaxChannel = 1023;
constexpr double kMaxSamples = 1e15;

// Puts one value where it belongs; `string` and `number` read it, whatever it was written in.
template <class String, class Number>
void take(Draft& draft, Field field, const String& string, const Number& number,
          const std::string& where) {
  switch (field) {
    case Field::kId:
      draft.uid = string();
      break;
    case Field::kAudio:
      draft.audio = string();
      break;
    case Field::kText:
      draft.text = string();
      break;
    case Field::kTextPrev:
      draft.text_prev = string();
      break;
    case Field::kTextCtc:
      draft.text_ctc = string();
      break;
    case Field::kSpeaker:
      draft.speaker = string();
      break;
    case Field::kBegin:
      draft.begin_s = number();
      break;
    case Field::kEnd:
      draft.end_s = number();
      break;
    case Field::kDuration:
      draft.duration_s = number();
      break;
    case Field::kChannel:
      draft.channel = static_cast<int>(whole(number(), kMaxChannel, where, "channel"));
      break;
    case Field::kNumSamples:
      draft.num_samples = whole(number(), kMaxSamples, where, "num_samples");
      break;
    case Field::kOther:
      break;
  }
}

void take_json(Draft& draft, Field field, const Json& value, const std::string& key,
               const std::string& where) {
  const auto string = [&]() -> std::string {
    if (value.is_string()) return value.get<std::string>();
    if (field == Field::kId && value.is_number_integer()) return value.dump();
    throw DataError(
        fmt::format("{}: '{}': got {}, expected text", where, key, to_json_line(value)));
  };
  const auto number = [&]() -> double {
    if (!value.is_number())
      throw DataError(
          fmt::format("{}: '{}': got {}, expected a number", where, key, to_json_line(value)));
    return value.get<double>();
  };
  take(draft, field, string, number, where);
}

void take_text(Draft& draft, Field field, std::string_view value, const std::string& where) {
  take(
      draft, field, [&] { return value; }, [&] { return parse_number(value, where); }, where);
}

// Calls take(line, number) for each line that is not blank; lines lose their CR.
template <class Take>
void for_each_line(std::string_view text, const Take& take) {
  std::size_t number = 0;
  if (text.substr(0, 3) == "\xEF\xBB\xBF") text.remove_prefix(3);
  while (!text.empty()) {
    ++number;
    const std::size_t newline = text.find('\n');
    std::string_view line = text.substr(0, newline);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (!trim(line).empty()) take(line, number);
  }
}

fs::path root_of(const fs::path& file, const fs::path& root) {
  return root.empty() ? file.parent_path() : root;
}

}  // namespace

Manifest parse_jsonl_manifest(std::string_view text, const std::string& name,
                              const fs::path& root) {
  ManifestWriter writer(name, root);
  for_each_line(text, [&](std::string_view line, std::size_t number) {
    const std::string where = fmt::format("{}:{}", name, number);
    const Json object = parse_json(line, where);
    if (!object.is_object()) throw DataError(where + ": expected one JSON object per line");
    Draft draft;
    for (const auto& [key, value] : object.items())
      if (!value.is_null()) take_json(draft, field_of(key), value, key, where);
    add(writer, draft, where, root);
  });
  return std::move(writer).finish();
}

Manifest parse_tsv_manifest(std::string_view text, const std::string& name, const fs::path& root) {
  ManifestWriter writer(name, root);
  std::vector<Field> columns;
  for_each_line(text, [&](std::string_view line, std::size_t number) {
    const std::string where = fmt::format("{}:{}", name, number);
    const auto cells = split(line, '\t');
    if (columns.empty()) {
      bool has_id = false;
      for (const auto& cell : cells) {
        columns.push_back(field_of(trim(cell)));
        has_id |= columns.back() == Field::kId;
      }
      if (!has_id)
        throw DataError(where + ": the header has no 'id' column",
                        "the first line names the columns: id, audio, text, ...");
      return;
    }
    if (cells.size() != columns.size())
      throw DataError(fmt::format("{}: got {} columns, the header has {}", where, cells.size(),
                                  columns.size()));
    Draft draft;
    for (std::size_t i = 0; i < cells.size(); ++i)
      if (!cells[i].empty()) take_text(draft, columns[i], cells[i], where);
    add(writer, draft, where, root);
  });
  return std::move(writer).finish();
}

Manifest read_jsonl_manifest(const fs::path& file, const fs::path& root) {
  return parse_jsonl_manifest(read_file(file), file.string(), root_of(file, root));
}

Manifest read_tsv_manifest(const fs::path& file, const fs::path& root) {
  return parse_tsv_manifest(read_file(file), file.string(), root_of(file, root));
}

}  // namespace tutti::data
