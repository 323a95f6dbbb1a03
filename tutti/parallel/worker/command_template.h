// A command with places for the item, as `tutti map` takes it:
//
//   {}        the item                     {.}   without its extension
//   {/}       its last part ("c.wav")      {//}  its folder ("a/b", or ".")
//   {/.}      last part, no extension      {index}  its number
//
//   CommandTemplate decode({"./decode.sh", "{}"}, false);
//   Command command = decode.for_item("a/b/c.wav", 7);
//
// Several words are a program and its arguments; no shell sees them. One word with white space in it
// is a line for /bin/sh, and so is the text after `sh -c` (bash, dash, ksh, zsh) among words. An item
// never becomes shell text: there a place turns into a reference to an environment variable, inside
// whatever quotes the user wrote, and the shell itself puts the bytes in when it has long been done
// with reading the line. Where no reference can stand (arithmetic, a script in a script in double
// quotes, what ssh, su, flock or watch give to another shell, ...) the template is refused. Numbers
// go the same way, but arithmetic may have them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/subprocess.h"

namespace tutti::parallel {

class CommandTemplate {
 public:
  // Throws ConfigError where a place cannot be filled safely.
  CommandTemplate(std::vector<std::string> words, bool items_are_numbers);
  // argv and env. REQUIRES: no NUL in the item.
  Command for_item(std::string_view item, std::uint64_t index) const;
  // The command for people: as the user typed it, with the item where no shell reads it.
  std::string describe(std::string_view item, std::uint64_t index) const;

 private:
  std::vector<std::string> typed_;  // by the user
  std::vector<std::string> words_;
  std::vector<bool> is_script_;              // per word: references in place of the item
  std::vector<std::string_view> variables_;  // that its scripts refer to
};

// Whether the words have a place, or name one of the variables that for_item sets.
bool uses_item(const std::vector<std::string>& words);

// The template of one shell line with its places as references: "cp {} x" -> `cp "${TUTTI_ITEM?}" x`.
// Adds the names of the variables to `variables`.
// `numbers`: all items are; then they may be evaluated.
std::string with_references(std::string_view line, std::vector<std::string_view>& variables,
                            bool numbers = false);

}  // namespace tutti::parallel
