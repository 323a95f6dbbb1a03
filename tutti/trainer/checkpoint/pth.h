// PyTorch's .pth files without Python: state dicts, weights only.
//
// The reader is a small pickle machine that knows tensors, numbers, texts, lists and dicts and
// nothing else: a file that names any other class is refused, so no code of the file ever runs. The
// writer makes what torch.load(weights_only=True) accepts.
//
//   TensorMap weights = read_pth("valid.acc.ave_10best.pth");   // nested dicts become "a.b.c"
//   names
#pragma once

#include <filesystem>

#include "tutti/trainer/checkpoint/safetensors.h"

namespace tutti::trainer {

// All tensors of the file by their path through dicts and lists; a top-level "state_dict", "model"
// or "module" that holds all of them is left out of the names. Throws IoError, or DataError saying
// what in the file is not weights.
TensorMap read_pth(const std::filesystem::path& path);

// Written atomically, as an ordered dict of tensors. Tensors must be on the CPU.
void write_pth(const std::filesystem::path& path, const TensorMap& tensors);

}  // namespace tutti::trainer
