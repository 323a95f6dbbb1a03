// Weights wherever they are: a checkpoint folder, a .safetensors or a .pth file, tensor by tensor.
//
//   const auto source = open_weights("exp/checkpoints");        // the newest there
//   write_weights(*source, "model.pth");                        // by the name's ending
//
// Nothing is gathered in memory: at any time one tensor is held (of a .pth file: one storage).
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "tutti/trainer/checkpoint/safetensors.h"

namespace tutti::trainer {

class WeightsSource {
 public:
  virtual ~WeightsSource() = default;
  virtual const TensorSpecs& specs() const = 0;
  virtual at::Tensor read(const std::string& name) const = 0;
  virtual std::string describe()
      const = 0;  // "checkpoint of step 1200, epoch 3, written by 4 ranks"
};

// `path`: a checkpoint (step-...), a folder of checkpoints (the newest whole one), or a file.
// A checkpoint gives what it delivers: with an EMA callback the average. `trained`: the weights that
// training goes on with instead (buffers are the same). Throws IoError, DataError saying what is wrong with it, ConfigError for another kind of file.
std::unique_ptr<WeightsSource> open_weights(const std::filesystem::path& path,
                                            bool trained = false);

// Atomically. Throws IoError; ConfigError unless `path` ends in .safetensors or .pth.
void write_weights(const WeightsSource& source, const std::filesystem::path& path);

}  // namespace tutti::trainer
