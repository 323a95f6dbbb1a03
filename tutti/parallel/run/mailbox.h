// How the driver's loop hands slow work to other threads and hears of its end without waiting.
//
//   Mailbox mailbox;                        // of the loop, which polls mailbox.fd()
//   SideThread disk;
//   disk.post([&] {                         // on the side thread: may take as long as it likes
//     auto text = read_file(path);
//     mailbox.post([=] { use(text); });     // on the loop again
//   });
//
// Internal to the room.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "tutti/core/wake_fd.h"

namespace tutti::parallel {

// Letters to the loop. post and wake: any thread; open: the loop only.
class Mailbox {
 public:
  void post(std::function<void()> letter);
  void wake() noexcept { event_.set(); }
  // Runs what has come, in order. A letter that throws ends the call; the rest waits for the next.
  void open();
  int fd() const noexcept { return event_.fd(); }  // readable: something has come

 private:
  WakeFd event_;
  std::mutex mutex_;
  std::deque<std::function<void()>> letters_;
};

// One thread that does one thing after another. Its tasks do not throw. Processes that must die
// with the driver are started here: the thread lives as long as this object.
class SideThread {
 public:
  SideThread();
  ~SideThread();  // what is queued is still done
  SideThread(const SideThread&) = delete;
  SideThread& operator=(const SideThread&) = delete;
  void post(std::function<void()> task);
  void drop_queued();
  // For how long the task under way has been running; 0: none is.
  double busy_s() const;

 private:
  void run();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::optional<std::chrono::steady_clock::time_point> busy_since_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace tutti::parallel
