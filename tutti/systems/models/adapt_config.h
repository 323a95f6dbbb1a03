// adapt.yaml of a pack: a training config that begins with the pack's weights, so that
//
//   tutti train --config PACK/adapt.yaml
//
// adapts the model to the recordings of train.jsonl and valid.jsonl in the working folder. Torch-free.
#pragma once

#include <string>

#include "tutti/core/json.h"

namespace tutti::systems {

inline constexpr const char* kPackedAdapt = "adapt.yaml";

// `config` is the pack's own, whose files lie beside it. Empty for a task that is not trained here.
std::string adapt_config(const Json& config);

}  // namespace tutti::systems
