#include "tutti/config/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "tutti/core/error.h"

namespace tutti::config {
namespace {
std::string file_of(const Mark& mark) { return mark.file ? *mark.file : std::string(); }

std::vector<Problem> in_order(std::vector<Problem> out) {
  const auto order = [](const Problem& p) {
    return std::make_tuple(file_of(p.mark), p.mark.line, p.mark.column, p.key, p.what);
  };
  std::stable_sort(out.begin(), out.end(),
                   [&](const auto& a, const auto& b) { return order(a) < order(b); });
  out.erase(std::unique(out.begin(), out.end(),
                        [&](const auto& a, const auto& b) { return order(a) == order(b); }),
            out.end());
  return out;
}
}  // namespace

std::string Problem::describe() const {
  std::string text = mark.describe() + ": ";
  if (!key.empty()) text += key + ": ";
  text += what;
  if (!fix.empty()) text += "\n  fix: " + fix;
  return text;
}

void Problems::add(const Node& at, std::string what, std::string fix) {
  list_.push_back({at.mark(), at.path(), std::move(what), std::move(fix)});
}

void Problems::warn(const Node& at, std::string what, std::string fix) {
  warnings_.push_back({at.mark(), at.path(), std::move(what), std::move(fix)});
}

std::vector<Problem> Problems::sorted() const { return in_order(list_); }
std::vector<Problem> Problems::sorted_warnings() const { return in_order(warnings_); }

std::string Problems::describe() const {
  std::string text;
  for (const auto& problem : sorted()) {
    if (!text.empty()) text += '\n';
    text += problem.describe();
  }
  return text;
}

void Problems::throw_if_any() const {
  if (list_.empty()) return;
  const auto problems = sorted();
  throw ConfigError(problems.size() == 1
                        ? problems[0].describe()
                        : fmt::format("{} problems\n{}", problems.size(), describe()));
}

}  // namespace tutti::config
