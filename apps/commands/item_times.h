// When each item ran, and where: a table that grows while the run goes on.
//
//   index  worker  start              seconds   status
//   0      1       1763311206.120394  0.100284  ok
//
// with tabs between. Starts are Unix times by the clock of the worker's host.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "tutti/parallel/client.h"

namespace tutti::apps {

class ItemTimes {
 public:
  // Goes on after what the file holds. Throws IoError.
  explicit ItemTimes(std::string path);
  void add(const parallel::Outcome& outcome);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  const std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace tutti::apps
