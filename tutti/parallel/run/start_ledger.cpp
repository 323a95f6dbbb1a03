#include "tutti/parallel/run/start_ledger.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/core/units.h"

namespace tutti::parallel {

void StartLedger::ready(const std::string& node) {
  ++nodes_[node].ready;
  in_a_row_ = 0;
  by_scheduler_in_a_row_ = 0;
  ran_s_.reset();
  for (auto& [name, counts] : nodes_) counts.failed_in_a_row = 0;
}

void StartLedger::failed(Failure failure) {
  Node& node = nodes_[failure.node];
  ++node.failed;
  ++node.failed_in_a_row;
  ++in_a_row_;
  ++num_failed_;
  if (failure.by_scheduler) ++by_scheduler_in_a_row_;
  if (const auto ran = failure.ran_s) {
    if (!ran_s_) ran_s_.emplace(*ran, *ran);
    ran_s_ = {std::min(ran_s_->first, *ran), std::max(ran_s_->second, *ran)};
  }
  last_ = std::move(failure);
}

std::vector<std::string> StartLedger::bad_nodes() const {
  std::vector<std::pair<int, std::string>> suspects;  // the worst first
  int others_ready = 0;
  int others_failed = 0;
  for (const auto& [name, counts] : nodes_) {
    if (!name.empty() && counts.failed >= 2 && counts.failed >= counts.ready) {
      suspects.emplace_back(-counts.failed, name);
    } else {
      others_ready += counts.ready;
      others_failed += counts.failed;
    }
  }
  if (others_ready == 0 || others_failed * 4 >= others_ready) return {};
  std::sort(suspects.begin(), suspects.end());
  suspects.resize(std::min(suspects.size(), std::max<std::size_t>(1, nodes_.size() / 3)));
  std::vector<std::string> names;
  for (auto& [unused, name] : suspects) names.push_back(std::move(name));
  return names;
}

int StartLedger::unexplained_failures() const {
  int count = in_a_row_;
  for (const std::string& name : bad_nodes()) count -= nodes_.at(name).failed_in_a_row;
  return count;
}

std::string StartLedger::lifetimes() const {
  if (!ran_s_) return "";
  const std::string shortest = format_duration(ran_s_->first);
  const std::string longest = format_duration(ran_s_->second);
  return shortest == longest ? shortest : shortest + " to " + longest;
}

std::string StartLedger::story() const {
  if (num_failed_ == 0) return "";
  std::string text =
      fmt::format("{} start{} of workers failed", num_failed_, num_failed_ == 1 ? "" : "s");
  std::string where;
  int named = 0;
  for (const auto& [name, counts] : nodes_) {
    if (counts.failed == 0 || name.empty()) continue;
    if (++named > 20) continue;
    where += fmt::format("{}{} {} of {}", where.empty() ? "" : ", ", name, counts.failed,
                         counts.failed + counts.ready);
  }
  if (named > 20) where += fmt::format(" and {} more nodes", named - 20);
  return where.empty() ? text : text + ": " + where;
}

}  // namespace tutti::parallel
