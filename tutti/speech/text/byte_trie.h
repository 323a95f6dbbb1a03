// A read-only trie over byte strings: every piece that begins at a position, in one walk.
//
//   ByteTrie trie({{"ab", 1}, {"abc", 2}});
//   trie.for_each_prefix("abcd", [](std::size_t length, int value) { ... });   // (2, 1), (3, 2)
//
// Immutable after construction, so any number of threads may read it.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::speech {

class ByteTrie {
 public:
  ByteTrie() = default;
  // REQUIRES: keys are distinct and not empty, values >= 0.
  explicit ByteTrie(std::vector<std::pair<std::string_view, int>> keys);

  bool empty() const noexcept { return nodes_.empty(); }

  template <class Visit>
  void for_each_prefix(std::string_view text, Visit&& visit) const {
    if (nodes_.empty()) return;
    std::uint32_t node = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<unsigned char>(text[i]));
      if (node == 0) return;
      if (nodes_[node].value >= 0) visit(i + 1, nodes_[node].value);
    }
  }
  // Length of the longest key that begins `text`; 0 when none does.
  std::size_t longest_prefix(std::string_view text) const {
    std::size_t longest = 0;
    for_each_prefix(text, [&](std::size_t length, int) { longest = length; });
    return longest;
  }

 private:
  struct Node {
    std::uint32_t first_child = 0;
    std::uint16_t num_children = 0;
    unsigned char label = 0;
    std::int32_t value = -1;
  };
  // 0 (the root, nobody's child) when there is none.
  std::uint32_t child(std::uint32_t node, unsigned char label) const {
    std::uint32_t low = nodes_[node].first_child;
    std::uint32_t high = low + nodes_[node].num_children;
    while (low < high) {
      const std::uint32_t middle = low + (high - low) / 2;
      if (nodes_[middle].label < label) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    const bool found =
        low < nodes_[node].first_child + nodes_[node].num_children && nodes_[low].label == label;
    return found ? low : 0;
  }

  std::vector<Node> nodes_;  // breadth first, so that the children of a node are neighbours
};

}  // namespace tutti::speech
