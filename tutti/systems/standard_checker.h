// The checker with every room's own blocks: what `config check` and the stages refuse is the same. Torch-free.
#pragma once

#include "tutti/config/check.h"

namespace tutti::systems {

config::FileChecker standard_checker();

// The tables of every room's own blocks, for the reference in docs/.
std::vector<config::SchemaInfo> reference_tables();

}  // namespace tutti::systems
