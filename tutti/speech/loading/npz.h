// NumPy's .npz archives, as numpy.savez writes them: feature statistics travel in these.
//
//   auto stats = read_npz("exp/stats/train/feats_stats.npz");   // count, sum, sum_square
//   write_npz("feats_stats.npz", {{"count", count}, {"sum", sum}, {"sum_square", squares}});
//
// Arrays become CPU tensors of the same type (float32/64, int32/64, uint8, bool). Compressed
// archives (numpy.savez_compressed) are refused with a hint. What a file says about itself is not
// trusted: every size is checked. Throws IoError, or DataError naming file and array.
#pragma once

#include <torch/types.h>

#include <filesystem>
#include <map>
#include <string>

namespace tutti::speech {

std::map<std::string, torch::Tensor> read_npz(const std::filesystem::path& path);
// Atomic: a reader sees the old file or the new one.
void write_npz(const std::filesystem::path& path,
               const std::map<std::string, torch::Tensor>& arrays);

}  // namespace tutti::speech
