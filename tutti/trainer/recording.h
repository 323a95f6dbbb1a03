// CUDA graphs in training (`trainer.cuda_graphs`): modules that launch their part of a step as one.
#pragma once

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

}  // namespace tutti::trainer
