// Autocast's switches by device, whose names differ between versions of libtorch. Thread-local, as
// in torch.
#pragma once

#include <ATen/autocast_mode.h>

#include "tutti/trainer/torch_version.h"

namespace tutti::trainer {

#if TUTTI_TORCH_AT_LEAST(2, 4)
inline bool autocast_on(at::DeviceType device) { return at::autocast::is_autocast_enabled(device); }
inline void set_autocast(at::DeviceType device, bool on) {
  at::autocast::set_autocast_enabled(device, on);
}
inline at::ScalarType autocast_type(at::DeviceType device) {
  return at::autocast::get_autocast_dtype(device);
}
inline void set_autocast_type(at::DeviceType device, at::ScalarType type) {
  at::autocast::set_autocast_dtype(device, type);
}
#else
inline bool autocast_on(at::DeviceType device) {
  return device == at::kCPU ? at::autocast::is_cpu_enabled() : at::autocast::is_enabled();
}
inline void set_autocast(at::DeviceType device, bool on) {
  device == at::kCPU ? at::autocast::set_cpu_enabled(on) : at::autocast::set_enabled(on);
}
inline at::ScalarType autocast_type(at::DeviceType device) {
  return device == at::kCPU ? at::autocast::get_autocast_cpu_dtype()
                            : at::autocast::get_autocast_gpu_dtype();
}
inline void set_autocast_type(at::DeviceType device, at::ScalarType type) {
  device == at::kCPU ? at::autocast::set_autocast_cpu_dtype(type)
                     : at::autocast::set_autocast_gpu_dtype(type);
}
#endif

}  // namespace tutti::trainer
