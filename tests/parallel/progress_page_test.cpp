#include "tutti/parallel/wire/progress_page.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tutti/core/file.h"

namespace tutti::parallel {
namespace {

constexpr int kNoDisk = 77;

// In a process of its own: a small disk that gets full after the page was made.
int write_with_full_disk(const std::filesystem::path& folder) {
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("none", folder.c_str(), "tmpfs", 0, "size=64k") != 0)
    return kNoDisk;
  make_folders(folder / ".tutti");
  ProgressPage page(folder, 3);
  const UniqueFd filler(::open((folder / "filler").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const char bytes[4096] = {};
  while (::write(filler.get(), bytes, sizeof bytes) > 0) {
  }
  page.enter(1, 20);
  const auto running = ProgressPage::read(folder, 3);
  return running && running->index == 20 ? 0 : 1;
}

TEST(ProgressPage, ADiskThatGetsFullKillsNoWorker) {
  const TempFolder folder;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(write_with_full_disk(folder.path()));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) == kNoDisk) GTEST_SKIP() << "mounting a small disk needs root";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace tutti::parallel
