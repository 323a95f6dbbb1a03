// Results on stdout in the order of the items, whatever the order in which they come.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "tutti/core/json.h"

namespace tutti::apps {

class OrderedOutput {
 public:
  OrderedOutput(bool json_lines, std::uint64_t num_items)
      : json_(json_lines), num_items_(num_items) {}
  // Writes what is next in line. Throws IoError when stdout is gone.
  void add(std::uint64_t index, const Json& item, const Json& result);
  void add_failed(std::uint64_t index, const Json& item, std::string_view reason);
  // Writes what had to wait for items that never came, and says on stderr which they are.
  void finish();
  std::uint64_t num_failed() const noexcept { return failed_; }

 private:
  void put(std::uint64_t index, std::string text);
  void write(const std::string& text);

  const bool json_;
  const std::uint64_t num_items_;
  std::map<std::uint64_t, std::string> waiting_;
  std::uint64_t next_ = 0;
  std::uint64_t failed_ = 0;
  bool broken_ = false;
};

}  // namespace tutti::apps
