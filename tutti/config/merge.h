// Laying one config over another, before interpolation.
#pragma once

#include <string>

#include "tutti/config/node.h"
#include "tutti/config/problem.h"

namespace tutti::config {

// Maps merge deep, but a parallel block of another env has its own options; lists and scalars replace; an explicit null
// overrides; a missing overlay changes nothing. Every value keeps the mark of the file it came from.
ValuePtr merge(const ValuePtr& base, const ValuePtr& overlay);

// One command-line override:
//   a.b=c     sets a key that exists (a typo is an error with a suggestion)
//   a.0.b=c   the same inside a list
//   +a.b=c    adds a key that does not exist yet; ++a.b=c sets it either way
//   ~a.b      removes a key that exists
// The value is YAML when it begins with [ { " or ', else the text as it stands. Problems are added,
// and `root` comes back unchanged, when it cannot be applied.
ValuePtr apply_override(const ValuePtr& root, const std::string& text, Problems& problems);

// The mark of what stands in no file.
Mark command_line_mark();

// True for what looks like an override rather than a file name.
bool is_override(const std::string& argument);

// A map (a missing one counts as empty) with a key set or taken away; what stays keeps its place in
// the file for messages.
Node with_key(const Node& map, const std::string& key, const Node& value);
Node with_key(const Node& map, const std::string& key, const std::string& text);  // a quoted text
Node without_key(const Node& map, const std::string& key);

}  // namespace tutti::config
