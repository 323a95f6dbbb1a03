// The pieces one worker holds, and how it gets more. Decides everything about claims; knows nothing
// of threads and time beyond the heartbeats of others. Not thread-safe; internal to the room.
#pragma once

#include <deque>
#include <map>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include "tutti/parallel/async/board.h"
#include "tutti/parallel/async/job.h"
#include "tutti/parallel/folder/journal.h"

namespace tutti::parallel {

class Claims {
 public:
  // Keeps references: `job` and `journal` must outlive it.
  Claims(std::filesystem::path output_folder, const AsyncJob& job, std::string worker,
         JournalWriter& journal);

  struct Held {
    std::size_t piece = 0;
    std::size_t epoch = 0;  // of our claim in the chain
    std::vector<std::uint64_t> leases;
    std::uint64_t left = 0;  // items without a result
    std::optional<std::uint64_t> suspect;
    int strikes = 0;
  };
  const std::deque<Held>& held() const noexcept { return held_; }

  struct Work {
    std::vector<wire::Lease> leases;
    std::vector<std::pair<std::uint64_t, std::string>> failed;  // items that killed too many
  };
  // Claims the next piece: a new one, one given back, or one whose worker is dead. Empty: none now.
  std::optional<Work> next();
  // Journals a result; false: the claim was lost, the result is dropped. The last result of a piece
  // closes it.
  bool record(std::uint64_t lease, const wire::ResultRecord& record);
  // The item is out for good, and so is what the worker was doing. False: the claim was lost.
  bool fail_running(std::uint64_t lease, std::uint64_t index, const std::string& error);
  // The item has cost us this worker. True: it was the last time, the item has failed.
  bool strike(std::uint64_t lease, std::uint64_t index, const std::string& error);
  // Gives up what others have taken over; returns the leases to drop.
  std::vector<std::uint64_t> drop_lost();
  void release_all();

  bool all_done();
  enum class Merge { kNotYet, kOurs, kDone };
  Merge try_merge();
  bool merge_was_begun() const { return merge_epoch_ > 0; }  // by another, who was taken for dead
  bool lost_merge();                                         // it was taken over from us
  void merged();

 private:
  using SteadyClock = std::chrono::steady_clock;
  struct Seen {
    std::uint64_t beat = 0;
    SteadyClock::time_point changed;
  };

  Held* find(std::uint64_t lease);
  void close(Held& held, ClaimEntry::Kind kind);
  void append_to_journal(const wire::ResultRecord& record);
  std::optional<Work> claim(std::size_t piece);
  bool may_claim(std::size_t chain);  // new, given back, or stale
  bool is_stale(const std::string& worker);
  bool was_running(const std::string& worker, std::uint64_t seq);
  // Items of the piece without a counted result; `cut` of an open last claim.
  std::vector<std::uint64_t> remaining(std::size_t piece, std::uint64_t& cut);
  std::vector<wire::Lease> make_leases(Held& held, const std::vector<std::uint64_t>& items);

  const std::filesystem::path output_folder_;
  const std::filesystem::path folder_;
  const AsyncJob& job_;
  const std::string worker_;
  JournalWriter& journal_;
  ClaimBoard board_;
  const std::size_t merge_chain_;
  std::size_t merge_epoch_ = 0;
  std::deque<Held> held_;
  std::size_t first_free_ = 0;  // no piece before it is without a claim
  std::uint64_t next_seq_ = 0;
  std::uint64_t next_lease_ = 0;
  std::map<std::string, Seen> seen_;
  SteadyClock::time_point last_look_;
  std::mt19937 random_;
};

}  // namespace tutti::parallel
