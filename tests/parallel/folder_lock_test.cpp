// Who holds a folder, when clocks of hosts differ and drivers stop and wake up.
#include "tutti/parallel/folder/folder_lock.h"
#include "tests/places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/parallel/items.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"
#include "tutti/parallel/folder/run_folder.h"

namespace tutti::parallel {
namespace {

using ::testing::HasSubstr;
using Sign = BeatWatch::Sign;

// A driver of another host, whose clock stands in 1970.
class Elsewhere {
 public:
  explicit Elsewhere(const std::filesystem::path& folder) : path_(FolderLock::path(folder)) {
    make_folders(path_.parent_path());
    write();
  }
  ~Elsewhere() { stop(); }
  void write() {
    write_file_atomic(path_, Json{{"host", "elsewhere"},
                                  {"pid", 1},
                                  {"heartbeat", 5.0},
                                  {"nonce", "x"},
                                  {"beat", ++beat_}}
                                 .dump());
  }
  void live() {
    thread_ = std::thread([this] {
      while (!over_) {
        write();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    });
  }
  void stop() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  const std::filesystem::path path_;
  std::uint64_t beat_ = 0;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

TEST(FolderLock, ADriverOfAnotherHostLivesWhileItsCounterChangesWhateverItsClockSays) {
  const TempFolder folder;
  Elsewhere other(folder.path());
  other.live();
  try {
    const FolderLock lock(folder.path(), 60);
    FAIL() << "taken from a living driver";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), HasSubstr("in use by process 1 on elsewhere"));
  }
}

TEST(FolderLock, ALockWhoseCounterStandsStillIsTakenOver) {
  const TempFolder folder;
  Elsewhere other(folder.path());
  const FolderLock lock(folder.path(), 0.3);
  EXPECT_TRUE(FolderLock::holder(folder.path()).alive);
  EXPECT_TRUE(FolderLock::holder(folder.path()).sure);
  EXPECT_THROW(FolderLock second(folder.path()), IoError);
}

TEST(FolderLock, MapDoesNotTakeAFolderFromALivingDriverOfAnotherHost) {
  const TempFolder folder;
  Elsewhere other(folder.path() / "out");
  other.live();
  const auto run = run_command({.argv = {in_bin("tutti"), "map", "--items", "3", "--output_dir",
                                         (folder.path() / "out").string(), "--", "echo", "{}"},
                                .timeout = std::chrono::seconds(60)});
  other.stop();
  EXPECT_EQ(run.exit_code, 4) << run.err;
  EXPECT_THAT(run.err, HasSubstr("in use by process 1 on elsewhere"));
}

TEST(FolderLock, EachDriverWritesAJournalOfItsOwn) {
  const TempFolder folder;
  trial::drive(folder.path(), 1);
  const auto before = journal_files(folder.path());
  ASSERT_EQ(before.size(), 1U);
  { RunFolder again(folder.path(), {{"function", "one_millisecond"}}, range(300), {}); }
  EXPECT_EQ(journal_files(folder.path()).size(), 2U);
  EXPECT_EQ(count_items(folder.path()).ok, 300U);
}

TEST(BeatWatch, JudgesByChangeOverItsOwnTime) {
  FakeClock clock;
  BeatWatch watch(10, clock);
  EXPECT_EQ(watch.look("a", 7), Sign::kUnsure) << "one look proves nothing";
  clock.advance(Seconds(4));
  EXPECT_EQ(watch.look("a", 8), Sign::kAlive);
  for (int i = 0; i < 2; ++i) {
    clock.advance(Seconds(4));
    EXPECT_EQ(watch.look("a", 8), Sign::kAlive);
  }
  clock.advance(Seconds(4));
  EXPECT_EQ(watch.look("a", 8), Sign::kDead);
}

TEST(BeatWatch, AWatcherThatWasStoppedBeginsAnew) {
  FakeClock clock;
  BeatWatch watch(10, clock);
  watch.look("a", 7);
  clock.advance(Seconds(1000));
  EXPECT_EQ(watch.look("a", 7), Sign::kUnsure);
}

}  // namespace
}  // namespace tutti::parallel
