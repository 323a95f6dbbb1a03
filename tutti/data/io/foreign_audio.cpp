#include "tutti/data/io/foreign_audio.h"

#include <algorithm>
#include <cctype>

#include "tutti/core/text.h"

namespace tutti::data {
namespace fs = std::filesystem;
using namespace std::string_view_literals;  // bytes may be 0

std::string foreign_format(std::string_view head) {
  struct Row {
    std::size_t offset;
    std::string_view bytes;
    const char* name;
  };
  static constexpr Row kRows[] = {{4, "ftyp"sv, "MPEG-4 (m4a, mp4)"},
                                  {0, "\xff\xf1"sv, "AAC"},
                                  {0, "\xff\xf9"sv, "AAC"},
                                  {0, "ADIF"sv, "AAC"},
                                  {0, "\x30\x26\xb2\x75\x8e\x66\xcf\x11"sv, "Windows Media (wma)"},
                                  {0, "\x1a\x45\xdf\xa3"sv, "Matroska (webm, mkv)"},
                                  {0, "#!AMR"sv, "AMR"},
                                  {0, "\x0b\x77"sv, "AC-3"},
                                  {0, "wvpk"sv, "WavPack (wv)"},
                                  {8, "AVI "sv, "AVI"}};
  for (const Row& row : kRows)
    if (head.size() >= row.offset && head.substr(row.offset).starts_with(row.bytes))
      return row.name;
  return {};
}

bool has_foreign_name(const fs::path& file) {
  std::string extension = file.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  static constexpr std::string_view kNames[] = {".m4a", ".mp4", ".m4b",  ".mov", ".3gp",
                                                ".aac", ".wma", ".webm", ".mkv", ".amr",
                                                ".ac3", ".wv",  ".avi"};
  return std::find(std::begin(kNames), std::end(kNames), extension) != std::end(kNames);
}

std::string conversion_of(const std::string& name) {
  std::error_code unreadable;
  const fs::path file = fs::is_regular_file(name, unreadable) ? fs::path(name) : fs::path("FILE");
  fs::path wav = file;
  return "ffmpeg -i " + shell_quote(file.string()) + " " +
         shell_quote(wav.replace_extension(".wav").string());
}

}  // namespace tutti::data
