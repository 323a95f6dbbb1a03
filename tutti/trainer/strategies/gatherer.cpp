#include "tutti/trainer/strategies/gatherer.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>

#include "tutti/core/error.h"

namespace tutti::trainer {
namespace {

constexpr std::size_t kKept = 2;  // units at once, for layers whose parts alternate
constexpr const char* kNothingMore = "-";

bool contains(const std::vector<std::size_t>& list, std::size_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

Gatherer::Gatherer(std::vector<FlatUnit*> units, Collectives& collectives, Control& control,
                   at::Device device, GatherOptions options)
    : units_(std::move(units)),
      collectives_(collectives),
      control_(control),
      options_(options),
      stream_(device) {
  for (std::size_t i = 0; i < units_.size(); ++i) unit_of_[units_[i]->storage()] = i;
  if (!options_.keep_all) return;
  for (Order& order : orders_) {
    order.recorded = true;
    for (std::size_t i = 0; i < units_.size(); ++i) order.events.push_back({true, i});
  }
}

void Gatherer::begin(bool training) {
  order_ = &orders_[training ? 1 : 0];
  cursor_ = issued_ = 0;
  recent_.clear();
  promised_.reset();
}

void Gatherer::before(const Storages& used) {
  std::lock_guard lock(mutex_);
  std::vector<std::size_t> needed;  // stays empty, and costs nothing, for most operators
  for (const c10::StorageImpl* storage : used) {
    const auto found = unit_of_.find(storage);
    if (found != unit_of_.end() && !contains(needed, found->second))
      needed.push_back(found->second);
  }
  for (const std::size_t unit : needed) need(unit, needed);
}

void Gatherer::need(std::size_t unit, const std::vector<std::size_t>& together) {
  if (!order_) throw InternalError("a sharded model is used outside a pass");
  if (!order_->recorded && contains(recent_, unit)) {  // now the latest
    std::erase(recent_, unit);
    recent_.push_back(unit);
  }
  if (units_[unit]->ready()) return;
  if (order_->recorded)
    replay(unit, together);
  else
    record(unit, together);
}

// What the ranks gather next; empty when nobody needs anything any more.
std::optional<std::size_t> Gatherer::agree_on_next(const std::string& mine) {
  const auto all = control_.all_gather("the next unit", mine);
  std::optional<std::size_t> first;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == kNothingMore) continue;
    if (!first) {
      first = rank;
    } else if (all[rank] != all[*first]) {
      const auto name = [&](std::size_t r) { return units_[std::stoul(all[r])]->name(); };
      throw ConfigError(
          fmt::format("fsdp: rank {} computes with '{}' while rank {} computes with '{}'", rank,
                      name(rank), *first, name(*first)),
          "layers chosen at random or by data need sharding_strategy: shard_grad_op");
    }
  }
  if (!first) return std::nullopt;
  return std::stoul(all[*first]);
}

void Gatherer::record(std::size_t unit, const std::vector<std::size_t>& together) {
  if (agree_on_next(std::to_string(unit)) != unit) throw InternalError("fsdp: lost its order");
  promised_ = unit;  // the others count on it, even if there is no memory for it here
  if (!units_[unit]->resident()) {
    for (std::size_t i = 0; i < recent_.size() && recent_.size() >= kKept;) {
      const std::size_t old = recent_[i];
      if (contains(together, old)) {
        ++i;
        continue;
      }
      recent_.erase(recent_.begin() + static_cast<std::ptrdiff_t>(i));
      order_->events.push_back({false, old});
      units_[old]->release();
    }
  }
  units_[unit]->start_gather(collectives_, stream_);
  promised_.reset();
  order_->events.push_back({true, unit});
  if (!units_[unit]->resident()) recent_.push_back(unit);
  units_[unit]->finish_gather(control_, stream_);
}

// Starts the gather of this event and of all before it; the order is the same on every rank.
void Gatherer::issue_until(std::size_t event) {
  for (; issued_ <= event; ++issued_)
    if (order_->events[issued_].gather)
      units_[order_->events[issued_].unit]->start_gather(collectives_, stream_);
}

void Gatherer::replay(std::size_t unit, const std::vector<std::size_t>& together) {
  const std::vector<Event>& events = order_->events;
  while (!units_[unit]->ready()) {
    if (cursor_ == events.size())
      throw ConfigError(
          fmt::format("fsdp: rank {} computes with '{}' again, which the first step did not",
                      control_.rank(), units_[unit]->name()),
          "layers chosen at random or by data need sharding_strategy: shard_grad_op");
    const Event event = events[cursor_];
    if (event.gather) {
      issue_until(cursor_);
      units_[event.unit]->finish_gather(control_, stream_);
    } else if (!contains(together, event.unit)) {
      units_[event.unit]->release();
    }
    ++cursor_;
  }
  prefetch();
}

void Gatherer::prefetch() {
  const std::vector<Event>& events = order_->events;
  issued_ = std::max(issued_, cursor_);
  int ahead = 0;
  for (std::size_t i = cursor_; i < events.size() && ahead < options_.in_flight; ++i) {
    if (!events[i].gather) continue;
    if (i >= issued_) {
      // Still in use here from an earlier gather: its release has not been passed yet.
      if (!units_[events[i].unit]->freed()) return;
      issue_until(i);
    }
    ++ahead;
  }
}

// The first pass, on a rank that has nothing (more) to compute.
void Gatherer::follow() {
  const auto serve = [this](std::size_t unit) {
    if (units_[unit]->ready()) units_[unit]->release();
    units_[unit]->start_gather(collectives_, stream_);
    order_->events.push_back({true, unit});
    units_[unit]->finish_gather(control_, stream_);
    order_->events.push_back({false, unit});
    units_[unit]->release();
  };
  if (promised_) serve(*std::exchange(promised_, std::nullopt));
  while (const auto unit = agree_on_next(kNothingMore)) serve(*unit);
  order_->recorded = true;
}

void Gatherer::settle() {
  std::lock_guard lock(mutex_);
  if (!order_) return;
  if (!order_->recorded) {
    follow();
  } else {
    const std::vector<Event>& events = order_->events;
    for (; cursor_ < events.size(); ++cursor_) {
      FlatUnit& unit = *units_[events[cursor_].unit];
      if (events[cursor_].gather) {
        issue_until(cursor_);
        unit.finish_gather(control_, stream_);
      }
      if (!events[cursor_].gather || !unit.resident()) unit.release();
    }
  }
  for (FlatUnit* unit : units_) unit->release();
  order_ = nullptr;
}

}  // namespace tutti::trainer
