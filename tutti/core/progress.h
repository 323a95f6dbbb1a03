// How far a long piece of work is, for people: a bar with rate and ETA on a terminal, a plain line every half minute in
// files, and nothing for what takes less than a second.
//
//   ProgressBar progress("checking train", dataset.size());
//   for (...) progress.add();        // from any thread
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace tutti {

// "[####............] " for a quarter; shares beyond 0 and 1 are cut off.
std::string progress_bar(double share, std::size_t width = 16);

// The bar and `text` for a terminal of so many columns. What is too long goes by whole parts (", "), from the
// end; the bar goes rather than the ETA.
std::string fitted_line(double share, const std::string& text, std::size_t columns);

// "120/s, ETA 6.2 s"; without the second half when nothing is left. `eta_s`: "?" without.
std::string rate_and_rest(double rate, std::uint64_t left, std::optional<double> eta_s);

// Thread-safe; never throws. The line goes away with the object.
class ProgressBar {
 public:
  ProgressBar(std::string what, std::uint64_t total);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void add(std::uint64_t count = 1) noexcept;

  // "checking train: 250/1000 (25 %), 120/s, ETA 6.2 s"
  static std::string line(const std::string& what, std::uint64_t done, std::uint64_t total,
                          double seconds);

 private:
  using Clock = std::chrono::steady_clock;
  const std::string what_;
  const std::uint64_t total_;
  const Clock::time_point begin_ = Clock::now();
  std::mutex mutex_;
  std::uint64_t done_ = 0;            // guarded by mutex_
  Clock::time_point shown_ = begin_;  // guarded by mutex_
};

// The same for work that is seen from outside (a file that grows): `look` is asked five times a
// second by a thread of its own, as long as the object lives. It must not throw.
class ProgressWatch {
 public:
  struct Seen {
    std::uint64_t done = 0;
    std::uint64_t total = 0;  // 0: not known yet, and nothing is shown
  };
  ProgressWatch(std::string what, std::function<Seen()> look);

 private:
  std::jthread thread_;
};

}  // namespace tutti
