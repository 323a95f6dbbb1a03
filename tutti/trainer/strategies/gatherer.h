// Has the right units of a sharded model gathered at the right time, in the same order on all
// ranks.
//
// The first pass of each kind (training, validation) is recorded: a unit is gathered when an
// operator first needs it, after the ranks have told each other that they need the same one, and
// the least recently used one is let go. Later passes replay the recorded order without talking,
// gathering up to `in_flight` units ahead of the computation. A rank that cannot compute (no data,
// NaN, out of memory) plays the rest of the order, so that the others are not left waiting.
#pragma once

#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "tutti/trainer/strategies/flat_unit.h"
#include "tutti/trainer/strategies/watch.h"

namespace tutti::trainer {

struct GatherOptions {
  int in_flight = 2;      // units gathered ahead
  bool keep_all = false;  // units stay until the end of the pass, gathered in the model's order
};

class Gatherer final : public OperatorWatch {
 public:
  // Units outlive it.
  Gatherer(std::vector<FlatUnit*> units, Collectives& collectives, Control& control,
           at::Device device, GatherOptions options);

  void begin(bool training);
  // Throws ConfigError when the units are needed in another order than other ranks, or the first
  // pass, needed them; CommError when a rank is missing.
  void before(const Storages& used) override;
  void settle();  // everything is freed when it returns

 private:
  struct Event {
    bool gather = true;  // or release
    std::size_t unit = 0;
  };
  struct Order {
    bool recorded = false;
    std::vector<Event> events;
  };

  void need(std::size_t unit, const std::vector<std::size_t>& together);
  void record(std::size_t unit, const std::vector<std::size_t>& together);
  void replay(std::size_t unit, const std::vector<std::size_t>& together);
  void issue_until(std::size_t event);
  void prefetch();
  void follow();
  std::optional<std::size_t> agree_on_next(const std::string& mine);

  // Constant after construction.
  std::vector<FlatUnit*> units_;
  std::unordered_map<const c10::StorageImpl*, std::size_t> unit_of_;
  Collectives& collectives_;
  Control& control_;
  GatherOptions options_;
  SideStream stream_;

  std::mutex mutex_;  // a GPU's backward pass may use two of autograd's threads
  Order orders_[2];   // validation, training
  Order* order_ = nullptr;
  std::size_t cursor_ = 0;               // events behind us
  std::size_t issued_ = 0;               // gathers of events before this one are started
  std::vector<std::size_t> recent_;      // while recording: gathered units, oldest use first
  std::optional<std::size_t> promised_;  // while recording: agreed on but not started
};

}  // namespace tutti::trainer
