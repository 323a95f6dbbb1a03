// Mistakes in config files, collected so that all of a file's are reported at once.
//
//   Problems problems;
//   problems.add(node, "got 8, expected num_nodes x num_device = 2 x 8 = 16", "write 16");
//   problems.throw_if_any();   // ConfigError, sorted by file and line
#pragma once

#include <string>
#include <vector>

#include "tutti/config/node.h"

namespace tutti::config {

struct Problem {
  Mark mark;
  std::string key;               // dotted path
  std::string what;              // "got 'fast', expected an integer"
  std::string fix;               // one sentence, may be empty
  bool is_unknown_key = false;   // the schema has no such key here
  std::string describe() const;  // "FILE:L:C: key: what\n  fix: ..."
};

class Problems {
 public:
  void add(Problem problem) { list_.push_back(std::move(problem)); }
  void add(const Node& at, std::string what, std::string fix = {});
  // The same for something to know but not to stop for (deprecated names).
  void warn(const Node& at, std::string what, std::string fix = {});
  void warn(Problem warning) { warnings_.push_back(std::move(warning)); }
  bool empty() const noexcept { return list_.empty(); }
  std::vector<Problem> sorted() const;  // by file, line, column; duplicates removed
  const std::vector<Problem>& warnings() const noexcept { return warnings_; }
  std::vector<Problem> sorted_warnings() const;
  std::string describe() const;
  void throw_if_any() const;

 private:
  std::vector<Problem> list_;
  std::vector<Problem> warnings_;
};

}  // namespace tutti::config
