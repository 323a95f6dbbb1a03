// A BatchStream whose next batch is on its way to the device while the last one is computed with.
//
//   DeviceFeed feed(source.open(position), precision, device);
//   while (auto batch = feed.next()) model.training_step(*batch);
//
// A thread takes batches from the stream. For a GPU it pins what is not pinned yet, and copies (and
// casts, see Precision::prepare) on a queue of its own, beside what is being computed. One batch is
// held ahead. A batch that does not fit on the device is handed out as it came, so that whoever
// prepares it meets the error.
//
// next() is for one thread; errors of the stream are thrown there. It can be given up while the data
// is slow to come (a dead file server must not keep a run from stopping): `give_up` is asked ten
// times a second. The destructor waits for the batch the thread is at, but not for long when next()
// was given up: then the thread is left to the end of the process.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "tutti/data/array.h"
#include "tutti/trainer/batch.h"
#include "tutti/trainer/precision.h"
#include "tutti/trainer/strategies/side_stream.h"

namespace tutti::trainer {

class DeviceFeed {
 public:
  DeviceFeed(std::unique_ptr<BatchStream> stream, const Precision& precision, at::Device device);
  ~DeviceFeed();
  DeviceFeed(const DeviceFeed&) = delete;
  DeviceFeed& operator=(const DeviceFeed&) = delete;

  // Empty: the stream is over, or given_up().
  std::optional<Batch> next(const std::function<bool()>& give_up = {});
  bool given_up() const { return given_up_; }
  void do_not_wait() { given_up_ = true; }  // in the destructor

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // with the thread, which may outlive this
  bool given_up_ = false;           // touched only by the thread that calls next()
  std::thread thread_;
};

// Host memory for a loader's batches: pinned where `device` is a GPU, so that copies need not wait
// for the host.
data::Allocator host_allocator(at::Device device);

}  // namespace tutti::trainer
