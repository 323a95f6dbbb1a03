// A page the driver can read after a worker has died, however it died: the item it was at. Written
// before every item; on the same machine that names the culprit exactly. Internal to the room.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>

namespace tutti::parallel {

// What a worker was doing when it died, where that is known exactly.
struct RunningItem {
  std::uint64_t lease = 0;
  std::uint64_t index = 0;
};
// As `index`: a batch, or an item while the next is read. Nobody can tell which of them it was.
inline constexpr std::uint64_t kOneOfSeveral = UINT64_MAX - 1;

class ProgressPage {
 public:
  ProgressPage(const std::filesystem::path& run_folder,
               int worker_id);  // failing to map is not fatal
  ~ProgressPage();
  ProgressPage(const ProgressPage&) = delete;
  ProgressPage& operator=(const ProgressPage&) = delete;
  void enter(std::uint64_t lease, std::uint64_t index) noexcept;
  void leave() noexcept;
  // Driver side.
  static std::optional<RunningItem> read(const std::filesystem::path& run_folder, int worker_id);
  static std::filesystem::path path(const std::filesystem::path& run_folder, int worker_id);

 private:
  struct Page {
    std::atomic<std::uint64_t> lease;
    std::atomic<std::uint64_t> index_plus_1;  // 0: between items
  };
  Page* page_ = nullptr;
};

}  // namespace tutti::parallel
