#include "tutti/config/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_map>

#include "tutti/config/limits.h"
#include "tutti/config/load.h"
#include "tutti/core/text.h"

namespace tutti::config {
namespace {

std::optional<std::size_t> to_index(const std::string& text) {
  std::size_t index = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (text.empty() || status != std::errc{} || end != text.data() + text.size()) return {};
  return index;
}

enum class Action { kSet, kAdd, kForce, kRemove };

class Override {
 public:
  Override(const std::string& text, Problems& problems) : text_(text), problems_(problems) {}

  ValuePtr apply(const ValuePtr& root) {
    if (!parse()) return root;
    const ValuePtr changed = change(root, 0);
    return failed_ ? root : changed;
  }

 private:
  void fail(std::string what, std::string fix = {}) {
    failed_ = true;
    problems_.add({command_line_mark(), text_, std::move(what), std::move(fix)});
  }

  bool parse() {
    std::string rest = text_;
    if (rest.starts_with("++"))
      action_ = Action::kForce, rest.erase(0, 2);
    else if (rest.starts_with('+'))
      action_ = Action::kAdd, rest.erase(0, 1);
    else if (rest.starts_with('~'))
      action_ = Action::kRemove, rest.erase(0, 1);
    const auto equals = rest.find('=');
    const bool has_value = equals != std::string::npos;
    const std::string path(trim(rest.substr(0, equals)));
    if (has_value == (action_ == Action::kRemove) || path.empty()) {
      fail("not an override", "write key=value, +new_key=value or ~key_to_remove");
      return false;
    }
    steps_ = split(path, '.');
    if (steps_.size() > kMaxDepth) {
      fail(fmt::format("names a key more than {} levels deep", kMaxDepth));
      return false;
    }
    for (const auto& step : steps_) {
      if (!step.empty()) continue;
      fail("a part of the key is empty", "write a.b=c with a name between the dots");
      return false;
    }
    if (has_value) value_ = parse_value(std::string(trim(rest.substr(equals + 1))));
    return !failed_;
  }

  ValuePtr parse_value(const std::string& text) {
    if (!text.empty() && std::string_view("[{\"'").find(text[0]) != std::string_view::npos) {
      Problems inner;
      const Node node = parse_yaml(text, *command_line_mark().file, inner);
      if (inner.empty()) return node.value();
      const Problem first = inner.sorted()[0];
      fail("the value " + text + ": " + first.what, first.fix);
      return nullptr;
    }
    auto value = std::make_shared<Value>();
    value->mark = command_line_mark();
    if (text == "null" || text == "~") return value;
    value->kind = Kind::kScalar;
    value->quoted = text.empty();
    value->text = text;
    return value;
  }

  std::string path_to(std::size_t depth) const {
    std::vector<std::string> parts(steps_.begin(),
                                   steps_.begin() + static_cast<std::ptrdiff_t>(depth));
    return join(parts, ".");
  }

  bool may_add() const { return action_ == Action::kAdd || action_ == Action::kForce; }

  // The value that `node` becomes when steps_[depth...] are applied to it.
  ValuePtr change(const ValuePtr& node, std::size_t depth) {
    if (depth == steps_.size()) return value_;
    if (!node || node->kind == Kind::kNull) {
      if (may_add())
        return change_map(
            std::make_shared<Value>(Value{.kind = Kind::kMap, .mark = command_line_mark()}), depth);
    } else if (node->kind == Kind::kMap) {
      return change_map(std::make_shared<Value>(*node), depth);
    } else if (node->kind == Kind::kList) {
      return change_list(std::make_shared<Value>(*node), depth);
    }
    const std::string where = depth == 0 ? "the config" : fmt::format("'{}'", path_to(depth));
    const bool reference =
        node && node->kind == Kind::kScalar && node->text.find("${") != std::string::npos;
    fail(fmt::format("{} is {}, so it has no key '{}'", where, Node(node).describe_value(),
                     steps_[depth]),
         reference ? "override what it refers to" : fmt::format("use +{} to add it", text_));
    return node;
  }

  ValuePtr change_map(std::shared_ptr<Value> map, std::size_t depth) {
    const std::string& key = steps_[depth];
    const bool last = depth + 1 == steps_.size();
    const auto found = std::find_if(map->map.begin(), map->map.end(),
                                    [&](const auto& e) { return e.first == key; });
    if (found != map->map.end()) {
      if (last && action_ == Action::kRemove) {
        if (map->key_marks.size() == map->map.size())
          map->key_marks.erase(map->key_marks.begin() + (found - map->map.begin()));
        map->map.erase(found);
        return map;
      }
      if (last && action_ == Action::kAdd) {
        fail("the key exists already",
             "use " + text_.substr(1) + " to change it, or ++ for either");
        return map;
      }
      if (last && map->key_marks.size() == map->map.size())
        map->key_marks[static_cast<std::size_t>(found - map->map.begin())] = command_line_mark();
      found->second = change(found->second, depth + 1);
      return map;
    }
    if (!may_add()) {
      fail_missing(*map, key, depth);
      return map;
    }
    if (map->key_marks.size() == map->map.size()) map->key_marks.push_back(command_line_mark());
    map->map.emplace_back(key, change(nullptr, depth + 1));
    return map;
  }

  void fail_missing(const Value& map, const std::string& key, std::size_t depth) {
    std::vector<std::string> known;
    for (const auto& entry : map.map) known.push_back(entry.first);
    const std::string guess = closest_match(key, known);
    const std::string add =
        action_ == Action::kRemove ? "" : fmt::format("use +{} to add it", text_);
    std::string fix = add;
    if (!guess.empty())
      fix = fmt::format("did you mean '{}'?{}", guess, add.empty() ? "" : " Or " + add);
    fail(fmt::format("no key '{}'{}", key, depth == 0 ? "" : " under '" + path_to(depth) + "'"),
         fix);
  }

  ValuePtr change_list(std::shared_ptr<Value> list, std::size_t depth) {
    const auto index = to_index(steps_[depth]);
    const std::size_t size = list->list.size();
    const bool append = index && *index == size && may_add();
    if (!index || (*index >= size && !append)) {
      fail(fmt::format("'{}' is a list of {}, so '{}' must be an index of 0 to {}", path_to(depth),
                       size, steps_[depth], size == 0 ? 0 : size - 1),
           fmt::format("use +{}.{}=... to append", path_to(depth), size));
      return list;
    }
    const bool last = depth + 1 == steps_.size();
    const auto at = list->list.begin() + static_cast<std::ptrdiff_t>(*index);
    if (last && action_ == Action::kRemove)
      list->list.erase(at);
    else if (append)
      list->list.push_back(change(nullptr, depth + 1));
    else
      *at = change(*at, depth + 1);
    return list;
  }

  const std::string& text_;
  Problems& problems_;
  Action action_ = Action::kSet;
  std::vector<std::string> steps_;
  ValuePtr value_;
  bool failed_ = false;
};

ValuePtr merge_deep(const ValuePtr& base, const ValuePtr& overlay) {
  if (!overlay) return base;
  if (!base || base->kind != Kind::kMap || overlay->kind != Kind::kMap) return overlay;
  auto out = std::make_shared<Value>(*base);
  out->mark = overlay->mark;
  const bool has_marks =
      out->key_marks.size() == out->map.size() && overlay->key_marks.size() == overlay->map.size();
  if (!has_marks) out->key_marks.clear();
  std::unordered_map<std::string_view, std::size_t> places;
  for (std::size_t i = 0; i < base->map.size(); ++i) places.emplace(base->map[i].first, i);
  for (std::size_t i = 0; i < overlay->map.size(); ++i) {
    const auto& [key, value] = overlay->map[i];
    if (const auto found = places.find(key); found != places.end()) {
      auto& entry = out->map[found->second];
      entry.second = merge_deep(entry.second, value);
      if (has_marks) out->key_marks[found->second] = overlay->key_marks[i];
    } else {
      out->map.push_back(overlay->map[i]);
      if (has_marks) out->key_marks.push_back(overlay->key_marks[i]);
    }
  }
  return out;
}

bool is_parallel_block(const std::string& key) {
  return key == "parallel" || key.starts_with("parallel_");
}

// Both name a backend, and not the same one.
bool other_env(const Node& before, const Node& after) {
  return before.is_map() && after.is_map() && before["env"].is_scalar() &&
         after["env"].is_scalar() && before["env"].raw() != after["env"].raw();
}

// Options belong to the backend they were written for. Those of the command line stand beside the
// other overrides, in any order.
ValuePtr without_file_options(const Node& block) {
  Node kept;
  for (const auto& [key, value] : block["options"].items())
    if (value.mark().file && *value.mark().file == *command_line_mark().file)
      kept = with_key(kept, key, value);
  return (kept.defined() ? with_key(block, "options", kept) : without_key(block, "options"))
      .value();
}

}  // namespace

Mark command_line_mark() {
  static const auto name = std::make_shared<const std::string>("command line");
  return {name, 0, 0};
}

ValuePtr merge(const ValuePtr& base, const ValuePtr& overlay) {
  if (!base || base->kind != Kind::kMap || !overlay) return merge_deep(base, overlay);
  auto fitting = std::make_shared<Value>(*base);
  for (auto& [key, block] : fitting->map)
    if (is_parallel_block(key) && other_env(Node(block), Node(overlay)[key]))
      block = without_file_options(Node(block));
  return merge_deep(fitting, overlay);
}

ValuePtr apply_override(const ValuePtr& root, const std::string& text, Problems& problems) {
  ValuePtr changed = Override(text, problems).apply(root);
  if (changed == root || !changed || changed->kind != Kind::kMap) return changed;
  auto out = std::make_shared<Value>(*changed);
  for (auto& [key, block] : out->map) {
    const Node before = Node(root)[key];
    const bool options_stayed = before["options"].value() == Node(block)["options"].value();
    if (is_parallel_block(key) && options_stayed && other_env(before, Node(block)))
      block = without_file_options(Node(block));
  }
  return out;
}

bool is_override(const std::string& argument) {
  if (argument.starts_with('~') && !argument.starts_with("~/")) return true;
  const auto equals = argument.find('=');
  if (equals == std::string::npos || equals == 0) return false;
  // A path may hold '=' too, but not before its first '/'.
  return argument.find('/') > equals;
}

Node without_key(const Node& map, const std::string& key) {
  auto copy = map.is_map() ? std::make_shared<Value>(*map.value()) : std::make_shared<Value>();
  copy->kind = Kind::kMap;
  if (copy->map.size() != copy->key_marks.size()) copy->key_marks.clear();
  for (std::size_t i = copy->map.size(); i-- > 0;) {
    if (copy->map[i].first != key) continue;
    copy->map.erase(copy->map.begin() + static_cast<std::ptrdiff_t>(i));
    if (!copy->key_marks.empty())
      copy->key_marks.erase(copy->key_marks.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return Node(copy, map.path());
}

Node with_key(const Node& map, const std::string& key, const Node& value) {
  auto copy = std::make_shared<Value>(*without_key(map, key).value());
  if (copy->map.size() == copy->key_marks.size()) copy->key_marks.push_back(value.mark());
  copy->map.emplace_back(key, value.value());
  return Node(copy, map.path());
}

Node with_key(const Node& map, const std::string& key, const std::string& text) {
  auto value = std::make_shared<Value>();
  value->kind = Kind::kScalar;
  value->text = text;
  value->quoted = true;
  value->mark = map.mark();
  return with_key(map, key, Node(value));
}

}  // namespace tutti::config
