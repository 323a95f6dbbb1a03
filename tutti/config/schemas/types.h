// Values with more than one spelling: devices, amounts of batches, durations.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/config/node.h"
#include "tutti/config/problem.h"

namespace tutti::config {

// `devices: 4 | [0, 3] | "0,3" | -1 | auto`, per node.
struct Devices {
  static constexpr const char* kTypeName = "count, list of ids, -1 or auto";
  bool all = true;       // auto and -1: all there are (under a launcher: what it gave)
  int count = 0;         // of the first devices; 0 when `all` or `ids` speaks
  std::vector<int> ids;  // these and no others
  std::string default_text() const { return "auto"; }
  // The number asked for; empty for `all`.
  std::optional<int> number() const;
};
bool read(const Node& node, Devices& out, std::string& expected);

// `limit_train_batches: 100 | 0.25`: a whole number counts batches, a number with a point is a part
// of the epoch (so 1 is one batch and 1.0 is everything, as in Lightning).
struct Amount {
  static constexpr const char* kTypeName = "batches (10) or part (0.25)";
  bool is_fraction = true;
  double value = 1.0;
  static Amount fraction(double part) { return {true, part}; }
  static Amount count(std::int64_t batches) { return {false, static_cast<double>(batches)}; }
  // Of `total`, at most `total`; a fraction of an unknown total throws ConfigError unless it is all.
  std::optional<std::int64_t> of(std::optional<std::int64_t> total, const char* key) const;
  std::string default_text() const;
};
bool read(const Node& node, Amount& out, std::string& expected);

// `fast_dev_run: false | true | 3`: batches of each kind to try, 0 when off.
struct DevRun {
  static constexpr const char* kTypeName = "true, false or batches";
  DevRun() = default;
  DevRun(int n) : batches(n) {}  // NOLINT(google-explicit-constructor)
  int batches = 0;
  std::string default_text() const { return "false"; }
};
bool read(const Node& node, DevRun& out, std::string& expected);

// `accumulate_grad_batches: 4 | {0: 8, 4: 2}`: batches per update, from the epoch (counted from 0)
// on.
struct Accumulation {
  static constexpr const char* kTypeName = "batches (4) or batches by epoch ({0: 8, 4: 2})";
  Accumulation() = default;
  Accumulation(int batches) : from_epoch{{0, batches}} {}  // NOLINT(google-explicit-constructor)
  Accumulation(std::map<std::int64_t, int> by_epoch)       // NOLINT(google-explicit-constructor)
      : from_epoch(std::move(by_epoch)) {}
  std::map<std::int64_t, int> from_epoch = {{0, 1}};
  int at(std::int64_t epoch) const;  // 1 before the first
  std::string default_text() const { return "1"; }
};
bool read(const Node& node, Accumulation& out, std::string& expected);

// `deterministic: true | false | warn`
struct Deterministic {
  static constexpr const char* kTypeName = "true, false or warn";
  Deterministic() = default;
  Deterministic(bool is_on) : on(is_on) {}  // NOLINT(google-explicit-constructor)
  bool on = false;
  bool warn_only = false;  // operators that cannot be: a warning instead of an error
  std::string default_text() const { return "false"; }
};
bool read(const Node& node, Deterministic& out, std::string& expected);

// `max_time: 00:12:00:00 | {days: 1, hours: 12}`
struct MaxTime {
  static constexpr const char* kTypeName = "duration (DD:HH:MM:SS or {hours: 12})";
  std::optional<double> seconds;
  std::string default_text() const { return "null"; }
};
bool read(const Node& node, MaxTime& out, std::string& expected);

}  // namespace tutti::config
