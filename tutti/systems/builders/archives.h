// Corpora that come as a tar archive or as the folder it unpacks to.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/systems/dataset_builder.h"

namespace tutti::systems {

// The folder behind `create_dataset.source` (or `source_dir`, ESPnet3's name): the folder itself,
// or DATA_DIR/source with the archive unpacked (once: a marker file is written last). Without the
// key, the first of `usual_places` that exists, relative to the recipe. `hint` tells the user where
// the corpus comes from when there is none.
std::filesystem::path unpacked_source(const BuildContext& context, std::string_view hint,
                                      const std::vector<std::string>& usual_places = {});

}  // namespace tutti::systems
