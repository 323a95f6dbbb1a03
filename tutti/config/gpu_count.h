// How many GPUs a program started here would see, without linking CUDA.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace tutti::config {

// CUDA_VISIBLE_DEVICES when set (as CUDA reads it: up to the first bad entry), else what
// count_installed_gpus() says, else 0. Takes no GPU and starts no CUDA context.
int count_visible_gpus();

// GPUs of this machine or container, whatever is visible: their device files, else the driver's list,
// else NVML if it can be loaded; -1: no driver here.
int count_installed_gpus();

// nvidia0, nvidia3, ... in `dev`. In a container they are those it was given, while the driver lists
// all of the host's.
int count_device_files(const std::filesystem::path& dev);

// The number of devices a value of CUDA_VISIBLE_DEVICES names.
int count_devices_in_list(const std::string& list);

using GpuCounter = std::function<int()>;

}  // namespace tutti::config
