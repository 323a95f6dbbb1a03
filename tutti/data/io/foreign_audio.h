// Sound and video that libsndfile does not read, by its first bytes: people are told its name and the
// command that converts it.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace tutti::data {

inline constexpr std::size_t kForeignHead = 16;  // bytes that tell

// "MPEG-4 (m4a, mp4)"; empty: none that is known.
std::string foreign_format(std::string_view head);
// By the name alone, for lists of files.
bool has_foreign_name(const std::filesystem::path& file);
// "ffmpeg -i talk.m4a talk.wav"; of a name that is no file: with FILE.
std::string conversion_of(const std::string& name);

}  // namespace tutti::data
