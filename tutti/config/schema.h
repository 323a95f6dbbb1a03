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
//
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
#include <string_view>
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

  ~Rule();  // in schema.cpp: hundreds of fields make one
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

// How members of one type are read and shown. One per type: programs have hundreds of members, and whatever is
// compiled for each of them is compiled for minutes.
struct MemberType {
  std::string (*name)();
  std::string (*default_text)(const void* member);
  bool (*read)(const Node& node, void* member, std::string& expected);
  bool holds_null = false;  // else an explicit null means "the default"
};
template <class F>
const MemberType& member_type();

// A schema without the type of its struct, which is known by the distances of its members.
class AnySchema {
 public:
  const SchemaInfo& info() const noexcept { return info_; }

 protected:
  using Reader = std::function<void(const Node&, void* out, Problems&)>;
  using Check = std::function<void(const Node&, const void* parsed, Problems&)>;

  AnySchema(std::string name, std::string doc);
  void add_field(std::string_view key, const void* defaults, const void* member,
                 const MemberType& type, std::string_view doc, const Rule& rule);
  void add_group(const std::string& key, const SchemaInfo& inner, Reader reader);
  void add_refused(const std::string& key, const std::vector<std::string>& harmless,
                   const std::string& instead);
  void parse_into(void* out, const Node& node, Problems& problems) const;

  std::map<std::string, std::string> renamed_;
  std::map<std::string, std::string> elsewhere_;
  std::vector<Check> checks_;

 private:
  Node apply_renames(const Node& node, Problems& problems) const;

  SchemaInfo info_;
  std::vector<std::string> groups_;
  std::vector<Reader> readers_;
};

template <class T>
class Schema : public AnySchema {
 public:
  Schema(std::string name, std::string doc) : AnySchema(std::move(name), std::move(doc)) {}

  // A scalar, list, map, optional or raw Node member.
  template <class F>
  Schema& field(std::string_view key, F T::*member, std::string_view doc, const Rule& rule = {}) {
    const T& defaults = defaults_of_struct();
    add_field(key, &defaults, &(defaults.*member), member_type<F>(), doc, rule);
    return *this;
  }

  // A nested block with a schema of its own.
  template <class F>
  Schema& group(std::string key, F T::*member, Schema<F> schema) {
    add_group(key, schema.info(),
              [member, schema](const Node& value, void* out, Problems& problems) {
                static_cast<T*>(out)->*member = schema.parse(value, problems);
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
  Schema& refused(const std::string& key, const std::vector<std::string>& harmless,
                  const std::string& instead) {
    add_refused(key, harmless, instead);
    return *this;
  }
  // A check over the whole struct ("a needs b").
  Schema& check(std::function<void(const Node&, const T&, Problems&)> rule) {
    checks_.push_back(
        [rule = std::move(rule)](const Node& node, const void* parsed, Problems& problems) {
          rule(node, *static_cast<const T*>(parsed), problems);
        });
    return *this;
  }

  // Reads what it can and reports every problem; the result is meaningful only if none was added.
  T parse(const Node& node, Problems& problems) const {
    T out{};
    parse_into(&out, node, problems);
    return out;
  }

 private:
  static const T& defaults_of_struct() {
    static const T kDefaults{};
    return kDefaults;
  }
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

template <class F>
const MemberType& member_type() {
  static constexpr MemberType kType = {
      [] { return type_name<F>(); },
      [](const void* member) { return default_as_yaml(*static_cast<const F*>(member)); },
      [](const Node& node, void* member, std::string& expected) {
        return read(node, *static_cast<F*>(member), expected);
      },
      std::is_same_v<F, Node> || requires(F f){f.has_value();
}
};  // namespace tutti::config
return kType;
}

}  // namespace tutti::config
