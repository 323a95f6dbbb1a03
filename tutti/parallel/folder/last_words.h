// What a process on its way out can still say where nothing new can be written: on a full disk, or in a folder that was
// renamed under it. It writes over a file that is there, in the blocks that it has. Internal to the room.
//
//   LastWords words(folder / ".tutti" / "last_words");
//   ... words.say("cannot write ...: No space left on device");
#pragma once

#include <filesystem>
#include <string>

#include "tutti/core/file.h"

namespace tutti::parallel {

class LastWords {
 public:
  // The file need not be there yet; its folder must be. Throws IoError.
  explicit LastWords(const std::filesystem::path& file);
  // Text up to this size fits wherever a file has a block.
  static constexpr std::size_t kRoom = 4096;
  // Replaces what the file says, with blanks behind it where that was longer. Not atomic. False: nothing
  // was written, as the file is gone or has no room.
  bool say(std::string text) const noexcept;

 private:
  std::string name_;
  UniqueFd folder_;  // found again wherever it has gone
};

// The first line, short enough for words that must fit: as reasons are kept.
std::string first_line(std::string_view text);

}  // namespace tutti::parallel
