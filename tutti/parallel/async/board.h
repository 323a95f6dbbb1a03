// Who does which piece of an asynchronous run, agreed on through a shared folder alone.
//
// Each piece has a chain of entries, one small file each: FOLDER/claims/PIECE.0, PIECE.1, ... An
// entry is created with link(2), which is atomic and exclusive on every file system a cluster
// shares, and never changes; so all workers see one and the same history:
//
//   claim      worker W takes the piece; what it writes to its journal from byte `start` on counts
//   released   W gives the piece back (drain): its journal counts up to byte `cut`
//   done       W has finished it: its journal counts up to `cut`
//   claim      of another worker while W's was open: a takeover; W's journal counts up to `cut`
//
// That is the fence: whatever a worker writes after it lost its claim lies behind the cut and is
// dropped by every reader, and its own "done" cannot be added any more. The last chain is the
// merging of the results, which is claimed like a piece once all pieces are done. Beside a "done"
// lies an empty file PIECE.done, so that one listing of the folder tells what is finished.
//
// Not thread-safe. Internal to the room.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tutti::parallel {

struct ClaimEntry {
  enum class Kind { kClaim, kReleased, kDone };
  Kind kind = Kind::kClaim;
  std::string worker;
  std::uint64_t seq = 0;                 // kClaim: how many the worker had claimed before
  std::uint64_t start = 0;               // kClaim: length of the worker's journal
  std::uint64_t cut = 0;                 // of the journal of the claim before, when it was open
  std::optional<std::uint64_t> suspect;  // the item at which workers of this piece died
  int strikes = 0;

  std::string to_text() const;
  static ClaimEntry from_text(const std::string& text, const std::string& where);
};

class ClaimBoard {
 public:
  using Chain = std::vector<ClaimEntry>;
  ClaimBoard(std::filesystem::path async_folder, std::size_t num_chains);

  // Sees what others have added: one look at the folder. Throws IoError when it is gone.
  void refresh();
  std::size_t num_chains() const noexcept { return lengths_.size(); }
  // Number of entries as of the last refresh (or our own append).
  std::size_t length(std::size_t chain) const { return lengths_[chain]; }
  // The entries as of the last refresh; read from the folder once each.
  const Chain& chain(std::size_t chain);
  bool is_done(std::size_t chain);
  // Has somebody added an entry after ours? Asks the folder.
  bool is_superseded(std::size_t chain, std::size_t epoch) const;
  // Adds entry number `epoch` to a chain; false: somebody else was faster. Throws IoError.
  bool append(std::size_t chain, std::size_t epoch, const ClaimEntry& entry);

 private:
  std::filesystem::path entry_path(std::size_t chain, std::size_t epoch) const;

  const std::filesystem::path folder_;
  std::vector<std::size_t> lengths_;
  std::vector<Chain> chains_;
  std::vector<bool> done_;
};

// Creates `path` with `content` unless it exists; false: it does. No reader ever sees a part of it.
bool create_exclusively(const std::filesystem::path& path, const std::string& content);
// As write_file_atomic but not durable: for what is written twice a second and old after three.
void write_file_quickly(const std::filesystem::path& path, const std::string& content);

}  // namespace tutti::parallel
