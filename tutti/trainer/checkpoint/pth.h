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
#include <memory>

#include "tutti/trainer/checkpoint/safetensors.h"

namespace tutti::trainer {

// All tensors of the file by their path through dicts and lists; a top-level "state_dict", "model"
// or "module" that holds all of them is left out of the names. Throws IoError, or DataError saying
// what in the file is not weights.
TensorMap read_pth(const std::filesystem::path& path);

// The same by parts: names and shapes at once, a tensor's data when it is asked for.
class PthFile {
 public:
  explicit PthFile(const std::filesystem::path& path);
  ~PthFile();
  const TensorSpecs& specs() const { return specs_; }
  at::Tensor read(const std::string& name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  TensorSpecs specs_;
};

// Everything in the file, numbers and texts too.
struct PickleValue;
std::shared_ptr<PickleValue> read_pickle(const std::filesystem::path& path);

// Written atomically, as an ordered dict of tensors; `load` gives each on the CPU when its turn
// comes.
void stream_pth(const std::filesystem::path& path, const TensorSpecs& specs,
                const std::function<at::Tensor(const std::string& name)>& load);
void write_pth(const std::filesystem::path& path, const TensorMap& tensors);

}  // namespace tutti::trainer
