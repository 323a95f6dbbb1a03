// Bounds that keep a hostile or broken config from eating the machine. Real configs stay far below:
// the largest seen are a 50,000-token list and nine levels of nesting.
#pragma once

#include <cstddef>

namespace tutti::config {

constexpr std::size_t kMaxDepth = 200;                 // levels of nesting
constexpr std::size_t kMaxExpandedValues = 1'000'000;  // values that aliases or ${...} may add
constexpr std::size_t kMaxInterpolatedText = 64U
                                             << 20U;  // bytes that ${...} inside strings may make
constexpr std::size_t kMaxChain = 200;                // ${a} -> ${b} -> ..., and nested ${${...}}

}  // namespace tutti::config
