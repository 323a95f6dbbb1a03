// The layout of a packed model: everything decoding needs, with paths relative to the folder.
#pragma once

#include <array>
#include <string>

namespace tutti::systems {

inline constexpr const char* kPackedConfig = "config.yaml";
inline constexpr const char* kPackedWeights = "model.safetensors";
// The keys of the recogniser that its error rates came from; absent when it was never decoded.
inline constexpr const char* kPackedDecoding = "decoding.yaml";

// Beside metrics.json: the weights behind the results of each test set, as their fingerprint had them.
// A pack shows only error rates of the weights in it.
inline constexpr const char* kMeasuredWeights = "measured_weights.json";

// Keys of the config that name files of the pack, as JSON pointers.
inline std::array<std::string, 4> packed_paths() {
  return {"/model/token_list", "/model/normalize_conf/stats_file",
          "/dataset/preprocessor/token_list", "/dataset/preprocessor/bpemodel"};
}

}  // namespace tutti::systems
