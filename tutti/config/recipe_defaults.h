// What a recipe's files start from, so that they need to say only what differs: the values of
// ESPnet3's TEMPLATE recipe.
//
//   Node merged = with_recipe_defaults(FileKind::kTraining, load_merged(options, problems));
//   Node config = resolve(merged, ...);
//
// Maps merge deep, as files do; only where a file names another `_target_` than the default do the
// default's arguments stay away. Pure function of its arguments; nothing is resolved.
#pragma once

#include "tutti/config/check.h"

namespace tutti::config {

Node with_recipe_defaults(FileKind kind, const Node& file);

// Whoever gives one limit of a batch, its size or its bins, means that one: a default beside it would decide
// without a word. It becomes null, as other parts may refer to it.
Node with_own_limits(const Node& config);

// The mark of a value that came from here and not from a user's file.
bool is_recipe_default(const Node& node);

}  // namespace tutti::config
