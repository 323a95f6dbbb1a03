// The protocol of claims: exclusive entries, the fence, the pieces.
#include "tutti/parallel/async/board.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/parallel/async/claims.h"
#include "tutti/parallel/async/job.h"
#include "tutti/parallel/folder/journal.h"
#include "tutti/parallel/folder/run_folder.h"

namespace tutti::parallel {
namespace {

namespace fs = std::filesystem;
using Kind = ClaimEntry::Kind;

constexpr std::uint64_t kHash = 7;

// A folder with a job of `count` items in `pieces` and workers made by hand.
class BoardTest : public ::testing::Test {
 protected:
  void make_job(std::uint64_t count, int n_workers) {
    for (const char* name : {"claims", "workers", "jobs", "ids"}) make_folders(shared_ / name);
    make_folders(folder_.path() / "journal");
    job_.generation = "g";
    job_.fingerprint_hash = kHash;
    job_.indices = range(count);
    job_.settings.n_workers = n_workers;
    job_.pieces = cut_into_pieces({{0, count}}, n_workers, 1);
    job_.stale_s = 0.2;
    job_.spec.function = "square";
    job_.write(shared_);
  }
  struct Worker {
    Worker(const BoardTest& test, const std::string& name)
        : journal(test.folder_.path() / "journal" / async_journal_name(name), kHash, {}),
          claims(test.folder_.path(), test.job_, name, journal) {}
    JournalWriter journal;
    Claims claims;
  };
  void note(const std::string& name, const ProcessIdentity& process, std::uint64_t beat) {
    WorkerNote note;
    note.name = name;
    note.process = process;
    note.beat = beat;
    write_file_quickly(worker_note_path(shared_, name), note.to_text());
  }
  static std::uint64_t first_of(const Claims::Work& work) {
    return work.leases.front().ranges.front().first;
  }
  // The counted text of an item, or "".
  std::string counted(std::uint64_t index) {
    const auto fence = AsyncFence::load(folder_.path());
    std::string text;
    for (const fs::path& file : journal_files(folder_.path())) {
      const MappedFile bytes(file);
      scan_journal(bytes.bytes(), kHash, [&](const JournalRecord& record, std::uint64_t offset) {
        if (record.index == index && fence->accepts(file.stem(), index, offset))
          text += record.payload;
      });
    }
    return text;
  }

  TempFolder folder_;
  const fs::path shared_ = async_folder(folder_.path());
  AsyncJob job_;
};

TEST_F(BoardTest, OfManyWhoWantAnEntryOneGetsIt) {
  make_job(10, 1);
  std::atomic<int> won{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      ClaimBoard board(shared_, 200);
      for (std::size_t chain = 0; chain < 200; ++chain)
        if (board.append(chain, 0, {.worker = std::to_string(t)})) ++won;
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(won.load(), 200);
  int files = 0;  // and nothing half-made stays behind
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(shared_ / "claims")) ++files;
  EXPECT_EQ(files, 200);
}

TEST_F(BoardTest, PiecesCoverTheWorkOnceAndShrink) {
  for (const std::uint64_t count : {1U, 7U, 1000U, 100000U})
    for (const int workers : {1, 4, 100})
      for (const std::uint64_t batch : {1U, 8U}) {
        const auto pieces =
            cut_into_pieces({{5, count / 2}, {2 * count + 5, count - count / 2}}, workers, batch);
        std::vector<std::uint64_t> seen;
        for (const Piece& piece : pieces)
          for (const auto& range : piece)
            for (std::uint64_t i = 0; i < range.count; ++i) seen.push_back(range.first + i);
        ASSERT_EQ(seen.size(), count);
        EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end(), std::greater_equal<>()), seen.end());
        EXPECT_LE(wire::total_items(pieces.back()), batch);
        EXPECT_LE(pieces.size(), static_cast<std::size_t>(workers) * 90 + 90) << count;
      }
}

TEST_F(BoardTest, LateResultsOfATakenOverClaimAreDropped) {
  make_job(1, 1);
  note("slow", {"elsewhere", 1, "x", "y"}, 1);
  Worker slow(*this, "slow");
  const auto first = slow.claims.next();
  ASSERT_TRUE(first);
  Worker quick(*this, "quick");
  std::optional<Claims::Work> second;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!(second = quick.claims.next()) && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_TRUE(second) << "a worker without heartbeats was not replaced";
  // The slow one wakes up and delivers, then the other.
  slow.claims.record(first->leases[0].lease, {.index = 0, .payload = "\"late\""});
  slow.journal.flush();
  EXPECT_EQ(counted(0), "");
  EXPECT_TRUE(quick.claims.record(second->leases[0].lease, {.index = 0, .payload = "\"good\""}));
  EXPECT_EQ(counted(0), "\"good\"");
  // It learns of it at its next look, and what it still brings is not even written down.
  EXPECT_TRUE(slow.claims.held().empty());
}

// Finished pieces are known from the names in the folder: nobody opens all entries of all pieces.
TEST_F(BoardTest, WhatIsDoneIsKnownWithoutReadingTheEntries) {
  make_job(50, 1);
  Worker worker(*this, "w");
  while (const auto work = worker.claims.next())
    for (const auto& lease : work->leases)
      for (const auto& range : lease.ranges)
        for (std::uint64_t i = 0; i < range.count; ++i)
          worker.claims.record(lease.lease, {.index = range.first + i, .payload = "1"});
  // A reader that must not open a single entry.
  for (const auto& entry : fs::directory_iterator(shared_ / "claims"))
    if (entry.path().extension() != ".done") write_file_atomic(entry.path(), "not to be read");
  ClaimBoard board(shared_, job_.pieces.size());
  board.refresh();
  for (std::size_t p = 0; p < job_.pieces.size(); ++p) EXPECT_TRUE(board.is_done(p)) << p;
}

TEST_F(BoardTest, AWorkerThatBeatsKeepsItsClaim) {
  make_job(1, 1);
  Worker holder(*this, "holder");
  ASSERT_TRUE(holder.claims.next());
  Worker other(*this, "other");
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(800);
  for (std::uint64_t beat = 1; std::chrono::steady_clock::now() < until; ++beat) {
    note("holder", {"elsewhere", 1, "x", "y"}, beat);
    ASSERT_FALSE(other.claims.next());
  }
}

TEST_F(BoardTest, WhatWasDoneBeforeATakeoverIsNotDoneAgainAndTheCulpritIsFound) {
  make_job(400, 1);  // the first pieces have 12 items
  job_.settings.max_retries = 2;
  const std::size_t piece = 0;
  ProcessIdentity dead = ProcessIdentity::self();
  dead.start_time = "1";  // a pid that came back
  for (int life = 0; life < 2; ++life) {
    const std::string name = "w" + std::to_string(life);
    note(name, dead, 1);
    Worker worker(*this, name);
    // Each life does two more items and dies at the next; the second also dies at item 4.
    auto work = worker.claims.next();
    ASSERT_TRUE(work);
    while (worker.claims.held().back().piece != piece) {
      for (const auto& lease : work->leases)  // other pieces: do them
        for (const auto& range : lease.ranges)
          for (std::uint64_t i = 0; i < range.count; ++i)
            worker.claims.record(lease.lease, {.index = range.first + i, .payload = "1"});
      work = worker.claims.next();
      ASSERT_TRUE(work);
    }
    if (life == 0)
      for (std::uint64_t i = 0; i < 4; ++i)
        worker.claims.record(work->leases[0].lease, {.index = i, .payload = "1"});
    else
      EXPECT_EQ(first_of(*work), 4U) << "items 0 to 3 are done";
    worker.journal.flush();
  }
  Worker third(*this, "third");
  std::optional<Claims::Work> work;
  while ((work = third.claims.next()))
    if (third.claims.held().back().piece == piece) break;
  ASSERT_TRUE(work);
  ASSERT_EQ(work->failed.size(), 1U);
  EXPECT_EQ(work->failed[0].first, 4U);
  EXPECT_EQ(work->failed[0].second, "killed 2 workers on its own");
  EXPECT_EQ(first_of(*work), 5U);
}

TEST_F(BoardTest, AReleasedPieceGoesOnWithoutAStrike) {
  make_job(1, 1);
  Worker one(*this, "one");
  ASSERT_TRUE(one.claims.next());
  one.claims.release_all();
  Worker two(*this, "two");
  const auto work = two.claims.next();
  ASSERT_TRUE(work);
  EXPECT_TRUE(work->failed.empty());
  EXPECT_EQ(two.claims.held().front().strikes, 0);
}

TEST_F(BoardTest, OnlyTheOldestClaimOfADeadWorkerIsSuspect) {
  make_job(2, 1);  // two pieces of one item
  ProcessIdentity dead = ProcessIdentity::self();
  dead.start_time = "1";
  note("dead", dead, 1);
  Worker worker(*this, "dead");
  ASSERT_TRUE(worker.claims.next());
  ASSERT_TRUE(worker.claims.next());
  Worker heir(*this, "heir");
  ASSERT_TRUE(heir.claims.next());
  ASSERT_TRUE(heir.claims.next());
  ASSERT_EQ(heir.claims.held().size(), 2U);
  EXPECT_EQ(heir.claims.held()[0].strikes + heir.claims.held()[1].strikes, 1);
}

TEST_F(BoardTest, TheMergeIsClaimedOnceAllPiecesAreDoneAndTakenOverFromTheDead) {
  make_job(1, 1);
  ProcessIdentity dead = ProcessIdentity::self();
  dead.start_time = "1";
  note("one", dead, 1);
  Worker one(*this, "one");
  EXPECT_EQ(one.claims.try_merge(), Claims::Merge::kNotYet);
  const auto work = one.claims.next();
  one.claims.record(work->leases[0].lease, {.index = 0, .payload = "1"});
  EXPECT_EQ(one.claims.try_merge(), Claims::Merge::kOurs);
  Worker two(*this, "two");
  EXPECT_EQ(two.claims.try_merge(), Claims::Merge::kOurs) << "the first merger is dead";
  two.claims.merged();
  Worker three(*this, "three");
  EXPECT_EQ(three.claims.try_merge(), Claims::Merge::kDone);
}

TEST_F(BoardTest, AFolderThatWasTakenAwayIsAnError) {
  make_job(3, 1);
  Worker worker(*this, "w");
  fs::remove_all(shared_);
  EXPECT_THROW(worker.claims.next(), IoError);
}

}  // namespace
}  // namespace tutti::parallel
