// A typed schema: ties keys of a YAML block to members of a struct, with docs, ranges and units.
//
// One declaration gives parsing, checking, did-you-mean and the generated reference in docs/. The
// struct's own default initialisers are the defaults, so they cannot disagree with the docs.
//
//   struct AdamSettings { double lr = 1e-3; double eps = 1e-8; };
//   Schema<AdamSettings> adam_schema() {
//     Schema<AdamSettings> s("adam", "Adam (Kingma and Ba).");
//     s.field("lr", &AdamSettings::lr, "learning rate", {.min = 0});
//     s.field("eps", &AdamSettings::eps, "added to the denominator", {.min = 0});
//     return s;
//   }
//   Problems problems;
//   AdamSettings adam = adam_schema().parse(node, problems);
//
// A member may be of a type of its own: give it `read(const Node&, T&, std::string& expected)` in
// tutti::config, `static constexpr const char* kTypeName` and `std::string default_text() const`.
//
// Keys the schema does not name are problems with a suggestion, never ignored. Keys that begin
// with "_" and end with "_" (`_target_`, `_convert_`, `_recursive_`) are always allowed.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/config/node.h"
#include "tutti/config/problem.h"

namespace tutti::config {

// Limits of one field. Numbers: min/max inclusive. Strings: one_of.
struct Rule {
  std::optional<double> min = {};
  std::optional<double> max = {};
  std::vector<std::string> one_of = {};
  std::string unit = {};  // "seconds", "bytes"; for the docs
  bool required = false;
};

// What the generated reference needs to know of a field.
struct FieldInfo {
  std::string key;
  std::string type;          // "integer", "list of strings", ...
  std::string default_text;  // as YAML; "" when required
  std::string doc;
  Rule rule;
};

struct SchemaInfo {
  std::string name;
  std::string doc;
  std::vector<FieldInfo> fields;
  std::vector<std::pair<std::string, std::string>> refused;  // key, what to do instead
};

// Adds "unknown key" problems, with a suggestion, for keys of `node` that are not in `known`.
// `elsewhere` maps a key that belongs in another place to the sentence that says where.
void check_unknown_keys(const Node& node, const std::vector<std::string>& known,
                        const std::map<std::string, std::string>& elsewhere, Problems& problems);
void check_rule(const Node& node, const Rule& rule, Problems& problems);

template <class T>
std::string type_name();  // specialised below for every readable type
template <class T>
std::string default_as_yaml(const T& value);

template <class T>
class Schema {
 public:
  Schema(std::string name, std::string doc) : info_{std::move(name), std::move(doc), {}, {}} {}

  // A scalar, list, map, optional or raw Node member.
  template <class F>
  Schema& field(std::string key, F T::*member, std::string doc, Rule rule = {}) {
    info_.fields.push_back({key, type_name<F>(), rule.required ? "" : default_as_yaml(T{}.*member),
                            std::move(doc), rule});
    readers_.push_back([key, member, rule](const Node& node, T& out, Problems& problems) {
      const Node value = node[key];
      if (!value.defined()) {
        if (rule.required)
          problems.add(node, "key '" + key + "' is missing",
                       "add " + key + ": <" + type_name<F>() + ">");
        return;
      }
      // An explicit null means "the default" unless the member itself can hold it.
      if (value.is_null() && !can_hold_null<F>()) return;
      std::string expected;
      if (!read(value, out.*member, expected)) {
        problems.add(value, "got " + value.describe_value() + ", expected " + expected);
        return;
      }
      check_rule(value, rule, problems);
    });
    return *this;
  }

  // A nested block with a schema of its own.
  template <class F>
  Schema& group(std::string key, F T::*member, Schema<F> schema) {
    for (FieldInfo inner : schema.info().fields) {
      inner.key = key + "." + inner.key;
      info_.fields.push_back(std::move(inner));
    }
    groups_.push_back(key);
    readers_.push_back([key, member, schema](const Node& node, T& out, Problems& problems) {
      const Node value = node[key];
      if (!value.is_null()) out.*member = schema.parse(value, problems);
    });
    return *this;
  }

  // An old name: accepted with a warning, read as the new one.
  Schema& deprecated(std::string old_key, std::string new_key) {
    renamed_.emplace(std::move(old_key), std::move(new_key));
    return *this;
  }
  // A key people put here by mistake, and the sentence that says where it belongs.
  Schema& elsewhere(std::string key, std::string sentence) {
    elsewhere_.emplace(std::move(key), std::move(sentence));
    return *this;
  }
  // A key that exists elsewhere but not here. It is a problem, with the sentence as the fix, unless
  // its value asks for nothing: null, empty or one of `harmless`.
  Schema& refused(std::string key, std::vector<std::string> harmless, std::string instead) {
    info_.refused.emplace_back(key, instead);
    readers_.push_back([key, harmless, instead](const Node& node, T&, Problems& problems) {
      const Node value = node[key];
      if (value.is_null() || (!value.is_scalar() && value.size() == 0)) return;
      for (const auto& text : harmless)
        if (value.is_scalar() && value.raw() == text) return;
      problems.add({node.key_mark(key), value.path(), "not supported", instead});
    });
    return *this;
  }
  // A check over the whole struct ("a needs b").
  Schema& check(std::function<void(const Node&, const T&, Problems&)> rule) {
    checks_.push_back(std::move(rule));
    return *this;
  }

  // Reads what it can and reports every problem; the result is meaningful only if none was added.
  T parse(const Node& node, Problems& problems) const {
    T out{};
    if (node.is_null()) {
      for (const auto& field : info_.fields)
        if (field.rule.required) problems.add(node, "key '" + field.key + "' is missing");
      return out;
    }
    if (!node.is_map()) {
      problems.add(node, "got " + node.describe_value() + ", expected a map (" + info_.name + ")");
      return out;
    }
    const Node renamed = apply_renames(node, problems);
    std::vector<std::string> known = groups_;
    for (const auto& field : info_.fields) known.push_back(field.key);
    for (const auto& [key, instead] : info_.refused) known.push_back(key);
    check_unknown_keys(renamed, known, elsewhere_, problems);
    for (const auto& reader : readers_) reader(renamed, out, problems);
    for (const auto& rule : checks_) rule(renamed, out, problems);
    return out;
  }

  const SchemaInfo& info() const noexcept { return info_; }

 private:
  template <class F>
  static constexpr bool can_hold_null() {
    return std::is_same_v<F, Node> || requires(F f) { f.has_value(); };
  }
  Node apply_renames(const Node& node, Problems& problems) const {
    if (renamed_.empty()) return node;
    auto copy = std::make_shared<Value>(*node.value());
    for (auto& [key, value] : copy->map) {
      const auto found = renamed_.find(key);
      if (found == renamed_.end()) continue;
      problems.warn(node[key], "'" + key + "' is an old name", "use '" + found->second + "'");
      if (!node[found->second].defined()) key = found->second;
    }
    return Node(std::move(copy), node.path());
  }

  SchemaInfo info_;
  std::vector<std::string> groups_;
  std::map<std::string, std::string> renamed_;
  std::map<std::string, std::string> elsewhere_;
  std::vector<std::function<void(const Node&, T&, Problems&)>> readers_;
  std::vector<std::function<void(const Node&, const T&, Problems&)>> checks_;
};

namespace detail {
template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};
template <class T>
struct IsMap : std::false_type {};
template <class T>
struct IsMap<std::map<std::string, T>> : std::true_type {};
template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};
}  // namespace detail

template <class T>
std::string type_name() {
  if constexpr (std::is_same_v<T, bool>)
    return "true or false";
  else if constexpr (std::is_integral_v<T>)
    return "integer";
  else if constexpr (std::is_floating_point_v<T>)
    return "number";
  else if constexpr (std::is_same_v<T, std::string>)
    return "text";
  else if constexpr (std::is_same_v<T, Bytes>)
    return "size (32GB)";
  else if constexpr (std::is_same_v<T, Duration>)
    return "duration (01:30:00)";
  else if constexpr (detail::IsVector<T>::value)
    return "list of " + type_name<typename T::value_type>();
  else if constexpr (detail::IsMap<T>::value)
    return "map of " + type_name<typename T::mapped_type>();
  else if constexpr (detail::IsOptional<T>::value)
    return type_name<typename T::value_type>() + " or null";
  else if constexpr (std::is_same_v<T, Node>)
    return "any";
  else if constexpr (requires { T::kTypeName; })
    return T::kTypeName;
  else
    static_assert(!sizeof(T), "type_name: not a readable type");
}

std::string format_number(double value);
std::string format_bytes_yaml(const Bytes& value);
std::string format_duration_yaml(const Duration& value);

template <class T>
std::string default_as_yaml(const T& value) {
  if constexpr (std::is_same_v<T, bool>)
    return value ? "true" : "false";
  else if constexpr (std::is_integral_v<T>)
    return std::to_string(value);
  else if constexpr (std::is_floating_point_v<T>)
    return format_number(value);
  else if constexpr (std::is_same_v<T, std::string>)
    return value.empty() ? "\"\"" : value;
  else if constexpr (std::is_same_v<T, Bytes>)
    return format_bytes_yaml(value);
  else if constexpr (std::is_same_v<T, Duration>)
    return format_duration_yaml(value);
  else if constexpr (detail::IsOptional<T>::value)
    return value ? default_as_yaml(*value) : "null";
  else if constexpr (std::is_same_v<T, Node>)
    return value.defined() ? "..." : "null";
  else if constexpr (requires { value.default_text(); })
    return value.default_text();
  else if constexpr (detail::IsVector<T>::value) {
    std::string text = "[";
    for (const auto& element : value)
      text += (text.size() > 1 ? ", " : "") + default_as_yaml(element);
    return text + "]";
  } else
    return value.empty() ? "{}" : "{...}";
}

}  // namespace tutti::config
