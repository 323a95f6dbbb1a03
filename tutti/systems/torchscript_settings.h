// `model: {_target_: torchscript, ...}`: the keys that training and inference read.
#pragma once

#include <string>
#include <vector>

#include "tutti/config/schema.h"

namespace tutti::systems {

struct TorchScriptSettings {
  std::string path;
  std::string method = "forward";  // inference only; training calls forward
  std::string device = "auto";
  int sample_rate = 16000;  // Hz
  // Names in the batch: speech, speech_lengths, text, text_lengths.
  std::vector<std::string> inputs = {"speech", "speech_lengths"};
  // ---- inference
  std::string decode = "none";  // ctc | label | none
  std::string token_list;       // what decode turns ids into
  std::string token_type = "char";
  std::string weights;               // over those in the file: what training here left
  std::vector<std::string> outputs;  // names for returned tensors that become fields
  // ---- training (trainer/torchscript_model.h)
  std::string loss = "output";
  std::string target = "text";
  std::string input_lengths = "speech_lengths";
  std::string target_lengths = "text_lengths";
};

config::Schema<TorchScriptSettings> torchscript_schema();
// Throws ConfigError with every problem.
TorchScriptSettings read_torchscript(const config::Node& model);

}  // namespace tutti::systems
