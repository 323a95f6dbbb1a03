// env: local_gpu. One worker per visible GPU of this machine; found through NVML without linking
// CUDA.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "tutti/config/gpu_count.h"
#include "tutti/core/error.h"
#include "tutti/parallel/backends/local.h"

namespace tutti::parallel {
namespace {

using config::Node;
using config::Problems;

bool is_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
}

// The devices as CUDA_VISIBLE_DEVICES would name them: from the option, the environment, or NVML.
std::vector<std::string> visible_devices(const Node& option) {
  std::vector<std::string> names;
  if (option.is_list()) {
    for (const Node& element : option.elements()) names.push_back(element.raw());
    return names;
  }
  const char* inherited = std::getenv("CUDA_VISIBLE_DEVICES");
  if (option.is_scalar() || inherited != nullptr) {
    for (const std::string& name :
         split(option.is_scalar() ? option.raw() : std::string(inherited), ','))
      if (!trim(name).empty()) names.emplace_back(trim(name));
    return names;
  }
  for (int i = 0; i < config::count_installed_gpus(); ++i) names.push_back(std::to_string(i));
  return names;
}

config::Schema<LocalOptions> gpu_schema() {
  auto schema = local_schema("local_gpu");
  schema.field("CUDA_VISIBLE_DEVICES", &LocalOptions::cuda_visible_devices,
               "GPUs to use: numbers, GPU- or MIG- UUIDs; null: the environment's, else all");
  schema.field("device_memory_limit", &LocalOptions::device_memory_limit,
               "accepted for Dask's sake, not enforced");
  return schema;
}

// Each worker gets the whole list, rotated so that its own device comes first.
class LocalGpuBackend final : public LocalBackend {
 public:
  LocalGpuBackend(const ParallelSettings& settings, const WorkerLaunch& launch)
      : LocalBackend(settings, launch) {
    Problems ignored;  // parse_parallel has reported them
    options_ = gpu_schema().parse(drop_options_without_meaning(settings.options, ignored), ignored);
    devices_ = visible_devices(options_.cuda_visible_devices);
    if (devices_.empty())
      throw ConfigError("env: local_gpu, but no GPU is visible on this machine",
                        "use env: local, or check nvidia-smi and CUDA_VISIBLE_DEVICES");
  }

 protected:
  std::map<std::string, std::string> worker_env(int slot) const override {
    auto env = LocalBackend::worker_env(slot);
    std::vector<std::string> rotated = devices_;
    if (!rotated.empty())
      std::rotate(rotated.begin(), rotated.begin() + slot % static_cast<int>(rotated.size()),
                  rotated.end());
    env["CUDA_VISIBLE_DEVICES"] = join(rotated, ",");
    env.try_emplace("CUDA_DEVICE_ORDER",
                    "PCI_BUS_ID");  // so that numbers mean what nvidia-smi shows
    return env;
  }

 private:
  std::vector<std::string> devices_;
};

}  // namespace

void check_local_gpu(const ParallelSettings& settings, const Node& block, Problems& problems) {
  const LocalOptions options =
      gpu_schema().parse(drop_options_without_meaning(settings.options, problems), problems);
  if (!options.processes)
    problems.add(settings.options["processes"], "local_gpu needs one process per GPU",
                 "remove processes: false");
  if (!options.device_memory_limit.is_null())
    problems.warn(settings.options["device_memory_limit"],
                  "device memory is not limited or spilled here", "remove it");
  const std::vector<std::string> devices = visible_devices(options.cuda_visible_devices);
  const int known = config::count_installed_gpus();
  for (const std::string& name : devices) {
    const Node where =
        options.cuda_visible_devices.defined() ? options.cuda_visible_devices : block;
    const bool uuid = name.rfind("GPU-", 0) == 0 || name.rfind("MIG-", 0) == 0;
    if (!uuid && !is_number(name))
      problems.add(where, "CUDA_VISIBLE_DEVICES: got '" + name +
                              "', expected a number, GPU-UUID or MIG-UUID");
    else if (!uuid && known >= 0 && std::atoi(name.c_str()) >= known)
      problems.add(where, fmt::format("CUDA_VISIBLE_DEVICES: got {}, but this machine has {} GPUs",
                                      name, known));
    if (std::count(devices.begin(), devices.end(), name) > 1)
      problems.add(where, "CUDA_VISIBLE_DEVICES names " + name + " twice");
  }
  const int count = static_cast<int>(devices.size());
  const Node where = block["n_workers"].defined() ? block["n_workers"] : block;
  // No GPU at all is no mistake of the file, which may be checked on a login node; a run says so
  // when it makes the backend.
  if (count == 0) return;
  if (settings.n_workers > count)
    problems.add(where,
                 fmt::format("n_workers: got {}, expected at most the {} visible GPUs",
                             settings.n_workers, count),
                 fmt::format("set n_workers: {}", count));
  else if (settings.n_workers < count)
    problems.warn(
        where, fmt::format("n_workers: {} of {} visible GPUs are used", settings.n_workers, count),
        fmt::format("set n_workers: {} to use all", count));
}

std::unique_ptr<Backend> make_local_gpu(const ParallelSettings& settings,
                                        const WorkerLaunch& launch, CommandRunner& /*runner*/) {
  return std::make_unique<LocalGpuBackend>(settings, launch);
}

config::SchemaInfo local_gpu_options_info(const std::string& /*env*/) {
  return gpu_schema().info();
}

}  // namespace tutti::parallel
