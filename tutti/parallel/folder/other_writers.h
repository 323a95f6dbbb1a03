// Asynchronous workers, as the folder that they write to sees them: whose records count, whether it
// may be opened, how it is taken over. The folder says what it needs; async/ knows claims and
// heartbeats, and implements it. Internal to the room.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tutti/parallel/folder/journal.h"

namespace tutti::parallel {

// Which records of the workers' journals count (async/board.h).
class AsyncFence {
 public:
  // Empty when the folder has no asynchronous run.
  static std::optional<AsyncFence> load(const std::filesystem::path& output_folder);
  // `journal` is the file's stem, "async-NAME".
  bool accepts(const std::string& journal, std::uint64_t index, std::uint64_t offset) const;

 private:
  struct Span {
    std::string journal;
    std::uint64_t start = 0;
    std::uint64_t cut = 0;
  };
  std::vector<std::uint32_t> piece_of_;      // by index; 0: none
  std::vector<std::vector<Span>> accepted_;  // by piece
};

// Takes what an asynchronous run has done into `journal` and removes the rest of it. Throws IoError
// when its workers are alive. REQUIRES: the folder's lock is held.
void absorb_async(const std::filesystem::path& output_folder, std::uint64_t fingerprint_hash,
                  JournalWriter& journal);
// Throws IoError when workers of an asynchronous run are at work in the folder or waiting to be.
void refuse_if_async_alive(const std::filesystem::path& output_folder);
// Forgets an asynchronous run: its claims, then its journals.
void remove_async(const std::filesystem::path& output_folder);

}  // namespace tutti::parallel
