// One checkpoint: a folder that is whole or absent.
//
//   step-00001200/
//     model.safetensors       parameters and buffers under their state_dict names
//     optimizer.safetensors   "<optimizer>/<state>/<parameter>"
//     extra.safetensors       random-number state per rank, EMA weights, ...
//     trainer.json            counters, position, schedules, scaler, callbacks
//     index.json              size and CRC-32C of each file
//     COMPLETE                CRC-32C of index.json; written last
//
// The same for every strategy and world size. Written into a temporary folder and renamed.
#pragma once

#include <filesystem>
#include <string>

#include "tutti/core/json.h"
#include "tutti/trainer/checkpoint/safetensors.h"

namespace tutti::trainer {

struct Checkpoint {
  TensorMap model;
  TensorMap optimizer;
  TensorMap extra;
  Json trainer = Json::object();
};

// Tensors must be on the CPU and must not change meanwhile. Throws IoError; leaves nothing half
// written under `folder`'s name.
void write_checkpoint(const std::filesystem::path& folder, const Checkpoint& checkpoint);

// Reads and checks everything. Throws DataError saying what is wrong with it.
Checkpoint read_checkpoint(const std::filesystem::path& folder);

// Copies `from` into the tensors of the model with the same names. Throws DataError listing names
// that are missing, unexpected or of another shape.
void load_tensors(const TensorMap& from, TensorMap to, const std::string& where);

// The mean of several model files, computed in double; whole numbers are taken from the first.
TensorMap average_models(const std::vector<std::filesystem::path>& files);

}  // namespace tutti::trainer
