// Other processes of this machine, as tests look at them.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/core/file.h"

namespace tutti::parallel {

inline std::vector<pid_t> all_pids() {
  std::vector<pid_t> pids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") == std::string::npos) pids.push_back(std::stoi(name));
  }
  std::sort(pids.begin(), pids.end());
  return pids;
}

// A file of /proc/PID with blanks for zeros. Empty when the process has gone, which may be in the
// middle of reading.
inline std::string proc_text(pid_t pid, const char* file) try {
  std::string text = read_file("/proc/" + std::to_string(pid) + "/" + file);
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
} catch (const Error&) {
  return "";
}

// 0 when it has gone.
inline pid_t parent_of(pid_t pid) {
  const std::string status = proc_text(pid, "status");
  const auto at = status.find("PPid:");
  return at == std::string::npos ? 0 : std::stoi(status.substr(at + 5));
}

// Without processes that another one of them has just forked: until they start their own program
// they look like their parent.
inline std::vector<pid_t> without_forks(const std::vector<pid_t>& pids) {
  std::vector<pid_t> left;
  std::copy_if(pids.begin(), pids.end(), std::back_inserter(left), [&](pid_t pid) {
    return std::find(pids.begin(), pids.end(), parent_of(pid)) == pids.end();
  });
  return left;
}

}  // namespace tutti::parallel
