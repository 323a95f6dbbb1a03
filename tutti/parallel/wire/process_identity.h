// A process named for good: pids are used again, and mean something only inside their namespace.
// Internal to the room.
#pragma once

#include <optional>
#include <string>

#include "tutti/core/json.h"

namespace tutti::parallel {

struct ProcessIdentity {
  std::string host;
  long pid = 0;
  std::string pid_namespace;  // containers may share a host name
  std::string start_time;     // field 22 of /proc/PID/stat

  static ProcessIdentity self();
  static ProcessIdentity parent();
  static ProcessIdentity from_json(const Json& json);  // whatever is missing stays empty
  void put_into(Json& json) const;
  // Does it live? Empty: it is of another host or namespace, where we cannot look.
  std::optional<bool> alive() const;
  // It lives, where we can look, but does nothing until somebody wakes it (SIGSTOP, a debugger).
  bool stands_still() const;
};

}  // namespace tutti::parallel
