#include "tutti/parallel/run/schedule.h"

#include <algorithm>
#include <cmath>

#include "tutti/core/error.h"
#include "tutti/parallel/wire/ranges.h"

namespace tutti::parallel {

Schedule::Schedule(std::vector<IndexRange> work, std::uint64_t num_items, ScheduleOptions options)
    : options_(options), done_(num_items / 64 + 1), item_seconds_(options.first_guess_seconds) {
  for (const IndexRange& range : work) {
    if (range.count == 0) continue;
    if (range.first + range.count > num_items)
      throw InternalError("schedule: an index lies outside the item list");
    pending_.push_back(range);
    unfinished_ += range.count;
  }
  pending_items_ = unfinished_;
}

bool Schedule::mark_done(std::uint64_t index) {
  std::uint64_t& word = done_[index / 64];
  const std::uint64_t bit = std::uint64_t{1} << (index % 64);
  if (word & bit) return false;
  word |= bit;
  --unfinished_;
  return true;
}

std::uint64_t Schedule::lease_size(int worker, int live_workers) const {
  const std::uint64_t unit = std::max<std::uint64_t>(1, options_.batch_size);
  const auto last = last_size_.find(worker);
  std::uint64_t size = last == last_size_.end() ? 1 : last->second * 4;
  if (item_seconds_ > 0) {
    const double wanted = options_.target_seconds / item_seconds_;
    // A guess from an earlier run spares the slow start.
    if (last == last_size_.end() && options_.first_guess_seconds > 0)
      size = options_.max_lease_items;
    if (wanted < static_cast<double>(size))
      size = static_cast<std::uint64_t>(std::max(1.0, wanted));
  }
  if (item_bytes_ > 0)
    size = std::min(size, static_cast<std::uint64_t>(static_cast<double>(options_.max_lease_bytes) /
                                                     item_bytes_) +
                              1);
  const std::uint64_t share =
      pending_items_ / (2 * static_cast<std::uint64_t>(std::max(1, live_workers)));
  size = std::min({size, options_.max_lease_items, std::max<std::uint64_t>(1, share)});
  return (size + unit - 1) / unit * unit;
}

std::vector<IndexRange> Schedule::take_pending(std::uint64_t count) {
  std::vector<IndexRange> taken;
  while (count > 0 && !pending_.empty()) {
    IndexRange& front = pending_.front();
    const std::uint64_t n = std::min(count, front.count);
    wire::append_range(taken, {front.first, n});
    front.first += n;
    front.count -= n;
    count -= n;
    pending_items_ -= n;
    if (front.count == 0) pending_.pop_front();
  }
  return taken;
}

LeaseOrder Schedule::open(int worker, std::vector<IndexRange> ranges, bool copy) {
  const std::uint64_t id = next_id_++;
  Lease lease;
  lease.worker = worker;
  lease.left = wire::total_items(ranges);
  lease.at_item = ranges.front().first;
  lease.copy = copy;
  lease.ranges = ranges;
  leases_.emplace(id, std::move(lease));
  held_[worker].push_back(id);
  return {id, std::move(ranges)};
}

std::optional<LeaseOrder> Schedule::next(int worker, int live_workers) {
  // Suspects first, and never queued behind other work, nor it behind them, where it would be read
  // ahead: an item that kills must be caught alone.
  if (const auto held = held_.find(worker); held != held_.end())
    for (const std::uint64_t id : held->second)
      if (leases_.at(id).careful) return std::nullopt;
  if (!careful_.empty()) {
    if (num_leases(worker) > 0) return std::nullopt;
    Careful& front = careful_.front();
    const std::uint64_t n = std::min(front.max_piece, front.range.count);
    const IndexRange piece{front.range.first, n};
    front.range.first += n;
    front.range.count -= n;
    pending_items_ -= n;
    if (front.range.count == 0) careful_.pop_front();
    const LeaseOrder order = open(worker, {piece}, false);
    leases_.at(order.id).careful = true;
    return order;
  }
  if (pending_.empty()) return options_.speculate ? speculate(worker) : std::nullopt;
  const std::uint64_t size = lease_size(worker, live_workers);
  last_size_[worker] = size;
  return open(worker, take_pending(size), false);
}

std::optional<LeaseOrder> Schedule::speculate(int worker) {
  if (num_leases(worker) > 0) return std::nullopt;
  for (const auto& [id, lease] : leases_) {
    // Not a suspect either: it would kill two workers at once.
    if (lease.copy || lease.careful || lease.worker == worker || copies_.contains(lease.at_item) ||
        is_done(lease.at_item))
      continue;
    copies_[lease.at_item] = 1;
    return open(worker, {{lease.at_item, 1}}, true);
  }
  return std::nullopt;
}

std::optional<int> Schedule::holder(std::uint64_t lease) const {
  const auto found = leases_.find(lease);
  return found == leases_.end() ? std::nullopt : std::optional(found->second.worker);
}

Verdict Schedule::report(std::uint64_t id, std::uint64_t index, double seconds,
                         std::uint64_t num_bytes) {
  const auto found = leases_.find(id);
  if (found == leases_.end()) return Verdict::kStale;
  Lease& lease = found->second;
  if (index != lease.at_item) return Verdict::kBroken;
  // Recent items count most: costs drift along a sorted list.
  constexpr double kWeight = 0.05;
  item_seconds_ =
      item_seconds_ == 0 ? seconds : item_seconds_ + kWeight * (seconds - item_seconds_);
  item_bytes_ += kWeight * (static_cast<double>(num_bytes) - item_bytes_);
  const bool first = mark_done(index);
  if (--lease.left == 0) {
    close(id);
  } else {
    const IndexRange& range = lease.ranges[lease.at_range];
    if (++lease.at_item == range.first + range.count)
      lease.at_item = lease.ranges[++lease.at_range].first;
  }
  return first ? Verdict::kCounted : Verdict::kDuplicate;
}

void Schedule::close(std::uint64_t id) {
  const auto found = leases_.find(id);
  std::erase(held_[found->second.worker], id);
  leases_.erase(found);
}

std::vector<IndexRange> Schedule::rest_of(const Lease& lease) const {
  std::vector<IndexRange> rest;
  std::uint64_t at = lease.at_item;
  std::uint64_t left = lease.left;
  for (std::size_t r = lease.at_range; left > 0; at = lease.ranges[++r].first) {
    const std::uint64_t end = std::min(lease.ranges[r].first + lease.ranges[r].count, at + left);
    for (; at < end; ++at, --left)
      if (!is_done(at)) wire::append_range(rest, {at, 1});
    if (left == 0) break;
  }
  return rest;
}

void Schedule::give_back(const std::vector<IndexRange>& ranges) {
  for (auto range = ranges.rbegin(); range != ranges.rend(); ++range) {
    pending_.push_front(*range);
    pending_items_ += range->count;
  }
}

void Schedule::unsent(std::uint64_t id) {
  const Lease lease = leases_.at(id);
  close(id);
  if (lease.copy) {
    copies_.erase(lease.at_item);
  } else if (lease.careful) {
    careful_.push_front({lease.ranges.front(), lease.left});
    pending_items_ += lease.left;
  } else {
    give_back(lease.ranges);
  }
}

bool Schedule::release(std::uint64_t id, const std::vector<IndexRange>& ranges) {
  const auto found = leases_.find(id);
  if (found == leases_.end()) return true;  // fenced meanwhile: its items are elsewhere already
  Lease& lease = found->second;
  lease.recalled = false;
  const std::uint64_t count = wire::total_items(ranges);
  if (count > lease.left) return false;
  std::vector<IndexRange> kept = lease.ranges;
  const std::vector<IndexRange> cut = wire::cut_tail(kept, count);
  if (cut != ranges) return false;
  lease.left -= wire::total_items(cut);
  lease.ranges = std::move(kept);
  const bool copy = lease.copy;
  if (lease.left == 0) close(id);
  if (!copy) give_back(cut);
  return true;
}

Loss Schedule::lose(int worker, std::optional<RunningItem> running, bool blame) {
  Loss loss;
  const auto held = held_.find(worker);
  if (held == held_.end()) return loss;
  const std::deque<std::uint64_t> ids = std::move(held->second);
  held_.erase(held);
  last_size_.erase(worker);
  // The lease it was working on: known, or else the oldest. Results of older ones may have died
  // with the worker before they were sent, but those items had been run without harm.
  const bool known = running && std::find(ids.begin(), ids.end(), running->lease) != ids.end();
  const std::uint64_t active_id = known ? running->lease : ids.empty() ? 0 : ids.front();
  // Backwards, so that pushing to the front keeps the order.
  for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
    const Lease lease = std::move(leases_.at(*id));
    leases_.erase(*id);
    if (lease.copy) {
      copies_.erase(lease.at_item);  // the original is still out there, or was lost before
      // If the original is gone too, nobody holds the item: it must go back.
      const bool held_elsewhere =
          std::any_of(leases_.begin(), leases_.end(), [&](const auto& entry) {
            const auto rest = rest_of(entry.second);
            return std::any_of(rest.begin(), rest.end(), [&](const IndexRange& range) {
              return lease.at_item >= range.first && lease.at_item < range.first + range.count;
            });
          });
      if (!held_elsewhere && !is_done(lease.at_item)) {
        give_back({{lease.at_item, 1}});
        ++loss.returned;
      }
      continue;
    }
    std::vector<IndexRange> rest = rest_of(lease);
    if (const auto copied = copies_.find(lease.at_item);
        copied != copies_.end() && !rest.empty() && rest.front().first == lease.at_item) {
      // A copy of the running item is under way on another worker; leave that item to it.
      if (--rest.front().count == 0)
        rest.erase(rest.begin());
      else
        ++rest.front().first;
    }
    const std::uint64_t count = wire::total_items(rest);
    if (count == 0) continue;
    loss.returned += count;
    const bool active = *id == active_id;
    if (!active || !blame) {
      give_back(rest);
      continue;
    }
    std::optional<std::uint64_t> suspect;
    if (running && running->lease == *id) {
      for (const IndexRange& range : rest)
        if (running->index >= range.first && running->index < range.first + range.count)
          suspect = running->index;
    } else if (count == 1) {
      suspect = rest.front().first;
    }
    if (!suspect) {
      // Somebody in here kills workers, or nobody does: hand it out in small pieces to find out.
      const std::uint64_t piece = count <= 64 ? 1 : count / 16;
      for (auto range = rest.rbegin(); range != rest.rend(); ++range)
        careful_.push_front({*range, piece});
      pending_items_ += count;
      continue;
    }
    loss.suspect = suspect;
    loss.strikes = ++strikes_[*suspect];
    std::vector<IndexRange> others;
    for (const IndexRange& range : rest) {
      if (*suspect < range.first || *suspect >= range.first + range.count) {
        others.push_back(range);
        continue;
      }
      if (*suspect > range.first) others.push_back({range.first, *suspect - range.first});
      if (const std::uint64_t after = range.first + range.count - 1 - *suspect)
        others.push_back({*suspect + 1, after});
    }
    give_back(others);
    if (loss.strikes >= std::max(1, options_.max_retries)) {
      loss.quarantined = true;
      --loss.returned;
      mark_done(*suspect);
    } else {
      careful_.push_back({{*suspect, 1}, 1});
      ++pending_items_;
    }
  }
  return loss;
}

Loss Schedule::lose_and_fail(int worker, const RunningItem& running) {
  const auto lease = leases_.find(running.lease);
  const bool ours = lease != leases_.end() && lease->second.worker == worker;
  bool failed = false;
  if (ours) {
    for (const IndexRange& range : rest_of(lease->second))
      if (running.index >= range.first && running.index < range.first + range.count)
        failed = mark_done(running.index);
  }
  Loss loss = lose(worker, std::nullopt, false);
  if (failed) {
    loss.suspect = running.index;
    loss.strikes = ++strikes_[running.index];
    loss.quarantined = true;
  }
  return loss;
}

std::optional<RecallOrder> Schedule::recall(int idle_worker) {
  RecallOrder best;
  for (auto& [id, lease] : leases_) {
    if (lease.worker == idle_worker || lease.recalled || lease.copy) continue;
    const bool active = held_[lease.worker].front() == id;
    const std::uint64_t unstarted =
        lease.left -
        (active ? std::min(lease.left, std::max<std::uint64_t>(1, options_.batch_size)) : 0);
    if (unstarted > best.max_items) best = {lease.worker, id, unstarted};
  }
  if (best.max_items == 0) return std::nullopt;
  leases_.at(best.lease).recalled = true;
  // A queued lease goes whole when it is small, else half of it.
  best.max_items = (best.max_items + 1) / 2;
  return best;
}

std::vector<RecallOrder> Schedule::recall_all() {
  std::vector<RecallOrder> orders;
  for (auto& [id, lease] : leases_) {
    lease.recalled = true;
    orders.push_back({lease.worker, id, lease.left});
  }
  return orders;
}

bool Schedule::recalls_pending() const {
  return std::any_of(leases_.begin(), leases_.end(),
                     [](const auto& entry) { return entry.second.recalled; });
}

std::size_t Schedule::num_leases(int worker) const {
  const auto held = held_.find(worker);
  return held == held_.end() ? 0 : held->second.size();
}

std::uint64_t Schedule::num_held(int worker) const {
  const auto held = held_.find(worker);
  std::uint64_t total = 0;
  if (held != held_.end())
    for (const std::uint64_t id : held->second) total += leases_.at(id).left;
  return total;
}

}  // namespace tutti::parallel
