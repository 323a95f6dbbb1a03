// Length-sorted batches under a memory budget, halved when the memory is not there after all.
//
//   BatchBudget budget{.max_items = 64, .max_total = 64 * 480000};
//   for_each_batch(lengths, budget, [&](const std::vector<std::size_t>& items) {
//     ...decode them; throw OutOfMemory when the device has none left...
//   });
//
// Items go longest first: the first batch is the largest, so a budget that is too high shows at
// once, and little is padded since neighbours are alike. A batch that throws OutOfMemory is cut in
// two and tried again, and later batches, those of the next call too, are planned for the size that
// worked. One item alone that does not fit is the caller's error to see. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <vector>

namespace tutti::speech {

struct BatchBudget {
  std::size_t max_items = 32;
  std::int64_t max_total = 0;  // of items x longest in the batch (padding costs too); 0: no limit
};

class OutOfMemory : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Every item is done exactly once. Exceptions other than OutOfMemory pass through.
// `budget` is lowered to what fitted.
void for_each_batch(const std::vector<std::int64_t>& lengths, BatchBudget& budget,
                    const std::function<void(const std::vector<std::size_t>&)>& work);

}  // namespace tutti::speech
