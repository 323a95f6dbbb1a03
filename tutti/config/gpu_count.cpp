#include "tutti/config/gpu_count.h"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "tutti/core/text.h"

namespace tutti::config {
namespace {
namespace fs = std::filesystem;

bool is_number(std::string_view word) {
  return !word.empty() &&
         std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c); });
}

int count_by_driver() {
  std::error_code error;
  int count = 0;
  for (fs::directory_iterator it("/proc/driver/nvidia/gpus", error), end; !error && it != end;
       it.increment(error))
    ++count;
  return count;
}

int count_by_nvml() {
  void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return -1;
  const auto start = reinterpret_cast<int (*)()>(::dlsym(library, "nvmlInit_v2"));
  const auto count_devices =
      reinterpret_cast<int (*)(unsigned*)>(::dlsym(library, "nvmlDeviceGetCount_v2"));
  const auto stop = reinterpret_cast<int (*)()>(::dlsym(library, "nvmlShutdown"));
  int result = -1;
  unsigned count = 0;
  if (start && count_devices && stop && start() == 0) {
    if (count_devices(&count) == 0) result = static_cast<int>(count);
    stop();
  }
  ::dlclose(library);
  return result;
}

}  // namespace

int count_device_files(const fs::path& dev) {
  std::error_code error;
  int count = 0;
  for (fs::directory_iterator it(dev, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const std::string_view number =
        std::string_view(name).substr(std::min<std::size_t>(6, name.size()));
    count += name.starts_with("nvidia") && is_number(number) ? 1 : 0;
  }
  return count;
}

int count_installed_gpus() {
  if (const int count = count_device_files("/dev"); count > 0) return count;
  if (const int count = count_by_driver(); count > 0) return count;
  return count_by_nvml();
}

int count_devices_in_list(const std::string& list) {
  int count = 0;
  for (const auto& entry : split(list, ',')) {
    const std::string_view word = trim(entry);
    if (!is_number(word) && !word.starts_with("GPU-") && !word.starts_with("MIG-")) break;
    ++count;
  }
  return count;
}

int count_visible_gpus() {
  if (const char* list = std::getenv("CUDA_VISIBLE_DEVICES")) return count_devices_in_list(list);
  return std::max(0, count_installed_gpus());
}

}  // namespace tutti::config
