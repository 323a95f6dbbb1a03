#include "tutti/parallel/wire/process_identity.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/program.h"
#include "tutti/core/text.h"

namespace tutti::parallel {
namespace {

struct ProcStat {
  std::string state = "Z";
  std::string start_time;  // empty: the process is gone, or a zombie
};

ProcStat stat_of(long pid) {
  std::string text;
  try {
    text = read_file(fmt::format("/proc/{}/stat", pid));
  } catch (const Error&) {  // gone, perhaps while we were reading
    return {};
  }
  const auto close = text.rfind(')');
  if (close == std::string::npos) return {};
  const auto words = split_words(std::string_view(text).substr(close + 1));
  if (words.size() < 20 || words[0] == "Z") return {};
  return {words[0], words[19]};
}

std::string start_time_of(long pid) { return stat_of(pid).start_time; }

std::string own_pid_namespace() {
  std::error_code ignored;  // no /proc: then all processes share ""
  return std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
}

}  // namespace

ProcessIdentity ProcessIdentity::self() {
  return {host_name(), ::getpid(), own_pid_namespace(), start_time_of(::getpid())};
}

ProcessIdentity ProcessIdentity::parent() {
  return {host_name(), ::getppid(), own_pid_namespace(), start_time_of(::getppid())};
}

ProcessIdentity ProcessIdentity::from_json(const Json& json) {
  if (!json.is_object()) return {};
  return {json.value("host", ""), json.value("pid", 0L), json.value("pid_namespace", ""),
          json.value("start_time", "")};
}

void ProcessIdentity::put_into(Json& json) const {
  json["host"] = host;
  json["pid"] = pid;
  json["pid_namespace"] = pid_namespace;
  json["start_time"] = start_time;
}

std::optional<bool> ProcessIdentity::alive() const {
  if (host != host_name() || pid_namespace != own_pid_namespace()) return std::nullopt;
  const std::string started = start_time_of(pid);
  return !started.empty() && started == start_time;
}

bool ProcessIdentity::stands_still() const {
  if (!alive().value_or(false)) return false;
  const std::string state = stat_of(pid).state;
  return state == "T" || state == "t";
}

}  // namespace tutti::parallel
