// The config reference in docs/, made from the schemas so that it cannot go stale.
#pragma once

#include <string>
#include <vector>

#include "tutti/config/registry.h"

namespace tutti::config {

// The text of docs/config-reference.md, with the blocks that other rooms read; a test compares the
// two.
std::string reference_markdown(const Catalogue& catalogue,
                               const std::vector<SchemaInfo>& other_rooms);

}  // namespace tutti::config
