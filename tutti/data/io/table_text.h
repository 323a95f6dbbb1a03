// The text tables of Kaldi and ESPnet: `<key> <value>` per line (wav.scp, text, utt2spk), and
// `segments` (`<utt> <recording> <begin s> <end s>`).
//
//   for_each_row(text, "data/train/wav.scp", [](const Row& row) { use(row.key, row.value); });
//
// Keys end at the first white space; the value is the rest of the line without surrounding white
// space (it may be empty). Lines of white space only are skipped; CRLF is accepted. Bytes that
// cannot be in such a file (NUL) are a DataError with file:line.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace tutti::data {

struct Row {
  std::string_view key;
  std::string_view value;
  std::size_t line = 0;  // from 1
};

void for_each_row(std::string_view text, const std::string& file,
                  const std::function<void(const Row&)>& take);

struct Segment {
  std::string_view recording;
  double begin_s = 0;
  double end_s = -1;  // -1: to the end of the recording
};
// Reads the value of a `segments` row. Throws DataError with file:line.
Segment parse_segment(const Row& row, const std::string& file);

// A whole number, digits only. Throws DataError "WHERE: got 'x', expected ..." .
std::uint64_t parse_count(std::string_view text, const std::string& where);
double parse_number(std::string_view text, const std::string& where);

}  // namespace tutti::data
