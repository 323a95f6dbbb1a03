#include "apps/commands/ordered_output.h"

#include <unistd.h>

#include <cstdio>

#include "tutti/core/file.h"

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
  for (const auto& [index, text] : waiting_) write(text);
  waiting_.clear();
}

void OrderedOutput::write(const std::string& text) {
  if (broken_) return;
  broken_ = true;  // unless all goes well: what fails once is not tried again on the way out
  write_all(STDOUT_FILENO, text, "stdout");
  broken_ = false;
}

}  // namespace tutti::apps
