// The items of a `tutti map`, wherever they come from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/json.h"

namespace tutti::apps {

// Read once (a list may come from a pipe) and handed to the workers as a file of the run's own, so
// that nobody can change the list under a running job.
class MapItems {
 public:
  static MapItems numbers(std::uint64_t count);
  static MapItems list(const std::vector<std::string>& items);
  // One item per line that is not empty, or per NUL byte. Throws IoError, DataError (an item that no
  // command can take).
  static MapItems file(const std::filesystem::path& path, bool nul_separated);
  static MapItems standard_input(bool nul_separated);

  std::uint64_t size() const noexcept { return count_; }
  bool are_numbers() const noexcept { return numbers_; }
  // For the user, who may count lines: where the first of them is. Empty: there are none.
  std::string about_blank_lines() const;
  Json name(std::uint64_t index) const;  // as results.jsonl has it
  Json fingerprint() const { return fingerprint_of_first(count_); }
  // As if the list had ended there. REQUIRES: it is not shorter.
  Json fingerprint_of_first(std::uint64_t count) const;
  // How this list differs from the one that a run keeps in its folder: both counts, and the first item that is
  // another. Empty: that is not known there.
  std::string difference_to(const std::filesystem::path& run_folder,
                            std::uint64_t count_there) const;
  // All of them, for hosts that may not see the run's folder; null when they are numbers, or more than
  // should travel with each job.
  Json to_ship() const;
  // Into the folder of a run; the path for the workers, empty when the items are numbers.
  std::filesystem::path write(const std::filesystem::path& run_folder) const;

 private:
  void take(std::string text, const std::string& where, bool nul_separated);

  std::uint64_t count_ = 0;
  bool numbers_ = false;
  std::string text_;
  std::vector<std::string_view> items_;  // in text_
  std::uint64_t num_blank_ = 0;          // lines without an item
  std::string blank_;                    // where the first of them is
};

}  // namespace tutti::apps
