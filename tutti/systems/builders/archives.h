// Corpora that come as a tar archive or as the folder it unpacks to.
#pragma once

#include <filesystem>
#include <string_view>

#include "tutti/systems/dataset_builder.h"

namespace tutti::systems {

// The folder behind `create_dataset.source` (or `source_dir`, ESPnet3's name): the folder itself,
// or DATA_DIR/source with the archive unpacked (once: a marker file is written last). `hint` tells
// the user where the corpus comes from when the key is missing.
std::filesystem::path unpacked_source(const BuildContext& context, std::string_view hint);

}  // namespace tutti::systems
