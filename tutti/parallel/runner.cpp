#include "tutti/parallel/runner.h"

namespace tutti::parallel {

std::vector<Json> BaseRunner::forward_batch(std::span<const std::uint64_t> indices,
                                            const Env& env) const {
  std::vector<Json> results;
  for (const std::uint64_t index : indices) results.push_back(forward(index, env));
  return results;
}

}  // namespace tutti::parallel
