#include "tutti/parallel/run/run_plan.h"

#include <algorithm>

#include "tutti/parallel/wire/ranges.h"

namespace tutti::parallel {
namespace {

// The same items, most expensive first. Ties keep their order, so runs are repeatable.
std::vector<wire::IndexRange> by_falling_cost(const std::vector<wire::IndexRange>& work,
                                              const std::function<double(std::uint64_t)>& cost) {
  std::vector<std::pair<double, std::uint64_t>> items;
  for (const wire::IndexRange& range : work)
    for (std::uint64_t i = 0; i < range.count; ++i)
      items.emplace_back(cost(range.first + i), range.first + i);
  std::stable_sort(items.begin(), items.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<wire::IndexRange> sorted;
  for (const auto& [unused, index] : items) wire::append_range(sorted, {index, 1});
  return sorted;
}

}  // namespace

RunPlan make_plan(const ParallelSettings& settings, const JobSpec& job, const RunOptions& options,
                  std::vector<wire::IndexRange> work) {
  RunPlan plan;
  plan.spec = job;
  plan.spec.batch_size = std::max<std::uint64_t>(1, options.batch_size);
  plan.spec.item_timeout_s = options.item_timeout_s.value_or(settings.item_timeout_s) *
                             static_cast<double>(plan.spec.batch_size);
  plan.spec.libraries = settings.plugins;
  plan.work = options.cost ? by_falling_cost(work, options.cost) : std::move(work);
  plan.num_items = wire::total_items(plan.work);
  plan.n_workers = static_cast<int>(
      std::min<std::uint64_t>(static_cast<std::uint64_t>(settings.n_workers), plan.num_items));
  plan.max_retries = options.max_retries.value_or(settings.max_retries);
  plan.on_error = options.on_error.value_or(settings.on_error);
  return plan;
}

}  // namespace tutti::parallel
