#include "tutti/speech/text/byte_trie.h"

#include <algorithm>

namespace tutti::speech {

ByteTrie::ByteTrie(std::vector<std::pair<std::string_view, int>> keys) {
  if (keys.empty()) return;
  std::sort(keys.begin(), keys.end());
  // A node stands for the range of sorted keys that share its prefix.
  struct Range {
    std::size_t begin, end, depth;
  };
  std::vector<Range> ranges{{0, keys.size(), 0}};
  nodes_.push_back({});
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    auto [begin, end, depth] = ranges[node];
    if (keys[begin].first.size() == depth) nodes_[node].value = keys[begin++].second;
    nodes_[node].first_child = static_cast<std::uint32_t>(nodes_.size());
    while (begin < end) {
      const auto label = static_cast<unsigned char>(keys[begin].first[depth]);
      std::size_t next = begin;
      while (next < end && static_cast<unsigned char>(keys[next].first[depth]) == label) ++next;
      nodes_.push_back({.label = label});
      ranges.push_back({begin, next, depth + 1});
      ++nodes_[node].num_children;
      begin = next;
    }
  }
}

}  // namespace tutti::speech
