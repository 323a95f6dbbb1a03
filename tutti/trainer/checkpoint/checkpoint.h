// One checkpoint: a folder that is whole or absent.
//
// ```text
// step-00001200/
//   model.safetensors       parameters and buffers under their state_dict names
//   optimizer.safetensors   "<optimizer>/<state>/<parameter>"
//   extra.safetensors       random-number state per rank, weights behind an average, ...
//   trainer.json            counters, position, schedules, scaler, callbacks
//   index.json              size and CRC-32C of each file
//   COMPLETE                CRC-32C of index.json; written last
// ```
//
// The same for every strategy and world size: ranks that hold parts write them into the same files
// (shared.h). Written into a temporary folder and renamed.
#pragma once

#include <array>
#include <filesystem>
#include <string>

#include "tutti/core/json.h"
#include "tutti/trainer/checkpoint/safetensors.h"

namespace tutti::trainer {

inline constexpr std::array<const char*, 3> kCheckpointFiles = {
    "model.safetensors", "optimizer.safetensors", "extra.safetensors"};

// Elements start .. start + numel of a flattened tensor of this shape.
struct PartRange {
  std::vector<std::int64_t> shape;
  std::int64_t start = 0;
  std::int64_t numel = 0;
};
using PartRanges = std::map<std::string, PartRange>;

struct Checkpoint {
  TensorMap model;
  TensorMap optimizer;
  TensorMap extra;
  Json trainer = Json::object();
  // Where a rank holds only parts: which of the tensors above are parts, by part_key().
  PartRanges parts;
};

// `file`: 0 model, 1 optimizer, 2 extra.
std::string part_key(std::size_t file, const std::string& name);

// The parameter a tensor belongs to: "optimizer/exp_avg/encoder.weight" -> "encoder.weight". Empty
// for tensors that are never cut: update counts.
std::string parameter_of(const std::string& name);

// Tensors must be on the CPU and must not change meanwhile. Throws IoError; leaves nothing half
// written under `folder`'s name.
void write_checkpoint(const std::filesystem::path& folder, const Checkpoint& checkpoint);

// Reads and checks everything. Throws DataError saying what is wrong with it.
Checkpoint read_checkpoint(const std::filesystem::path& folder);

// Reads only the ranges of `parameters` (by parameter name) and of what belongs to them; other
// tensors whole, and nothing of parameters with an empty range. Does not check checksums: one rank
// calls check_checkpoint for all. Throws DataError if a shape differs.
Checkpoint read_checkpoint_parts(const std::filesystem::path& folder, const PartRanges& parameters);

// Throws DataError unless every file is there and as it was written. Reads everything once, in
// small pieces. Returns what trainer.json holds.
Json check_checkpoint(const std::filesystem::path& folder);

// The checksum of one of its files, as it was written. Throws DataError.
std::uint32_t file_sum(const std::filesystem::path& folder, const std::string& name);

// Copies `from` into the tensors of the model with the same names. Throws DataError listing names
// that are missing, unexpected or of another shape.
void load_tensors(const TensorMap& from, TensorMap to, const std::string& where);

// The mean of several model files, computed in double; whole numbers are taken from the first.
// Tensor by tensor: needs memory for one tensor of one file. Throws DataError if they do not match.
FileSum average_models(const std::vector<std::filesystem::path>& files,
                       const std::filesystem::path& output);

// Pieces of writing a checkpoint, for its writers: where it grows, and the last steps (the index,
// COMPLETE, the rename).
std::filesystem::path temporary_folder(const std::filesystem::path& folder, const std::string& tag);
void seal_checkpoint(const std::filesystem::path& temporary, const std::filesystem::path& folder,
                     const std::map<std::string, FileSum>& files, const Json& trainer);

}  // namespace tutti::trainer
