// Epoch plans kept on disk by fingerprint. A damaged, foreign or outdated file is ignored (and
// replaced), never trusted: the plan can always be computed again. Failing to write is a warning.
// Several processes may use one folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace tutti::data {

class EpochPlan;

class PlanCache {
 public:
  explicit PlanCache(std::filesystem::path folder) : folder_(std::move(folder)) {}
  std::optional<EpochPlan> load(std::uint64_t fingerprint, std::uint64_t epoch, int world) const;
  // Also removes the same plan's older epochs, so that the folder does not grow without end.
  void save(std::uint64_t fingerprint, std::uint64_t epoch, const EpochPlan& plan) const;
  std::filesystem::path file_of(std::uint64_t fingerprint, std::uint64_t epoch) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace tutti::data
