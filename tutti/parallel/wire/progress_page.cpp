#include "tutti/parallel/wire/progress_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tutti/core/file.h"

namespace tutti::parallel {
namespace fs = std::filesystem;

ProgressPage::ProgressPage(const fs::path& run_folder, int worker_id) {
  const UniqueFd fd(
      ::open(path(run_folder, worker_id).c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  // Written, not only made long enough: a page without a place on a disk that is full later kills
  // its writer (SIGBUS), and the item would be blamed.
  const char zeros[sizeof(Page)] = {};
  if (!fd || ::pwrite(fd.get(), zeros, sizeof zeros, 0) != sizeof zeros) return;
  void* mapped = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (mapped != MAP_FAILED) page_ = static_cast<Page*>(mapped);
}

ProgressPage::~ProgressPage() {
  if (page_ != nullptr) ::munmap(page_, sizeof(Page));
}

void ProgressPage::enter(std::uint64_t lease, std::uint64_t index) noexcept {
  if (page_ == nullptr) return;
  page_->index_plus_1.store(0, std::memory_order_relaxed);
  page_->lease.store(lease, std::memory_order_release);
  page_->index_plus_1.store(index + 1, std::memory_order_release);
}

void ProgressPage::leave() noexcept {
  if (page_ != nullptr) page_->index_plus_1.store(0, std::memory_order_release);
}

fs::path ProgressPage::path(const fs::path& run_folder, int worker_id) {
  return run_folder / ".tutti" / ("at-" + std::to_string(worker_id));
}

std::optional<RunningItem> ProgressPage::read(const fs::path& run_folder, int worker_id) {
  const UniqueFd fd(::open(path(run_folder, worker_id).c_str(), O_RDONLY | O_CLOEXEC));
  std::uint64_t words[2] = {};
  if (!fd || ::pread(fd.get(), words, sizeof words, 0) != sizeof words || words[1] == 0)
    return std::nullopt;
  return RunningItem{words[0], words[1] - 1};
}

}  // namespace tutti::parallel
