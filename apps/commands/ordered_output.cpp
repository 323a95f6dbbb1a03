#include "apps/commands/ordered_output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "tutti/core/file.h"
#include "tutti/core/text.h"

namespace tutti::apps {

void OrderedOutput::add(std::uint64_t index, const Json& item, const Json& result) {
  put(index, (json_ ? to_json_line(
                          {{"index", index}, {"item", item}, {"status", "ok"}, {"result", result}})
                    : bytes_from_json(result)) +
                 "\n");
}

void OrderedOutput::add_failed(std::uint64_t index, const Json& item, std::string_view reason) {
  ++failed_;
  std::fprintf(stderr, "item %s failed: %.*s\n", to_json_line(item).c_str(),
               static_cast<int>(reason.size()), reason.data());
  put(index, json_ ? to_json_line({{"index", index},
                                   {"item", item},
                                   {"status", "failed"},
                                   {"reason", std::string(reason)}}) +
                         "\n"
                   : "");
}

void OrderedOutput::put(std::uint64_t index, std::string text) {
  waiting_.emplace(index, std::move(text));
  for (auto first = waiting_.begin(); first != waiting_.end() && first->first == next_;
       first = waiting_.erase(first), ++next_)
    write(first->second);
}

void OrderedOutput::finish() {
  constexpr std::size_t kMostGaps = 5;
  std::vector<std::string> gaps;
  const auto note_gap = [&](std::uint64_t end) {  // from next_
    if (next_ + 1 == end) gaps.push_back(std::to_string(next_));
    if (next_ + 1 < end) gaps.push_back(fmt::format("{}-{}", next_, end - 1));
  };
  for (const auto& [index, text] : waiting_) {
    note_gap(index);
    write(text);
    next_ = index + 1;
  }
  note_gap(num_items_);
  next_ = num_items_;
  waiting_.clear();
  if (gaps.empty()) return;
  const std::size_t more = gaps.size() - std::min(gaps.size(), kMostGaps);
  gaps.resize(gaps.size() - more);
  std::fprintf(stderr, "not done, and so without output: {index} %s%s\n", join(gaps, ", ").c_str(),
               more > 0 ? ", ..." : "");
}

void OrderedOutput::write(const std::string& text) {
  if (broken_) return;
  broken_ = true;  // unless all goes well: what fails once is not tried again on the way out
  write_all(STDOUT_FILENO, text, "stdout");
  broken_ = false;
}

}  // namespace tutti::apps
