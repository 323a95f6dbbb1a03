// Samples by number, read by threads before they are asked for, so that a model never waits for a
// disk or a decoder of FLAC.
//
//   ReadAhead samples([&](std::uint64_t index) { return dataset.read(index); });
//   samples.expect(this_batch_and_the_next);
//   model.run(samples.take(this_batch));
//
// `read` is called from several threads at once. All but collect() are for one thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "tutti/data/dataset.h"

namespace tutti::systems {

class ReadAhead {
 public:
  using Read = std::function<data::Sample(std::uint64_t index)>;
  explicit ReadAhead(Read read);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Begins to read these, in this order, and forgets all others that nobody has claimed. Returns at once.
  void expect(std::span<const std::uint64_t> indices);
  // In the order asked for; waits for those that are not there yet. Throws what reading threw, of
  // the first in that order.
  std::vector<data::Sample> take(std::span<const std::uint64_t> indices);

  // take() in two parts: another thread may collect() what was claimed.
  class Claim;
  Claim claim(std::span<const std::uint64_t> indices);
  std::vector<data::Sample> collect(const Claim& claim);

 private:
  struct Slot {
    std::uint64_t index = 0;
    bool is_done = false;
    bool is_claimed = false;
    data::Sample sample;
    std::exception_ptr error;
  };
  void work();
  std::shared_ptr<Slot> want_locked(std::uint64_t index);

  const Read read_;
  std::mutex mutex_;
  std::condition_variable work_there_, slot_done_;
  // guarded by mutex_
  std::map<std::uint64_t, std::shared_ptr<Slot>> slots_;  // expected; shared with who reads it
  std::deque<std::shared_ptr<Slot>> queue_;               // to be read
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

class ReadAhead::Claim {
  friend class ReadAhead;
  std::vector<std::shared_ptr<Slot>> slots_;
};

}  // namespace tutti::systems
