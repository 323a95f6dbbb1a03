#include "tutti/parallel/async/claims.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/core/error.h"
#include "tutti/core/file_trust.h"
#include "tutti/core/log.h"
#include "tutti/parallel/folder/large_result.h"

namespace tutti::parallel {
namespace fs = std::filesystem;

using Kind = ClaimEntry::Kind;

Claims::Claims(fs::path output_folder, const AsyncJob& job, std::string worker,
               JournalWriter& journal)
    : output_folder_(std::move(output_folder)),
      folder_(async_folder(output_folder_)),
      job_(job),
      worker_(std::move(worker)),
      journal_(journal),
      board_(folder_, job.pieces.size() + 1),
      merge_chain_(job.pieces.size()),
      random_(std::random_device{}()) {
  // Leases name files of large results, so they must differ between workers.
  next_lease_ = (static_cast<std::uint64_t>(random_() & 0x7fffffff) << 32) + 1;
  board_.refresh();
}

Claims::Held* Claims::find(std::uint64_t lease) {
  for (Held& held : held_)
    if (std::find(held.leases.begin(), held.leases.end(), lease) != held.leases.end()) return &held;
  return nullptr;
}

std::optional<Claims::Work> Claims::next() {
  const std::size_t num_pieces = job_.pieces.size();
  // A new piece, at random among the next few: then many workers seldom want the same.
  while (first_free_ < num_pieces) {
    std::vector<std::size_t> free;
    const auto want = static_cast<std::size_t>(job_.settings.n_workers);
    for (std::size_t p = first_free_; p < num_pieces && free.size() < want; ++p)
      if (board_.length(p) == 0) free.push_back(p);
    if (free.empty()) {
      first_free_ = num_pieces;
      break;
    }
    first_free_ = free.front();
    if (auto work = claim(free[random_() % free.size()])) return work;
    board_.refresh();
  }
  board_.refresh();
  for (std::size_t p = 0; p < num_pieces; ++p)
    if (!board_.is_done(p) && may_claim(p))
      if (auto work = claim(p)) return work;
  return std::nullopt;
}

bool Claims::may_claim(std::size_t chain) {
  if (board_.length(chain) == 0) return true;
  const ClaimEntry& last = board_.chain(chain).back();
  if (last.kind == Kind::kReleased) return true;
  return last.kind == Kind::kClaim && last.worker != worker_ && is_stale(last.worker);
}

// By the heartbeat's changes as we see them, not by its time: clocks of hosts differ. On the same
// machine the process itself can be looked at.
bool Claims::is_stale(const std::string& worker) {
  const auto now = SteadyClock::now();
  // If we ourselves were stopped (or had other work), the others' silence means nothing.
  if (std::chrono::duration<double>(now - last_look_).count() > job_.stale_s / 2)
    for (auto& [name, seen] : seen_) seen.changed = now;
  last_look_ = now;
  const auto note = read_worker_note(folder_, worker);
  if (note && note->left) return true;
  if (note)
    if (const auto alive = note->process.alive(); alive && !*alive) return true;
  const std::uint64_t beat = note ? note->beat : 0;
  const auto [found, is_new] = seen_.try_emplace(worker, Seen{beat, now});
  if (is_new) return false;
  if (found->second.beat != beat) found->second = {beat, now};
  return std::chrono::duration<double>(now - found->second.changed).count() > job_.stale_s;
}

// Of several claims a dead worker held only the oldest was being worked on: a later one is nobody's
// fault, and known by an earlier one that the worker did not close itself.
bool Claims::was_running(const std::string& worker, std::uint64_t seq) {
  for (std::size_t p = 0; p < job_.pieces.size(); ++p) {
    const auto& chain = board_.chain(p);
    for (std::size_t e = 0; e < chain.size(); ++e) {
      if (chain[e].kind != Kind::kClaim || chain[e].worker != worker || chain[e].seq >= seq)
        continue;
      const bool closed =
          e + 1 < chain.size() && chain[e + 1].kind != Kind::kClaim;  // only its owner can
      if (!closed) return false;
    }
  }
  return true;
}

std::vector<std::uint64_t> Claims::remaining(std::size_t piece, std::uint64_t& cut) {
  std::unordered_set<std::uint64_t> done;
  const auto& chain = board_.chain(piece);
  for (std::size_t e = 0; e < chain.size(); ++e) {
    if (chain[e].kind != Kind::kClaim) continue;
    const bool open = e + 1 == chain.size();
    const std::uint64_t end = open ? ~std::uint64_t{0} : chain[e + 1].cut;
    const MappedFile bytes(output_folder_ / "journal" / async_journal_name(chain[e].worker));
    std::unordered_set<std::uint64_t> here;
    const std::uint64_t good = scan_journal(bytes.bytes(), job_.fingerprint_hash,
                                            [&](const JournalRecord& record, std::uint64_t offset) {
                                              if (offset >= chain[e].start && offset < end)
                                                here.insert(record.index);
                                            });
    done.merge(here);
    if (open) cut = good;
  }
  std::vector<std::uint64_t> items;
  for (const wire::IndexRange& range : job_.pieces[piece])
    for (std::uint64_t i = 0; i < range.count; ++i)
      if (!done.contains(range.first + i)) items.push_back(range.first + i);
  return items;
}

std::optional<Claims::Work> Claims::claim(std::size_t piece) {
  Held held{.piece = piece, .epoch = board_.length(piece)};
  ClaimEntry entry{.kind = Kind::kClaim, .worker = worker_};
  std::vector<std::uint64_t> items = remaining(piece, entry.cut);
  if (held.epoch > 0) {
    const ClaimEntry& last = board_.chain(piece).back();
    held.suspect = last.suspect;
    held.strikes = last.strikes;
    if (last.kind == Kind::kClaim && !items.empty() && was_running(last.worker, last.seq)) {
      held.strikes = held.suspect == items.front() ? held.strikes + 1 : 1;
      held.suspect = items.front();
    }
  }
  entry.seq = next_seq_;
  entry.start = journal_.size();
  entry.suspect = held.suspect;
  entry.strikes = held.strikes;
  if (!board_.append(piece, held.epoch, entry)) return std::nullopt;
  ++next_seq_;
  Work work;
  if (held.suspect && held.strikes >= std::max(1, job_.settings.max_retries) &&
      std::erase(items, *held.suspect) > 0) {
    const std::string error =
        fmt::format("killed {} worker{} on its own", held.strikes, held.strikes == 1 ? "" : "s");
    append_to_journal(
        {.index = *held.suspect, .status = wire::ItemStatus::kFailed, .payload = error});
    work.failed.emplace_back(*held.suspect, error);
  }
  if (held.epoch > 0)
    log::info("took piece {} over: {} items left{}", piece, items.size(),
              held.strikes > 0
                  ? fmt::format(", item {} has {} strikes", *held.suspect, held.strikes)
                  : "");
  held.left = items.size();
  work.leases = make_leases(held, items);
  held_.push_back(std::move(held));
  if (items.empty()) close(held_.back(), Kind::kDone);
  return work;
}

std::vector<wire::Lease> Claims::make_leases(Held& held, const std::vector<std::uint64_t>& items) {
  std::vector<wire::Lease> leases;
  // Items of a batch that has killed a worker run one by one, so that the next death names one.
  std::size_t single = held.strikes > 0 && job_.spec.batch_size > 1
                           ? static_cast<std::size_t>(job_.spec.batch_size)
                           : 0;
  for (const std::uint64_t index : items) {
    const bool alone = single > 0;
    if (leases.empty() || alone) {
      leases.push_back({.job = 1, .lease = next_lease_++, .ranges = {}});
      held.leases.push_back(leases.back().lease);
    }
    auto& ranges = leases.back().ranges;
    if (!ranges.empty() && ranges.back().first + ranges.back().count == index)
      ++ranges.back().count;
    else
      ranges.push_back({index, 1});
    if (alone && --single == 0) {
      leases.push_back({.job = 1, .lease = next_lease_++, .ranges = {}});
      held.leases.push_back(leases.back().lease);
    }
  }
  std::erase_if(leases, [](const wire::Lease& lease) { return lease.ranges.empty(); });
  return leases;
}

// A large result lies in a file of the lease; it becomes the folder's with its record.
void Claims::append_to_journal(const wire::ResultRecord& record) {
  if (record.status == wire::ItemStatus::kOkInFile) {
    make_own_folder(output_folder_ / "large");
    const std::string name = LargeResult::own_name(record.payload);
    fs::rename(output_folder_ / ".tutti" / "large" / std::string(record.payload),
               output_folder_ / "large" / name);
    fsync_folder(output_folder_ / "large");
    journal_.append({record.index, record.status, name});
    return;
  }
  journal_.append({record.index, record.status, record.payload});
}

bool Claims::record(std::uint64_t lease, const wire::ResultRecord& record) {
  Held* held = find(lease);
  if (held == nullptr) {
    if (record.status == wire::ItemStatus::kOkInFile) {
      std::error_code ignored;  // nobody will read it
      fs::remove(output_folder_ / ".tutti" / "large" / std::string(record.payload), ignored);
    }
    return false;
  }
  append_to_journal(record);
  if (--held->left == 0) close(*held, Kind::kDone);
  return true;
}

void Claims::close(Held& held, Kind kind) {
  // Others may look at the journal from other hosts as soon as they see the entry.
  journal_.flush();
  journal_.sync();
  const ClaimEntry entry{.kind = kind,
                         .worker = worker_,
                         .cut = journal_.size(),
                         .suspect = held.suspect,
                         .strikes = held.strikes};
  if (!board_.append(held.piece, held.epoch + 1, entry))
    log::warning("piece {} was taken over; late results are dropped", held.piece);
  const std::size_t piece = held.piece;
  std::erase_if(held_, [&](const Held& one) { return one.piece == piece; });
}

bool Claims::fail_running(std::uint64_t lease, std::uint64_t index, const std::string& error) {
  if (find(lease) == nullptr) return false;
  append_to_journal({.index = index, .status = wire::ItemStatus::kFailed, .payload = error});
  return true;
}

bool Claims::strike(std::uint64_t lease, std::uint64_t index, const std::string& error) {
  Held* held = find(lease);
  if (held == nullptr) return false;
  held->strikes = held->suspect == index ? held->strikes + 1 : 1;
  held->suspect = index;
  if (held->strikes < std::max(1, job_.settings.max_retries)) return false;
  return fail_running(lease, index,
                      fmt::format("{} ({} workers on its own)", error, held->strikes));
}

std::vector<std::uint64_t> Claims::drop_lost() {
  std::vector<std::uint64_t> leases;
  for (auto held = held_.begin(); held != held_.end();) {
    if (!board_.is_superseded(held->piece, held->epoch)) {
      ++held;
      continue;
    }
    log::warning("piece {} was taken over while we were silent; its results are dropped",
                 held->piece);
    leases.insert(leases.end(), held->leases.begin(), held->leases.end());
    held = held_.erase(held);
  }
  return leases;
}

void Claims::release_all() {
  while (!held_.empty()) close(held_.front(), Kind::kReleased);
}

bool Claims::all_done() {
  board_.refresh();
  for (std::size_t p = 0; p < job_.pieces.size(); ++p)
    if (!board_.is_done(p)) return false;
  return true;
}

Claims::Merge Claims::try_merge() {
  if (!all_done()) return Merge::kNotYet;
  if (board_.is_done(merge_chain_)) return Merge::kDone;
  if (!may_claim(merge_chain_)) return Merge::kNotYet;
  merge_epoch_ = board_.length(merge_chain_);
  const bool ours = board_.append(merge_chain_, merge_epoch_, {.worker = worker_});
  return ours ? Merge::kOurs : Merge::kNotYet;
}

bool Claims::lost_merge() {
  board_.refresh();
  return board_.length(merge_chain_) > merge_epoch_ + 1;
}

void Claims::merged() {
  board_.append(merge_chain_, merge_epoch_ + 1, {.kind = Kind::kDone, .worker = worker_});
}

}  // namespace tutti::parallel
