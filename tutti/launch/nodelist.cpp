#include "tutti/launch/nodelist.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>

#include "tutti/core/error.h"

namespace tutti::launch {
namespace {

class ListParser {
 public:
  ListParser(std::string_view text, const char* what) : text_(text), what_(what) {}

  bool at_end() const { return at_ == text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  char next() { return text_[at_++]; }
  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(fmt::format("expected '{}'", c));
  }

  // The digits as written: their number is the width of "007".
  std::string_view digits() {
    const std::size_t begin = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    if (at_ == begin) fail("expected a number");
    if (at_ - begin > 18) fail("a number is too long");
    return text_.substr(begin, at_ - begin);
  }

  [[noreturn]] void fail(const std::string& reason) const {
    throw ConfigError(
        fmt::format("{} '{}': {} at position {}", what_, text_, reason, at_ + 1),
        "expected something like rack[0-1]node[00-03,7],login (host list) or 8(x2),4 (tasks)");
  }

 private:
  std::string_view text_;
  const char* what_;
  std::size_t at_ = 0;
};

std::int64_t value_of(std::string_view digits) {
  std::int64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

// "00-03,7" up to and with the closing bracket.
std::vector<std::string> parse_group(ListParser& parser) {
  std::vector<std::string> items;
  do {
    const std::string_view low = parser.digits();
    const std::int64_t first = value_of(low);
    std::int64_t last = first;
    if (parser.accept('-')) last = value_of(parser.digits());
    if (last < first) parser.fail(fmt::format("the range {}-{} runs backwards", first, last));
    if (static_cast<std::uint64_t>(last - first) >= kMaxHosts - items.size()) {
      parser.fail(fmt::format("more than {} hosts", kMaxHosts));
    }
    for (std::int64_t i = first; i <= last; ++i) {
      items.push_back(fmt::format("{:0{}}", i, low.size()));
    }
  } while (parser.accept(','));
  parser.expect(']');
  return items;
}

}  // namespace

std::vector<std::string> expand_nodelist(std::string_view text) {
  ListParser parser(text, "host list");
  std::vector<std::string> hosts;
  do {
    std::vector<std::string> names = {""};
    bool empty = true;
    while (!parser.at_end() && parser.peek() != ',') {
      empty = false;
      const char c = parser.next();
      if (c == '[') {
        const std::vector<std::string> group = parse_group(parser);
        if (names.size() * group.size() > kMaxHosts) {
          parser.fail(fmt::format("more than {} hosts", kMaxHosts));
        }
        std::vector<std::string> product;
        for (const auto& name : names) {
          for (const auto& item : group) product.push_back(name + item);
        }
        names = std::move(product);
      } else if (c == ']' || c == ' ' || static_cast<unsigned char>(c) < 0x20) {
        parser.fail(fmt::format("unexpected '{}'", c));
      } else {
        for (auto& name : names) name.push_back(c);
      }
    }
    if (empty) parser.fail("expected a host name");
    if (hosts.size() + names.size() > kMaxHosts) {
      parser.fail(fmt::format("more than {} hosts", kMaxHosts));
    }
    hosts.insert(hosts.end(), names.begin(), names.end());
  } while (parser.accept(','));
  return hosts;
}

std::vector<int> expand_task_counts(std::string_view text) {
  ListParser parser(text, "task counts");
  std::vector<int> counts;
  do {
    const std::int64_t count = value_of(parser.digits());
    std::int64_t times = 1;
    if (parser.accept('(')) {
      parser.expect('x');
      times = value_of(parser.digits());
      parser.expect(')');
    }
    const auto limit = static_cast<std::int64_t>(kMaxHosts);
    if (count > limit || times > limit - static_cast<std::int64_t>(counts.size())) {
      parser.fail("a number is too large");
    }
    counts.insert(counts.end(), static_cast<std::size_t>(times), static_cast<int>(count));
  } while (parser.accept(','));
  if (!parser.at_end()) parser.fail("unexpected character");
  return counts;
}

}  // namespace tutti::launch
