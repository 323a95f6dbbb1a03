// A .ckpt of Lightning as a checkpoint of ours: weights, optimizer state, epoch and step.
//
// Parameters are numbered there as state_dict lists them; names may carry the prefix under which the
// LightningModule holds the model ("model."). Schedules are functions of the step here, so theirs is
// not needed. A file made in the middle of an epoch gives the epoch's beginning: Lightning's place in
// the data means nothing to another reader of it. No code of the file is run.
#pragma once

#include <filesystem>

#include "tutti/trainer/checkpoint/checkpoint.h"
#include "tutti/trainer/model.h"

namespace tutti::trainer {

struct LightningFile {
  Checkpoint checkpoint;  // trainer holds epoch and step only
  bool inside_epoch = false;
};

// `parameters`, `buffers`: the model's. Throws IoError; DataError naming what does not fit.
LightningFile read_lightning(const std::filesystem::path& path, const NamedTensors& parameters,
                             const NamedTensors& buffers);

}  // namespace tutti::trainer
