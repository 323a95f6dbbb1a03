// A BatchStream whose next batch is on its way to the device while the last one is computed with.
//
//   DeviceFeed feed(source.open(position), precision, device);
//   while (auto batch = feed.next()) model.training_step(*batch);
//
// On a GPU a thread takes batches from the stream, pins what is not pinned yet, and copies (and
// casts, see Precision::prepare) on a queue of its own, beside what is being computed. One batch is
// held ahead. A batch that does not fit on the
// device is handed out as it came, so that whoever prepares it meets the error. On a CPU next() is
// the stream's own.
//
// next() is for one thread; errors of the stream are thrown there. The stream is only used by the
// feed's thread; the destructor waits for the batch it is at.
#pragma once

#include <condition_variable>
#include <exception>
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

  std::optional<Batch> next();  // empty: the stream is over

 private:
  struct Ahead {
    std::optional<Batch> batch;
    Mark copied;  // null: it is where it came from
    std::exception_ptr error;
  };
  void feed();
  Ahead take();

  // Constant after construction.
  const Precision precision_;
  std::unique_ptr<BatchStream> stream_;
  SideStream side_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Ahead> ahead_;  // guarded by mutex_
  bool wanted_ = true;          // guarded by mutex_; the thread may take another
  bool stopping_ = false;       // guarded by mutex_
  std::thread thread_;
};

// Host memory for a loader's batches: pinned where `device` is a GPU, so that copies need not wait
// for the host.
data::Allocator host_allocator(at::Device device);

}  // namespace tutti::trainer
