// The ranks' output, line by line: prefixed, never mixed within a line, and with the last lines
// kept for the report at the end. Internal to the agent. Not thread-safe.
#pragma once

#include <deque>
#include <string>
#include <string_view>

#include "tutti/core/file.h"

namespace tutti::launch {

// One pipe from a rank to one of our own descriptors.
class LinePump {
 public:
  // `prefix` goes before every line; `target_fd` is 1 or 2.
  LinePump(std::string prefix, int target_fd);

  // Makes the pipe; the rank gets the returned end.
  UniqueFd open();
  int fd() const noexcept { return pipe_.get(); }
  // Passes on what has come. False: the rank and all its children have closed their end.
  bool pump();
  // The unfinished line too; closes our end.
  void finish();
  // The last lines, without prefix.
  std::string tail() const;

 private:
  void emit(std::string_view line);

  std::string prefix_;
  int target_fd_;
  bool terminal_;
  UniqueFd pipe_;
  std::string partial_;
  std::deque<std::string> last_;
};

}  // namespace tutti::launch
