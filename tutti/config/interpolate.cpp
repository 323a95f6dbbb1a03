// `${...}`: references, arithmetic and resolver calls over a merged tree.
//
// Every place in the tree is a Location, resolved at most once, where it stands (so that `${.x}` in
// a shared anchor means the sibling at each place of use). Subtrees without `${` are shared as they
// are, so a 50,000-token list costs nothing here.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <filesystem>
#include <limits>
#include <unordered_map>

#include "tutti/config/arithmetic.h"
#include "tutti/config/limits.h"
#include "tutti/config/load.h"
#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti::config {
namespace {

// How large a tree is once written out, with shared parts counted at every use.
struct Extent {
  std::size_t size = 1;
  std::size_t depth = 1;
  bool has_interpolation = false;
};

constexpr std::size_t kSizeCap = std::numeric_limits<std::size_t>::max() / 4;  // sums cannot wrap

struct Location {
  Location* parent = nullptr;
  std::string key;
  ValuePtr raw;
  ValuePtr resolved;
  Extent extent;
  enum class State { kNew, kActive, kDone, kFailed } state = State::kNew;
  std::unordered_map<std::string, Location*> children;

  std::string path() const {
    if (!parent) return {};
    const std::string above = parent->path();
    return above.empty() ? key : above + "." + key;
  }
};

// Why one value cannot be resolved. `reported`: it hangs on another value that was reported.
struct Failure {
  std::string what;
  std::string fix;
  bool reported = false;
};

// The index just after the `}` that closes the `${` at `begin`; npos when there is none.
std::size_t end_of_interpolation(std::string_view text, std::size_t begin) {
  std::size_t depth = 0;
  char quote = '\0';
  for (std::size_t i = begin; i < text.size(); ++i) {
    if (quote != '\0') {
      if (text[i] == quote) quote = '\0';
    } else if (depth > 0 && (text[i] == '\'' || text[i] == '"')) {
      quote = text[i];
    } else if (text[i] == '$' && i + 1 < text.size() && text[i + 1] == '{') {
      ++depth, ++i;
    } else if (text[i] == '}' && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

// `oc.env:HOME` -> "oc.env"; "" when the text is not a call.
std::string resolver_name(std::string_view text) {
  const auto colon = text.find(':');
  if (colon == std::string_view::npos || colon == 0) return {};
  for (const char c : text.substr(0, colon)) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || c == '.';
    if (!plain) return {};
  }
  return std::string(text.substr(0, colon));
}

// Splits at commas outside quotes, brackets and nested ${...}.
std::vector<std::string> split_arguments(std::string_view text) {
  std::vector<std::string> arguments;
  if (trim(text).empty()) return arguments;
  std::string current;
  char quote = '\0';
  int depth = 0;
  for (const char c : text) {
    if (quote != '\0') {
      if (c == quote) quote = '\0';
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}') {
      --depth;
    } else if (c == ',' && depth == 0) {
      arguments.push_back(std::move(current));
      current.clear();
      continue;
    }
    current += c;
  }
  arguments.push_back(std::move(current));
  for (auto& argument : arguments) {
    argument = trim(argument);
    const bool quoted = argument.size() >= 2 && (argument[0] == '\'' || argument[0] == '"') &&
                        argument.back() == argument[0];
    if (quoted) argument = argument.substr(1, argument.size() - 2);
  }
  return arguments;
}

// "a.b[0].c" -> {a, b, 0, c}. Leading dots are counted, not kept.
struct KeyPath {
  std::size_t num_dots = 0;
  std::vector<std::string> steps;
};

KeyPath parse_path(std::string_view text) {
  KeyPath path;
  while (path.num_dots < text.size() && text[path.num_dots] == '.') ++path.num_dots;
  std::string step;
  const auto flush = [&] {
    if (!step.empty()) path.steps.push_back(std::move(step));
    step.clear();
  };
  for (const char c : text.substr(path.num_dots)) {
    if (c == '.' || c == '[' || c == ']')
      flush();
    else
      step += c;
  }
  flush();
  return path;
}

class Interpolator {
 public:
  Interpolator(const Node& root, const Resolvers& resolvers, const std::string& self_name,
               Problems& problems)
      : resolvers_(resolvers), self_name_(self_name), problems_(problems), prefix_(root.path()) {
    root_ = &locations_.emplace_back();
    root_->raw = root.value();
  }

  ValuePtr run() {
    resolve_location(*root_);
    return root_->resolved;
  }

 private:
  // --- walking ---

  const Extent& extent_of(const ValuePtr& value) {
    if (const auto found = extents_.find(value.get()); found != extents_.end())
      return found->second;
    Extent extent;
    const auto add = [&](const ValuePtr& child) {
      const Extent inner = child->kind == Kind::kScalar || child->kind == Kind::kNull
                               ? leaf_extent(*child)
                               : extent_of(child);
      extent.size = std::min(extent.size + inner.size, kSizeCap);
      extent.depth = std::max(extent.depth, inner.depth + 1);
      extent.has_interpolation = extent.has_interpolation || inner.has_interpolation;
    };
    for (const auto& child : value->list) add(child);
    for (const auto& entry : value->map) add(entry.second);
    if (value->kind == Kind::kScalar) extent = leaf_extent(*value);
    return extents_.emplace(value.get(), extent).first->second;
  }

  static Extent leaf_extent(const Value& value) {
    return {1, 1, value.kind == Kind::kScalar && value.text.find("${") != std::string::npos};
  }

  // The place `key` below `parent`, or null. Never resolves `parent` itself.
  Location* child(Location& parent, const std::string& key) {
    if (const auto found = parent.children.find(key); found != parent.children.end())
      return found->second;
    ValuePtr raw;
    if (parent.raw->kind == Kind::kMap) {
      for (const auto& [name, value] : parent.raw->map)
        if (name == key) raw = value;
    } else if (parent.raw->kind == Kind::kList) {
      std::size_t index = 0;
      const auto [end, status] = std::from_chars(key.data(), key.data() + key.size(), index);
      if (status == std::errc{} && end == key.data() + key.size() &&
          index < parent.raw->list.size())
        raw = parent.raw->list[index];
    }
    return raw ? add_child(parent, key, raw) : nullptr;
  }

  Location* add_child(Location& parent, const std::string& key, const ValuePtr& raw) {
    Location& location = locations_.emplace_back();
    location.parent = &parent;
    location.key = key;
    location.raw = raw;
    parent.children.emplace(key, &location);
    return &location;
  }

  void resolve_location(Location& location) {
    using State = Location::State;
    if (location.state == State::kDone || location.state == State::kFailed) return;
    location.state = State::kActive;
    location.extent = extent_of(location.raw);
    active_.push_back(&location);
    try {
      if (active_.size() > kMaxChain + kMaxDepth)
        throw Failure{"references are nested too deep", {}};
      if (!location.extent.has_interpolation)
        location.resolved = location.raw;
      else if (location.raw->kind == Kind::kScalar)
        resolve_scalar(location);
      else
        resolve_container(location);
      if (location.extent.depth > kMaxDepth)
        throw Failure{
            fmt::format("with its references it is nested more than {} levels deep", kMaxDepth),
            {}};
      if (location.extent.size > extent_of(location.raw).size + kMaxExpandedValues)
        throw Failure{fmt::format("references expand to more than {} values", kMaxExpandedValues),
                      "refer to large parts less often"};
      location.state = State::kDone;
    } catch (const Failure& failure) {
      if (!failure.reported) report(location, failure);
      fail(location);
    }
    active_.pop_back();
  }

  void fail(Location& location) {
    location.state = Location::State::kFailed;
    auto hole = std::make_shared<Value>();
    hole->mark = location.raw->mark;
    location.resolved = std::move(hole);
    location.extent = {};
  }

  void resolve_container(Location& location) {
    auto out = std::make_shared<Value>(*location.raw);
    Extent extent;
    extent.has_interpolation = true;
    const auto replace = [&](const std::string& key, ValuePtr& slot) {
      Extent inner = extent_of(slot);
      if (inner.has_interpolation) {
        const auto known = location.children.find(key);
        Location* found =
            known == location.children.end() ? add_child(location, key, slot) : known->second;
        resolve_location(*found);
        slot = found->resolved;
        inner = found->extent;
      }
      extent.size = std::min(extent.size + inner.size, kSizeCap);
      extent.depth = std::max(extent.depth, inner.depth + 1);
    };
    for (std::size_t i = 0; i < out->list.size(); ++i) replace(std::to_string(i), out->list[i]);
    for (auto& [key, slot] : out->map) replace(key, slot);
    location.extent = extent;
    location.resolved = std::move(out);
  }

  // --- one scalar ---

  void resolve_scalar(Location& location) {
    const std::string& text = location.raw->text;
    const bool is_whole = text.starts_with("${") && end_of_interpolation(text, 0) == text.size();
    auto out = std::make_shared<Value>();
    if (is_whole) {
      const auto [value, extent] =
          evaluate_expression(location, std::string_view(text).substr(2, text.size() - 3));
      *out = *value;
      location.extent = extent;
    } else {
      out->kind = Kind::kScalar;
      out->quoted = location.raw->quoted;
      out->text = replace_in_text(location, text);
      location.extent = {};
    }
    location.extent.has_interpolation = true;
    out->mark = location.raw->mark;
    location.resolved = std::move(out);
  }

  std::string replace_in_text(Location& location, std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size();) {
      if (text.substr(i).starts_with("\\${")) {
        out += "${";
        i += 3;
      } else if (text.substr(i).starts_with("${")) {
        const std::size_t end = end_of_interpolation(text, i);
        if (end == std::string_view::npos)
          throw Failure{fmt::format("'{}' has no closing brace", text.substr(i, 60)),
                        "close it with }, or write \\${ for a plain ${"};
        out += as_text(evaluate_expression(location, text.substr(i + 2, end - i - 3)).first,
                       text.substr(i, end - i));
        i = end;
      } else {
        out += text[i++];
      }
      if (num_text_bytes_ + out.size() > kMaxInterpolatedText)
        throw Failure{
            fmt::format("references make more than {} bytes of text", kMaxInterpolatedText), {}};
    }
    num_text_bytes_ += out.size();
    return out;
  }

  static std::string as_text(const ValuePtr& value, std::string_view expression) {
    if (value->kind == Kind::kScalar) return value->text;
    if (value->kind == Kind::kNull) return "null";
    throw Failure{fmt::format("{} is {}, which cannot stand inside text", expression.substr(0, 60),
                              Node(value).describe_value()),
                  "refer to a single value"};
  }

  std::pair<ValuePtr, Extent> evaluate_expression(Location& location, std::string_view raw_text) {
    if (++expression_depth_ > kMaxChain) {
      --expression_depth_;
      throw Failure{"references are nested too deep", {}};
    }
    struct Leave {
      std::size_t& depth;
      ~Leave() { --depth; }
    } leave{expression_depth_};
    const std::string_view text = trim(raw_text);
    if (const std::string name = resolver_name(text); !name.empty())
      return call_resolver(location, name, text.substr(name.size() + 1));
    const std::string flat = text.find("${") == std::string_view::npos
                                 ? std::string(text)
                                 : replace_in_text(location, text);
    if (trim(flat).empty()) throw Failure{"${} names nothing", "write ${key}"};
    std::string why;
    if (Location* target = find(location, flat, why)) return use(*target);
    if (!looks_like_arithmetic(flat)) throw_missing(flat, why);
    try {
      const Number number =
          evaluate(flat, [&](const std::string& key) { return number_at(location, key); });
      return {text_value(number.text()), Extent{}};
    } catch (const ArithmeticError& e) {
      throw Failure{fmt::format("in ${{{}}}: {}", flat.substr(0, 80), e.what()), {}};
    }
  }

  [[noreturn]] static void throw_missing(const std::string& expression, const std::string& why) {
    const auto newline = why.find('\n');
    throw Failure{fmt::format("in ${{{}}}: {}", expression.substr(0, 80), why.substr(0, newline)),
                  newline == std::string::npos ? "" : why.substr(newline + 1)};
  }

  // The value of another place; follows it through to the end.
  std::pair<ValuePtr, Extent> use(Location& target) {
    if (target.state == Location::State::kActive) throw_cycle(target);
    resolve_location(target);
    if (target.state == Location::State::kFailed) throw Failure{{}, {}, true};
    return {target.resolved, target.extent};
  }

  [[noreturn]] void throw_cycle(const Location& target) {
    std::string chain;
    bool inside = false;
    for (const Location* step : active_) {
      inside = inside || step == &target;
      // A container on the way to the value that refers on is not a step of its own.
      if (inside && (step == &target || step->raw->kind == Kind::kScalar))
        chain += name_of(*step) + " -> ";
    }
    throw Failure{"references go in a circle: " + chain + name_of(target),
                  "give one of them a value of its own"};
  }

  // Finds the place a key names, from the root or, with leading dots, from around `from`.
  Location* find(Location& from, const std::string& text, std::string& why) {
    const KeyPath path = parse_path(text);
    Location* at = root_;
    if (path.num_dots > 0) {
      at = &from;
      for (std::size_t i = 0; i < path.num_dots && at; ++i) at = at->parent;
      if (!at) {
        why = "there are more dots than levels above";
        return nullptr;
      }
    }
    if (path.steps.empty() && path.num_dots == 0) return nullptr;
    for (const std::string& step : path.steps) {
      at = look_through(*at);
      Location* next = child(*at, step);
      if (!next) {
        why = describe_missing(*at, step);
        return nullptr;
      }
      at = next;
    }
    return at;
  }

  // Marks a place as being looked through, so that `a: ${b.x}`, `b: ${a.y}` is seen as a circle.
  class Looking {
   public:
    Looking(Interpolator& owner, Location& location) : stack_(owner.looking_) {
      const auto found = std::find(stack_.begin(), stack_.end(), &location);
      if (found != stack_.end() || stack_.size() >= kMaxChain) {
        std::string chain;
        for (auto step = found; step != stack_.end(); ++step)
          chain += owner.name_of(**step) + " -> ";
        throw Failure{"references go in a circle: " + chain + owner.name_of(location),
                      "give one of them a value of its own"};
      }
      stack_.push_back(&location);
    }
    ~Looking() { stack_.pop_back(); }
    Looking(const Looking&) = delete;
    Looking& operator=(const Looking&) = delete;

   private:
    std::vector<Location*>& stack_;
  };

  // `a: ${b}` seen on the way to `${a.c}`: go on at b, without resolving all of b.
  Location* look_through(Location& location) {
    Location* at = &location;
    for (std::size_t i = 0; i < kMaxChain; ++i) {
      if (at->raw->kind != Kind::kScalar) return at;
      const std::string& text = at->raw->text;
      if (!text.starts_with("${") || end_of_interpolation(text, 0) != text.size()) return at;
      std::string inner(trim(std::string_view(text).substr(2, text.size() - 3)));
      std::string why;
      if (inner.find("${") == std::string::npos && resolver_name(inner).empty()) {
        const Looking looking(*this, *at);
        Location* next = find(*at, inner, why);
        if (!next) return at;
        at = next;
        continue;
      }
      // A resolver or a computed name: its value is needed.
      use(*at);
      Location& view = locations_.emplace_back();
      view.parent = at->parent;
      view.key = at->key;
      view.raw = at->resolved;
      return &view;
    }
    return at;
  }

  std::string describe_missing(const Location& at, const std::string& step) const {
    const std::string where = name_of(at);
    if (at.raw->kind == Kind::kList)
      return fmt::format("'{}' is a list of {}, it has no element '{}'", where, at.raw->list.size(),
                         step);
    if (at.raw->kind != Kind::kMap)
      return fmt::format("'{}' is {}, it has no key '{}'", where, Node(at.raw).describe_value(),
                         step);
    std::vector<std::string> known;
    for (const auto& entry : at.raw->map) known.push_back(entry.first);
    const std::string guess = closest_match(step, known);
    std::string text =
        fmt::format("no key '{}'{}", step, &at == root_ ? "" : fmt::format(" under '{}'", where));
    if (!guess.empty()) text += fmt::format("\ndid you mean '{}'?", guess);
    return text;
  }

  Number number_at(Location& location, const std::string& key) {
    std::string why;
    Location* target = find(location, key, why);
    if (!target) throw_missing(key, why);
    const ValuePtr value = use(*target).first;
    std::int64_t whole = 0;
    double real = 0;
    std::string expected;
    const Node node(value);
    if (read(node, whole, expected)) return Number::of(whole);
    if (read(node, real, expected)) return Number::of(real);
    throw ArithmeticError(fmt::format("'{}' is {}, expected a number", key, node.describe_value()));
  }

  std::pair<ValuePtr, Extent> call_resolver(Location& location, const std::string& name,
                                            std::string_view arguments) {
    const Resolvers::Function* function = resolvers_.find(name);
    if (!function) {
      const std::string guess = closest_match(name, resolvers_.names());
      throw Failure{fmt::format("unknown resolver '{}'", name),
                    guess.empty() ? "known resolvers: " + join(resolvers_.names(), ", ")
                                  : fmt::format("did you mean '{}'?", guess)};
    }
    ResolverCall call{name, split_arguments(arguments), location.raw->mark,
                      folder_of(location.raw->mark), self_name_};
    for (auto& argument : call.arguments)
      if (argument.find("${") != std::string::npos) argument = replace_in_text(location, argument);
    try {
      const ValuePtr value = (*function)(call);
      const Extent extent = extent_of(value);
      kept_.push_back(value);  // extents_ is keyed by address
      return {value, {extent.size, extent.depth, false}};
    } catch (const ResolverError& e) {
      throw Failure{
          fmt::format("in ${{{}:{}}}: {}", name, std::string(arguments.substr(0, 80)), e.what()),
          e.fix()};
    } catch (const Error& e) {
      throw Failure{
          fmt::format("in ${{{}:{}}}: {}", name, std::string(arguments.substr(0, 80)), e.what()),
          {}};
    }
  }

  static std::filesystem::path folder_of(const Mark& mark) {
    if (!mark.file || mark.line == 0) return {};
    return std::filesystem::path(*mark.file).parent_path();
  }

  // --- reporting ---

  std::string name_of(const Location& location) const {
    const std::string path = location.path();
    if (prefix_.empty()) return path.empty() ? "the config" : path;
    return path.empty() ? prefix_ : prefix_ + "." + path;
  }

  // The problem stands where the bad text is; whoever needed it on the way is named too.
  void report(const Location& location, const Failure& failure) {
    std::string chain;
    std::size_t num_users = 0;
    for (const Location* step : active_) {
      if (step->raw->kind != Kind::kScalar) continue;
      chain += (chain.empty() ? "" : " -> ") + name_of(*step);
      ++num_users;
    }
    std::string what = failure.what;
    if (num_users > 1 && what.find("circle") == std::string::npos) what += "; needed by " + chain;
    const std::string path = location.path();
    problems_.add({location.raw->mark, prefix_.empty() ? path : name_of(location), std::move(what),
                   failure.fix});
  }

  const Resolvers& resolvers_;
  const std::string& self_name_;
  Problems& problems_;
  const std::string prefix_;
  std::deque<Location> locations_;  // a deque keeps addresses
  Location* root_ = nullptr;
  std::vector<Location*> active_;   // being resolved, outermost first
  std::vector<Location*> looking_;  // being looked through
  std::unordered_map<const Value*, Extent> extents_;
  std::vector<ValuePtr> kept_;
  std::size_t num_text_bytes_ = 0;
  std::size_t expression_depth_ = 0;
};

}  // namespace

Node resolve(const Node& root, const Resolvers& resolvers, const std::string& self_name,
             Problems& problems) {
  if (!root.defined()) return root;
  return Node(Interpolator(root, resolvers, self_name, problems).run(), root.path());
}

}  // namespace tutti::config
