// A resolved config: an immutable tree that remembers where every value was written.
//
//   const Node config = load({.files = {"conf/training.yaml"}, .overrides = {"seed=7"}});
//   const int devices = config["trainer"]["devices"].as<int>();   // throws with file:line:col
//   const auto seed = config["seed"].value_or<std::int64_t>(0);   // absent or null: 0
//
// A Node is a cheap handle (copy it freely); the tree behind it is shared and never changes, so
// reading from several threads is safe. Why not YAML::Node: it is mutable behind const, grows keys
// when read, and its errors name neither the key nor the file.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/core/json.h"

namespace tutti::config {

// Where a value was written. line and column count from 1; line 0: not from a file.
struct Mark {
  std::shared_ptr<const std::string> file;  // shared by all marks of a file
  int line = 0;
  int column = 0;
  std::string describe() const;  // "conf/training.yaml:14:3", or "command line"
};

enum class Kind { kNull, kScalar, kList, kMap };

struct Value;
using ValuePtr = std::shared_ptr<const Value>;

// The tree itself; rooms read it through Node.
struct Value {
  Kind kind = Kind::kNull;
  bool quoted = false;                                // 'yes' in quotes is never a bool
  std::string text;                                   // kScalar: exactly as written
  std::vector<ValuePtr> list;                         // kList
  std::vector<std::pair<std::string, ValuePtr>> map;  // kMap, in file order
  std::vector<Mark> key_marks;                        // kMap: where each key stands; empty: unknown
  Mark mark;
};

class Node {
 public:
  Node() = default;  // missing
  explicit Node(ValuePtr value, std::string path = {})
      : value_(std::move(value)), path_(std::move(path)) {}

  bool defined() const noexcept { return value_ != nullptr; }
  // Missing and explicit null alike.
  bool is_null() const noexcept { return !value_ || value_->kind == Kind::kNull; }
  bool is_scalar() const noexcept { return value_ && value_->kind == Kind::kScalar; }
  bool is_list() const noexcept { return value_ && value_->kind == Kind::kList; }
  bool is_map() const noexcept { return value_ && value_->kind == Kind::kMap; }
  const ValuePtr& value() const noexcept { return value_; }

  // "trainer.logger.0.save_dir"; "" at the root.
  const std::string& path() const noexcept { return path_; }
  Mark mark() const { return value_ ? value_->mark : Mark{}; }
  // Of a map: where `key` itself is written; the map's own mark when the key is not there.
  Mark key_mark(std::string_view key) const;

  // A missing key or index gives a missing node that knows its path; reading it throws.
  Node operator[](std::string_view key) const;
  Node operator[](std::size_t index) const;
  Node find(std::string_view dotted_path) const;            // "trainer.logger.0.name"
  std::size_t size() const noexcept;                        // of a list or map, else 0
  std::vector<std::pair<std::string, Node>> items() const;  // of a map
  std::vector<Node> elements() const;                       // of a list

  // The scalar exactly as written ("12:00:00" stays that).
  const std::string& raw() const;
  // T: bool, int, std::int64_t, std::uint64_t, std::size_t, double, std::string, Bytes, Duration,
  // Node, and std::vector<T>, std::map<std::string, T>, std::optional<T> of these.
  // Throws ConfigError: where, key, got, expected.
  template <class T>
  T as() const;
  template <class T>
  T value_or(T fallback) const {
    return is_null() ? std::move(fallback) : as<T>();
  }
  // What a person would call this value in an error: "'abc'", "a list of 3", "null", "nothing".
  std::string describe_value() const;

 private:
  ValuePtr value_;
  std::string path_;
};

// "32GB" -> 32e9. A type of its own so that `memory: 4` cannot be taken for gigabytes.
struct Bytes {
  std::uint64_t count = 0;
};
// "01:00:00", 90, "2h30m" -> seconds, from the raw text (YAML 1.1 would read 01:00:00 as 3600).
struct Duration {
  double seconds = 0;
};

// Reads one value; on failure returns false and says what was expected ("an integer").
bool read(const Node& node, bool& out, std::string& expected);
bool read(const Node& node, int& out, std::string& expected);
bool read(const Node& node, std::int64_t& out, std::string& expected);
bool read(const Node& node, std::uint64_t& out, std::string& expected);
bool read(const Node& node, double& out, std::string& expected);
bool read(const Node& node, std::string& out, std::string& expected);
bool read(const Node& node, Bytes& out, std::string& expected);
bool read(const Node& node, Duration& out, std::string& expected);
bool read(const Node& node, Node& out, std::string& expected);

template <class T>
bool read(const Node& node, std::optional<T>& out, std::string& expected) {
  out.reset();
  if (node.is_null()) return true;
  T value{};
  if (!read(node, value, expected)) {
    expected += " or null";
    return false;
  }
  out = std::move(value);
  return true;
}

template <class T>
bool read(const Node& node, std::vector<T>& out, std::string& expected) {
  out.clear();
  if (!node.is_list()) {
    expected = "a list";
    return false;
  }
  for (const Node& element : node.elements()) {
    T value{};
    if (!read(element, value, expected)) {
      expected = "a list in which each element is " + expected;
      return false;
    }
    out.push_back(std::move(value));
  }
  return true;
}

template <class T>
bool read(const Node& node, std::map<std::string, T>& out, std::string& expected) {
  out.clear();
  if (!node.is_map()) {
    expected = "a map";
    return false;
  }
  for (const auto& [key, element] : node.items()) {
    T value{};
    if (!read(element, value, expected)) {
      expected = "a map in which each value is " + expected;
      return false;
    }
    out.emplace(key, std::move(value));
  }
  return true;
}

[[noreturn]] void throw_unreadable(const Node& node, const std::string& expected);

template <class T>
T Node::as() const {
  T out{};
  std::string expected;
  if (!read(*this, out, expected)) throw_unreadable(*this, expected);
  return out;
}

// Plain JSON of a tree, for manifests, fingerprints and the wire. Scalars become null, bool, number
// or string by YAML 1.2's core rules; quoted ones stay strings.
Json to_json(const Node& node);
// The way back; marks say "line 0".
Node from_json(const Json& json);
// Block style YAML that loads to the same tree.
std::string to_yaml(const Node& node);

}  // namespace tutti::config
