#include "tutti/speech/decoding/batching.h"

#include <algorithm>
#include <numeric>

#include "tutti/core/log.h"

namespace tutti::speech {

void for_each_batch(const std::vector<std::int64_t>& lengths, BatchBudget& budget,
                    const std::function<void(const std::vector<std::size_t>&)>& work) {
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return lengths[a] > lengths[b]; });
  const std::size_t max_items = std::max<std::size_t>(budget.max_items, 1);
  for (std::size_t begin = 0; begin < order.size();) {
    const std::int64_t longest = std::max<std::int64_t>(lengths[order[begin]], 1);
    std::size_t count = std::min(max_items, order.size() - begin);
    if (budget.max_total > 0)
      count = std::min(
          count, static_cast<std::size_t>(std::max<std::int64_t>(budget.max_total / longest, 1)));
    const auto first = order.begin() + static_cast<std::ptrdiff_t>(begin);
    const std::vector<std::size_t> items(first, first + static_cast<std::ptrdiff_t>(count));
    try {
      work(items);
      begin += count;
    } catch (const OutOfMemory& error) {
      if (count == 1) throw;
      budget.max_total = static_cast<std::int64_t>(count / 2) * longest;
      log::warning("a batch of {} did not fit into memory; going on with {}", count, count / 2);
    }
  }
}

}  // namespace tutti::speech
