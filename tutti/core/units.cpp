#include "tutti/core/units.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include "tutti/core/text.h"

namespace tutti {
namespace {

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || status != std::errc{} || end != text.data() + text.size()) return {};
  if (!std::isfinite(value) || value < 0) return {};
  return value;
}

std::optional<double> byte_unit(std::string unit) {
  for (auto& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (unit.empty() || unit == "b") return 1.0;
  static constexpr std::string_view kPrefixes = "kmgtpe";
  const auto power = kPrefixes.find(unit[0]);
  if (power == std::string_view::npos) return {};
  const std::string rest = unit.substr(1);
  const auto exponent = static_cast<double>(power + 1);
  if (rest.empty() || rest == "b") return std::pow(1000.0, exponent);
  if (rest == "i" || rest == "ib") return std::pow(1024.0, exponent);
  return {};
}

// "2h30m", "45 s"
std::optional<double> parse_suffixed(std::string_view text) {
  double total = 0;
  while (!text.empty()) {
    const auto at = text.find_first_not_of("0123456789.");
    if (at == std::string_view::npos || at == 0) return {};
    const auto number = parse_number(text.substr(0, at));
    text = trim(text.substr(at));
    auto unit_end = text.find_first_of("0123456789");
    const auto unit = trim(text.substr(0, unit_end));
    double scale = 0;
    if (unit == "s" || unit == "sec" || unit == "seconds") scale = 1;
    if (unit == "m" || unit == "min" || unit == "minutes") scale = 60;
    if (unit == "h" || unit == "hours" || unit == "hour") scale = 3600;
    if (unit == "d" || unit == "days" || unit == "day") scale = 86400;
    if (unit == "ms") scale = 1e-3;
    if (!number || scale == 0) return {};
    total += *number * scale;
    text = unit_end == std::string_view::npos ? std::string_view{} : text.substr(unit_end);
  }
  return total;
}

}  // namespace

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  text = trim(text);
  const auto at = text.find_first_not_of("0123456789.");
  const auto number = parse_number(text.substr(0, at));
  const auto unit =
      byte_unit(at == std::string_view::npos ? "" : std::string(trim(text.substr(at))));
  if (!number || !unit) return {};
  const double bytes = *number * *unit;
  if (bytes >= 0x1.0p63) return {};
  return static_cast<std::uint64_t>(std::llround(bytes));
}

std::optional<double> parse_duration(std::string_view text) {
  text = trim(text);
  if (const auto plain = parse_number(text)) return plain;
  if (text.find(':') == std::string_view::npos && text.find('-') == std::string_view::npos)
    return text.empty() ? std::nullopt : parse_suffixed(text);

  double days = 0;
  bool has_days = false;
  if (const auto dash = text.find('-'); dash != std::string_view::npos) {  // Slurm: D-HH[:MM[:SS]]
    const auto value = parse_number(text.substr(0, dash));
    if (!value) return {};
    days = *value;
    has_days = true;
    text = text.substr(dash + 1);
  }
  std::vector<double> fields;
  for (const auto& field : split(text, ':')) {
    const auto value = parse_number(field);
    if (!value) return {};
    fields.push_back(*value);
  }
  // 02:75:00 is a slip of somebody, and nobody knows which.
  for (std::size_t i = fields.size() == 4 ? 2 : 1; i < fields.size(); ++i)
    if (fields[i] >= 60) return {};
  if (fields.size() > 4 || (has_days && fields.size() > 3)) return {};
  if (has_days) {
    fields.resize(3, 0.0);
    return days * 86400 + fields[0] * 3600 + fields[1] * 60 + fields[2];
  }
  static constexpr std::array<double, 4> kScale = {86400, 3600, 60, 1};
  double total = 0;
  for (std::size_t i = 0; i < fields.size(); ++i)
    total += fields[i] * kScale[4 - fields.size() + i];
  return total;
}

std::string format_bytes(std::uint64_t num_bytes) {
  if (num_bytes < 1024) return fmt::format("{} B", num_bytes);
  static constexpr std::string_view kPrefixes = "KMGTPE";
  double value = static_cast<double>(num_bytes);
  std::size_t unit = 0;
  for (value /= 1024; value >= 1024 && unit + 1 < kPrefixes.size(); ++unit) value /= 1024;
  return fmt::format("{:.1f} {}iB", value, kPrefixes[unit]);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
  return fmt::format("{}d{:02}h", whole / 86400, whole / 3600 % 24);
}

}  // namespace tutti
