// Loaded by LD_PRELOAD: the process is killed before its TUTTI_TEST_DIE_BEFORE-th (from 0) change of a
// name under TUTTI_TEST_DIE_IN, as a lost node would end it between two of them.
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace {

void maybe_die(const char* path) {
  static std::atomic<int> left{std::atoi(std::getenv("TUTTI_TEST_DIE_BEFORE"))};
  static const char* const folder = std::getenv("TUTTI_TEST_DIE_IN");
  if (std::strncmp(path, folder, std::strlen(folder)) == 0 && left-- == 0)
    ::kill(::getpid(), SIGKILL);
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int rename(const char* from, const char* to) {
  maybe_die(to);
  return next<int(const char*, const char*)>("rename")(from, to);
}
int link(const char* from, const char* to) {
  maybe_die(to);
  return next<int(const char*, const char*)>("link")(from, to);
}
int symlink(const char* target, const char* path) {
  maybe_die(path);
  return next<int(const char*, const char*)>("symlink")(target, path);
}
int remove(const char* path) {
  maybe_die(path);
  return next<int(const char*)>("remove")(path);
}
}
