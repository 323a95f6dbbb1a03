// CUDA graphs in training (`trainer.cuda_graphs`): modules that launch their part of a step as one.
#pragma once

#include "tutti/trainer/model.h"

namespace tutti::trainer {

// A second base of modules that can. They record as shapes come, and compute the same either way.
class Recordable {
 public:
  virtual ~Recordable() = default;
  // With the settings the module has now.
  virtual bool can_record() const = 0;
  // Off at first; turned off, recordings are given up with their memory. REQUIRES: can_record().
  virtual void set_recording(bool on) = 0;
};

// All modules of the model that can. Returns whether there is one.
bool set_recording(TrainableModel& model, bool on);

}  // namespace tutti::trainer
