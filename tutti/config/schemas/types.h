// Values with more than one spelling: devices, batch limits, strategies, precision.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
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
struct BatchLimit {
  static constexpr const char* kTypeName = "batches (10) or part (0.25)";
  std::optional<std::int64_t> batches;
  double part = 1.0;
  std::string default_text() const;
};
bool read(const Node& node, BatchLimit& out, std::string& expected);

// `fast_dev_run: false | true | 3`: batches of each kind to try, 0 when off.
struct DevRun {
  static constexpr const char* kTypeName = "true, false or batches";
  int batches = 0;
  std::string default_text() const { return "false"; }
};
bool read(const Node& node, DevRun& out, std::string& expected);

// `accumulate_grad_batches: 4 | {0: 8, 4: 2}`: batches per update, from the epoch (counted from 0)
// on.
struct Accumulation {
  static constexpr const char* kTypeName = "batches (4) or batches by epoch ({0: 8, 4: 2})";
  std::map<std::int64_t, int> from_epoch = {{0, 1}};
  std::string default_text() const { return "1"; }
};
bool read(const Node& node, Accumulation& out, std::string& expected);

// `deterministic: true | false | warn`
struct Deterministic {
  static constexpr const char* kTypeName = "true, false or warn";
  bool on = false;
  bool warn_only = false;
  std::string default_text() const { return "false"; }
};
bool read(const Node& node, Deterministic& out, std::string& expected);

// `precision`: Lightning's spellings, kept as one of 64-true, 32-true, 16-mixed, bf16-mixed,
// bf16-true.
struct PrecisionName {
  static constexpr const char* kTypeName = "32-true, 16-mixed, bf16-mixed, bf16-true or 64-true";
  std::string name = "32-true";
  std::string default_text() const { return name; }
};
bool read(const Node& node, PrecisionName& out, std::string& expected);

// `max_time: 00:12:00:00 | {days: 1, hours: 12}`
struct MaxTime {
  static constexpr const char* kTypeName = "duration (DD:HH:MM:SS or {hours: 12})";
  std::optional<double> seconds;
  std::string default_text() const { return "null"; }
};
bool read(const Node& node, MaxTime& out, std::string& expected);

}  // namespace tutti::config
