// Which worker gets which items: leases, their sizes, who is to blame when a worker dies, and the
// promise that every item is counted exactly once. No sockets, no clock, no threads: the engine
// drives it, tests drive it too.
//
//   Schedule schedule({{0, 1000}}, {});
//   auto lease = schedule.next(worker, n_workers);            // {id, ranges}
//   schedule.report(lease->id, index, seconds, bytes);        // kCounted, or kStale / kDuplicate
//   schedule.lose(worker, running_item);                      // what it held goes to others
//
// A worker runs a lease in order and reports in order, so a lease is a cursor, not a set: memory is
// one bit per item plus a few ranges, whatever the number of items. Lease ids never come back, and
// that is the fence: a result that names a lease no longer held is dropped.
//
// Size of a lease: about `target_seconds` of work by measured item time, at most 1/(2 n_workers) of
// what remains (guided self-scheduling, so sizes shrink to one at the end), growing at most
// fourfold from one lease to the next, because the first items say little.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "tutti/parallel/wire/progress_page.h"
#include "tutti/parallel/wire/wire.h"

namespace tutti::parallel {

using wire::IndexRange;

struct ScheduleOptions {
  int max_retries = 3;            // deaths of workers an item may cause on its own
  std::uint64_t batch_size = 1;   // leases are multiples of it
  double target_seconds = 0.012;  // of work in a lease
  std::uint64_t max_lease_items = 8192;
  std::uint64_t max_lease_bytes = 4 << 20;  // of results, by their measured size
  bool speculate = false;                   // near the end run the oldest item a second time
  double first_guess_seconds = 0;           // item time known from an earlier run; 0: unknown
};

struct LeaseOrder {
  std::uint64_t id = 0;
  std::vector<IndexRange> ranges;
};

enum class Verdict {
  kCounted,    // the first result of this item
  kDuplicate,  // another lease was faster (speculation)
  kStale,      // the lease was fenced or never existed
  kBroken,     // not the item the lease must report next: the worker breaks the protocol
};

struct Loss {
  std::optional<std::uint64_t> suspect;  // the item that gets the blame
  int strikes = 0;                       // of the suspect, this death included
  bool quarantined = false;              // the suspect is out: count it as failed
  std::uint64_t returned = 0;            // items that go to other workers
};

struct RecallOrder {
  int worker = 0;
  std::uint64_t lease = 0;
  std::uint64_t max_items = 0;
};

class Schedule {
 public:
  // `work` in the order in which items should start; no index twice; `num_items` bounds them.
  Schedule(std::vector<IndexRange> work, std::uint64_t num_items, ScheduleOptions options);

  // Ids of leases begin here: a client gives each run a range of its own, so that results of an
  // abandoned run can never pass for results of the next. Call before the first next().
  void number_leases_from(std::uint64_t first_id) noexcept { next_id_ = first_id; }
  // The next lease for `worker`, or nothing to give. `live_workers` > 0.
  std::optional<LeaseOrder> next(int worker, int live_workers);
  // Whose it is; none: it is fenced, or never was.
  std::optional<int> holder(std::uint64_t lease) const;
  Verdict report(std::uint64_t lease, std::uint64_t index, double seconds, std::uint64_t num_bytes);
  // A lease that could not be sent: its items go back to where they came from. The others that the
  // worker holds stay: if it is dying, the item it was at must still be found among them.
  void unsent(std::uint64_t lease);
  // The tail of a lease that its worker gave back. False: the ranges are not that tail.
  bool release(std::uint64_t lease, const std::vector<IndexRange>& ranges);
  // Takes all leases of a worker away. `blame` false: an expected departure, nobody gets a strike.
  Loss lose(int worker, std::optional<RunningItem> running, bool blame = true);
  // Takes all leases away because of `index`, which is out for good (timeout, memory).
  Loss lose_and_fail(int worker, const RunningItem& running);
  // Another worker's queued items, for an idle one; each lease is recalled once at a time.
  std::optional<RecallOrder> recall(int idle_worker);
  // Everything not started, of every worker: for a drain.
  std::vector<RecallOrder> recall_all();
  // Somebody has not yet said what it gives back.
  bool recalls_pending() const;

  std::uint64_t num_unfinished() const noexcept { return unfinished_; }
  std::uint64_t num_pending() const noexcept { return pending_items_; }
  bool done() const noexcept { return unfinished_ == 0; }
  bool nothing_held() const noexcept { return leases_.empty(); }
  std::size_t num_leases(int worker) const;
  std::uint64_t num_held(int worker) const;
  double item_seconds() const noexcept { return item_seconds_; }

 private:
  struct Lease {
    int worker = 0;
    std::vector<IndexRange> ranges;
    std::size_t at_range = 0;  // cursor: the item to be reported next
    std::uint64_t at_item = 0;
    std::uint64_t left = 0;
    bool recalled = false;
    bool copy = false;  // a speculative one
    bool careful = false;
  };
  // Returned work that may only be handed out in small pieces, to find out who kills workers.
  struct Careful {
    IndexRange range;
    std::uint64_t max_piece = 1;
  };

  bool is_done(std::uint64_t index) const { return (done_[index / 64] >> (index % 64)) & 1; }
  bool mark_done(std::uint64_t index);
  std::uint64_t lease_size(int worker, int live_workers) const;
  std::vector<IndexRange> take_pending(std::uint64_t count);
  LeaseOrder open(int worker, std::vector<IndexRange> ranges, bool copy);
  std::optional<LeaseOrder> speculate(int worker);
  std::vector<IndexRange> rest_of(const Lease& lease) const;  // not reported, not done elsewhere
  void give_back(const std::vector<IndexRange>& ranges);
  void close(std::uint64_t id);

  const ScheduleOptions options_;
  std::vector<std::uint64_t> done_;  // one bit per item
  std::uint64_t unfinished_ = 0;
  std::deque<IndexRange> pending_;
  std::uint64_t pending_items_ = 0;
  std::deque<Careful> careful_;
  std::map<std::uint64_t, Lease> leases_;                    // ordered: the first is the oldest
  std::unordered_map<int, std::deque<std::uint64_t>> held_;  // per worker, in the order handed out
  std::unordered_map<int, std::uint64_t> last_size_;
  std::unordered_map<std::uint64_t, int> strikes_;
  std::unordered_map<std::uint64_t, int> copies_;  // speculated items
  std::uint64_t next_id_ = 1;
  double item_seconds_ = 0;
  double item_bytes_ = 0;
};

}  // namespace tutti::parallel
