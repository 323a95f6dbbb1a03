#include "tutti/core/program.h"

#include <unistd.h>

#include <cstdlib>

namespace tutti {

std::filesystem::path own_program() {
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  const char* launcher = std::getenv("TUTTI_PROGRAM");
  // Only under a loader: the variable is inherited by whatever our children start.
  const bool by_loader = program.filename().string().starts_with("ld-linux");
  return by_loader && launcher != nullptr ? std::filesystem::path(launcher) : program;
}

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace tutti
