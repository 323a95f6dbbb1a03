// Corpora that come as a tar archive or as the folder it unpacks to.
//
//   unpack("download/dev-clean.tar.gz", "download");
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/systems/dataset_builder.h"

namespace tutti::systems {

// The folder behind `named` (the source of `create_dataset:`): the folder itself, or DATA_DIR/source with the archive unpacked
// (once: a marker file is written last). Where it is empty or not there, the first of `usual_places` that exists,
// relative to the recipe. `hint` tells the user where the corpus comes from when there is none.
std::filesystem::path unpacked_source(const BuildContext& context, const std::string& named,
                                      std::string_view hint,
                                      const std::vector<std::string>& usual_places = {});

// Unpacks a tar archive, compressed or not, into a folder, with a bar of how far it is. Throws DataError with tar's words.
void unpack(const std::filesystem::path& archive, const std::filesystem::path& folder);

}  // namespace tutti::systems
