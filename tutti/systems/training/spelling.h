// Whether a model that comes from elsewhere (init_param) has tokens for the text it is to learn.
//
// What it cannot spell becomes <unk>, and it learns to say that: upper case for a model of lower case, other
// punctuation, another script. Torch-free.
#pragma once

#include "tutti/config/node.h"
#include "tutti/data/dataset.h"

namespace tutti::systems {

// Looks at 1,000 utterances at most, evenly over the dataset. Warns when some have what cannot be spelled; throws
// DataError when that is more than half of all letters.
void check_spelling(const config::Node& training, const data::Dataset& dataset);

}  // namespace tutti::systems
