// Training any TorchScript file: `model: {_target_: torchscript, path: model.pt, loss: ...}`.
//
// The file's forward takes the batch's tensors named in `inputs`, in that order. What it returns is
// decided by `loss`:
//   output            forward returns the loss, or a tuple (loss, stats dict, weight)
//   cross_entropy, mse, l1, bce_with_logits, nll, ctc
//                     forward returns the prediction, or (prediction, lengths); `target` names the
//                     batch's tensor
//
// So a model scripted in Python trains here without writing C++.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tutti/trainer/model.h"

namespace tutti::trainer {

struct TorchScriptOptions {
  std::filesystem::path path;
  std::string loss = "output";
  std::vector<std::string> inputs = {"x"};  // names in the batch
  std::string target = "y";                 // name in the batch
  // ctc: names of lengths in the batch; the prediction is log-probabilities (B, T, V). Where forward
  // returns no lengths, those of the input are scaled to its T frames.
  std::string input_lengths = "x_lengths";
  std::string target_lengths = "y_lengths";
};

// Throws IoError if the file cannot be read, ConfigError for an unknown loss.
std::unique_ptr<TrainableModel> make_torchscript_model(const TorchScriptOptions& options);

}  // namespace tutti::trainer
