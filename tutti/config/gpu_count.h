// How many GPUs a program started here would see, without linking CUDA.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace tutti::config {

// CUDA_VISIBLE_DEVICES when set (as CUDA reads it: up to the first bad entry), else the driver's
// list, else NVML if it can be loaded, else 0. Takes no GPU and starts no CUDA context.
int count_visible_gpus();

// GPUs the driver knows, whatever is visible; -1: no driver on this machine.
int count_installed_gpus();

// The number of devices a value of CUDA_VISIBLE_DEVICES names.
int count_devices_in_list(const std::string& list);

using GpuCounter = std::function<int()>;

}  // namespace tutti::config
