// Which starts of workers went wrong, and where. A bad node is a share of its own starts; a broken
// set-up is all starts in a row with nobody at work. Failures of the one must not look like the
// other: three broken nodes of ten are left out, and the run goes on with the other seven.
//
// A start ends ready or failed: its job was over before the worker was ready, whoever ended it and with
// whatever exit code, or the env was not built. What the scheduler ends (preemption, walltime, somebody's
// cancel) may hit a whole round of jobs at once and is no proof; the pool gives these more tries. No
// clock, no threads: tests drive it. Internal to the room.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tutti::parallel {

class StartLedger {
 public:
  struct Failure {
    std::string node;             // empty: it never said, and the scheduler did not either
    std::string what;             // "worker 3 died while starting: exit code 1"
    std::string tail;             // of its log
    std::uint32_t exit_code = 0;  // of the error with which the env could not be built; 0: other
    bool connected = false;       // the worker had reached the driver
    bool by_scheduler = false;    // it ended the job, or forgot it
    std::optional<double> ran_s;  // how long the job ran, as far as that was seen
  };
  void ready(const std::string& node);
  void failed(Failure failure);

  // Since somebody was ready for the last time.
  int failures_in_a_row() const noexcept { return in_a_row_; }
  // The same without those of bad nodes: how long to wait before the next start.
  int unexplained_failures() const;
  // Of these, those that the scheduler has ended.
  int ended_by_scheduler_in_a_row() const noexcept { return by_scheduler_in_a_row_; }
  // "11 s to 13 s": how long the jobs of the failures in a row ran; empty: nobody saw one run.
  std::string lifetimes() const;
  const Failure& last() const { return last_; }
  // Nodes that should get no more workers: at least two starts and half of them failed there while
  // the others do well; never more than a third of the nodes.
  std::vector<std::string> bad_nodes() const;
  // "3 starts failed: node7 2 of 2, node9 1 of 3"
  std::string story() const;

 private:
  struct Node {
    int ready = 0;
    int failed = 0;
    int failed_in_a_row = 0;  // since anybody was ready
  };
  std::map<std::string, Node> nodes_;  // unknown ones are ""
  int in_a_row_ = 0;
  int by_scheduler_in_a_row_ = 0;
  int num_failed_ = 0;
  std::optional<std::pair<double, double>> ran_s_;  // the shortest and the longest in the row
  Failure last_;
};

}  // namespace tutti::parallel
