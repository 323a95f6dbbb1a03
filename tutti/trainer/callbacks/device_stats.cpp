#include <unistd.h>
#ifdef TUTTI_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#endif

#include <chrono>
#include <ctime>
#include <fstream>

#include "tutti/trainer/callbacks/callback.h"

namespace tutti::trainer {
namespace {

double resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  double total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

class DeviceStats final : public Callback {
 public:
  explicit DeviceStats(bool cpu) : cpu_(cpu) {}

  void on_step(const Moment& moment) override {
    Metrics& out = *moment.extra_metrics;
#ifdef TUTTI_WITH_CUDA
    if (!moment.weights.empty() && moment.weights[0].second.is_cuda()) {
      const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(
          moment.weights[0].second.device().index());
      out["device/gpu_allocated_bytes"] = static_cast<double>(stats.allocated_bytes[0].current);
      out["device/gpu_peak_bytes"] = static_cast<double>(stats.allocated_bytes[0].peak);
      out["device/gpu_reserved_bytes"] = static_cast<double>(stats.reserved_bytes[0].current);
    }
#endif
    if (!cpu_) return;
    out["device/process_bytes"] = resident_bytes();
    const auto now = std::chrono::steady_clock::now();
    const double wall = std::chrono::duration<double>(now - since_).count(), cpu = cpu_seconds();
    if (wall < 0.1) return;  // the clock of CPU time is coarse
    out["device/cpu_percent"] = 100 * (cpu - cpu_before_) / wall;
    since_ = now;
    cpu_before_ = cpu;
  }

 private:
  bool cpu_;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
  double cpu_before_ = cpu_seconds();
};

}  // namespace

std::unique_ptr<Callback> make_device_stats(bool cpu) { return std::make_unique<DeviceStats>(cpu); }

}  // namespace tutti::trainer
