// The config reference in docs/, made from the schemas so that it cannot go stale.
#pragma once

#include <string>

namespace tutti::config {

// The text of docs/config-reference.md; a test compares the two.
std::string reference_markdown();

}  // namespace tutti::config
