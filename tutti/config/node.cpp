#include "tutti/config/node.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "tutti/config/problem.h"
#include "tutti/core/error.h"
#include "tutti/core/text.h"
#include "tutti/core/units.h"

namespace tutti::config {
namespace {

std::string child_path(const std::string& parent, std::string_view key) {
  return parent.empty() ? std::string(key) : parent + "." + std::string(key);
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return out;
}

// Integers as YAML 1.2 and people write them: 42, -3, +7, 0x1f, 1_000_000.
template <class Int>
bool parse_integer(std::string_view raw, Int& out) {
  std::string text(raw);
  std::erase(text, '_');
  std::string_view digits = text;
  if (digits.starts_with('+')) digits.remove_prefix(1);
  int base = 10;
  if (digits.starts_with("0x")) {
    digits.remove_prefix(2);
    base = 16;
  }
  const auto [end, status] =
      std::from_chars(digits.data(), digits.data() + digits.size(), out, base);
  return status == std::errc{} && end == digits.data() + digits.size() && !digits.empty();
}

bool parse_double(std::string_view raw, double& out) {
  std::string text = lower(raw);
  std::erase(text, '_');
  std::string_view digits = text;
  if (digits.starts_with('+')) digits.remove_prefix(1);
  const bool negative = digits.starts_with('-');
  const std::string_view magnitude = negative ? digits.substr(1) : digits;
  if (magnitude == ".inf") {
    out = negative ? -INFINITY : INFINITY;
    return true;
  }
  if (magnitude == ".nan") {
    out = NAN;
    return true;
  }
  // from_chars would also take "inf" and "nan", which in YAML are words.
  if (magnitude.empty() ||
      (!std::isdigit(static_cast<unsigned char>(magnitude[0])) && magnitude[0] != '.'))
    return false;
  const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
  return status == std::errc{} && end == digits.data() + digits.size();
}

bool parse_bool(const Value& value, bool& out) {
  if (value.quoted) return false;
  const std::string text = lower(value.text);
  for (const std::string_view yes : {"true", "yes", "on"})
    if (text == yes) return out = true, true;
  for (const std::string_view no : {"false", "no", "off"})
    if (text == no) return out = false, true;
  return false;
}

template <class Int>
bool read_integer(const Node& node, Int& out, std::string& expected) {
  expected = "an integer";
  if (!node.is_scalar()) return false;
  if (parse_integer(node.raw(), out)) return true;
  // 1e5 and 16.0 are integers a person may write.
  double value = 0;
  if (parse_double(node.raw(), value) && value == std::floor(value) && std::abs(value) < 9e15 &&
      (value >= 0 || std::is_signed_v<Int>)&&value <=
          static_cast<double>(std::numeric_limits<Int>::max())) {
    out = static_cast<Int>(value);
    return true;
  }
  return false;
}

std::string shorten(const std::string& text) {
  constexpr std::size_t kLimit = 60;
  return text.size() <= kLimit ? text : text.substr(0, kLimit) + "...";
}

// YAML's plain style may be used when the text could not be read as anything but this text.
bool plain_is_safe(const std::string& text) {
  if (text.empty() || text != trim(text)) return false;
  if (text.find_first_of("\n\t:#{}[],&*!|>'\"%@`") != std::string::npos) return false;
  // "-1" is plain, "-", "- x" and "---" are not.
  if (text[0] == '-' && (text.size() == 1 || text[1] == ' ' || text[1] == '-')) return false;
  if (text[0] == '?' || text == "~" || text == "=" || text == "<<") return false;
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return c >= 0x20 && c != 0x7f; });
}

bool reads_as_string_when_plain(const std::string& text) {
  const Json json =
      to_json(Node(std::make_shared<Value>(Value{.kind = Kind::kScalar, .text = text})));
  const std::string word = lower(text);
  static constexpr std::array<std::string_view, 8> kYaml11Words = {"yes", "no", "on",   "off",
                                                                   "y",   "n",  "true", "false"};
  return json.is_string() &&
         std::find(kYaml11Words.begin(), kYaml11Words.end(), word) == kYaml11Words.end();
}

std::string quote_yaml(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

void emit_yaml(const Node& node, int indent, std::string& out) {
  const std::string pad(static_cast<std::size_t>(indent), ' ');
  if (node.is_map() && node.size() > 0) {
    for (const auto& [key, child] : node.items()) {
      out += pad + (plain_is_safe(key) && reads_as_string_when_plain(key) ? key : quote_yaml(key)) +
             ":";
      const bool nested = (child.is_map() || child.is_list()) && child.size() > 0;
      out += nested ? "\n" : " ";
      emit_yaml(child, nested ? indent + 2 : 0, out);
    }
  } else if (node.is_list() && node.size() > 0) {
    for (const auto& child : node.elements()) {
      const bool nested = (child.is_map() || child.is_list()) && child.size() > 0;
      if (!nested) {
        out += pad + "- ";
        emit_yaml(child, 0, out);
        continue;
      }
      std::string inner;
      emit_yaml(child, indent + 2, inner);
      inner.replace(static_cast<std::size_t>(indent), 2, "- ");
      out += inner;
    }
  } else if (node.is_map()) {
    out += "{}\n";
  } else if (node.is_list()) {
    out += "[]\n";
  } else if (node.is_null()) {
    out += "null\n";
  } else {
    const Value& value = *node.value();
    const bool plain =
        plain_is_safe(value.text) && (!value.quoted || reads_as_string_when_plain(value.text));
    out += (plain ? value.text : quote_yaml(value.text)) + "\n";
  }
}

}  // namespace

std::string Mark::describe() const {
  if (!file) return "config";
  // Lines of texts that nobody can open mean nothing; the key that follows says what is meant.
  const bool is_file = *file != "command line" && *file != "recipe defaults";
  if (line == 0 || !is_file) return *file;
  return fmt::format("{}:{}:{}", *file, line, column);
}

Mark Node::key_mark(std::string_view key) const {
  if (is_map() && value_->key_marks.size() == value_->map.size()) {
    for (std::size_t i = 0; i < value_->map.size(); ++i)
      if (value_->map[i].first == key) return value_->key_marks[i];
  }
  return mark();
}

Node Node::operator[](std::string_view key) const {
  if (is_map()) {
    for (const auto& [name, child] : value_->map)
      if (name == key) return Node(child, child_path(path_, key));
  }
  return Node(nullptr, child_path(path_, key));
}

Node Node::operator[](std::size_t index) const {
  std::string path = child_path(path_, std::to_string(index));
  if (is_list() && index < value_->list.size()) return Node(value_->list[index], std::move(path));
  return Node(nullptr, std::move(path));
}

Node Node::find(std::string_view dotted_path) const {
  Node node = *this;
  for (const auto& part : split(dotted_path, '.')) {
    std::size_t index = 0;
    node =
        node.is_list() && parse_integer(part, index) ? node[index] : node[std::string_view(part)];
  }
  return node;
}

std::size_t Node::size() const noexcept {
  if (is_list()) return value_->list.size();
  return is_map() ? value_->map.size() : 0;
}

std::vector<std::pair<std::string, Node>> Node::items() const {
  std::vector<std::pair<std::string, Node>> out;
  if (!is_map()) return out;
  out.reserve(value_->map.size());
  for (const auto& [key, child] : value_->map)
    out.emplace_back(key, Node(child, child_path(path_, key)));
  return out;
}

std::vector<Node> Node::elements() const {
  std::vector<Node> out;
  if (!is_list()) return out;
  out.reserve(value_->list.size());
  for (std::size_t i = 0; i < value_->list.size(); ++i) out.push_back((*this)[i]);
  return out;
}

const std::string& Node::raw() const {
  if (!is_scalar()) throw_unreadable(*this, "a single value");
  return value_->text;
}

std::string Node::describe_value() const {
  if (!value_) return "nothing";
  switch (value_->kind) {
    case Kind::kNull:
      return "null";
    case Kind::kScalar:
      return "'" + shorten(value_->text) + "'";
    case Kind::kList:
      return fmt::format("a list of {}", value_->list.size());
    case Kind::kMap:
      return fmt::format("a map of {}", value_->map.size());
  }
  return "nothing";
}

bool read(const Node& node, bool& out, std::string& expected) {
  expected = "true or false";
  return node.is_scalar() && parse_bool(*node.value(), out);
}
bool read(const Node& node, int& out, std::string& expected) {
  return read_integer(node, out, expected);
}
bool read(const Node& node, std::int64_t& out, std::string& expected) {
  return read_integer(node, out, expected);
}
bool read(const Node& node, std::uint64_t& out, std::string& expected) {
  const bool ok = read_integer(node, out, expected);
  expected = "an integer of 0 or more";
  return ok;
}

bool read(const Node& node, double& out, std::string& expected) {
  expected = "a number";
  if (!node.is_scalar()) return false;
  std::int64_t whole = 0;
  if (parse_integer(node.raw(), whole)) return out = static_cast<double>(whole), true;
  return parse_double(node.raw(), out);
}

bool read(const Node& node, std::string& out, std::string& expected) {
  expected = "text";
  if (!node.is_scalar()) return false;
  out = node.raw();
  return true;
}

bool read(const Node& node, Bytes& out, std::string& expected) {
  expected = "a size such as 32GB or 6.5GiB";
  if (!node.is_scalar()) return false;
  const auto bytes = parse_bytes(node.raw());
  if (!bytes) return false;
  // `memory: 32` means gigabytes to whoever writes it, `memory: 28000` megabytes as for sbatch;
  // nothing here is that small.
  const bool has_unit = node.raw().find_first_not_of("0123456789. ") != std::string::npos;
  if (!has_unit && *bytes > 0 && *bytes < (1U << 20U)) {
    expected =
        "a size with its unit: " + std::string(trim(node.raw())) + (*bytes < 1024 ? "GB" : "MB");
    return false;
  }
  out.count = *bytes;
  return true;
}

bool read(const Node& node, Duration& out, std::string& expected) {
  expected = "a duration such as 01:30:00, 2h30m or a number of seconds";
  if (!node.is_scalar()) return false;
  const auto seconds = parse_duration(node.raw());
  if (seconds) out.seconds = *seconds;
  return seconds.has_value();
}

bool read(const Node& node, Node& out, std::string&) {
  out = node;
  return true;
}

void throw_unreadable(const Node& node, const std::string& expected) {
  Problems problems;
  problems.add(node, "got " + node.describe_value() + ", expected " + expected);
  problems.throw_if_any();
  throw InternalError("throw_unreadable");
}

Json to_json(const Node& node) {
  if (node.is_null()) return nullptr;
  const Value& value = *node.value();
  if (value.kind == Kind::kMap) {
    Json out = Json::object();
    for (const auto& [key, child] : value.map) out[key] = to_json(Node(child));
    return out;
  }
  if (value.kind == Kind::kList) {
    Json out = Json::array();
    for (const auto& child : value.list) out.push_back(to_json(Node(child)));
    return out;
  }
  if (value.quoted) return value.text;
  const std::string word = lower(value.text);
  if (word == "true") return true;
  if (word == "false") return false;
  std::int64_t whole = 0;
  if (parse_integer(value.text, whole)) return whole;
  double number = 0;
  if (parse_double(value.text, number) && std::isfinite(number)) return number;
  return value.text;
}

Node from_json(const Json& json) {
  auto value = std::make_shared<Value>();
  if (json.is_object()) {
    value->kind = Kind::kMap;
    for (const auto& [key, child] : json.items())
      value->map.emplace_back(key, from_json(child).value());
  } else if (json.is_array()) {
    value->kind = Kind::kList;
    for (const auto& child : json) value->list.push_back(from_json(child).value());
  } else if (!json.is_null()) {
    value->kind = Kind::kScalar;
    value->quoted = json.is_string();
    value->text = json.is_string() ? json.get<std::string>() : json.dump();
  }
  return Node(std::move(value));
}

std::string to_yaml(const Node& node) {
  std::string out;
  emit_yaml(node, 0, out);
  return out;
}

}  // namespace tutti::config
