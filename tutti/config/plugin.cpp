#include "tutti/config/plugin.h"

#include <dlfcn.h>

#include <exception>

namespace tutti::config {
namespace {
namespace fs = std::filesystem;

using RegisterFunction = void (*)(PluginHost&);

// A file beside the YAML wins; else the loader searches for the bare name.
std::string library_path(const Node& entry) {
  const fs::path name = entry.raw();
  const Mark mark = entry.mark();
  const fs::path folder =
      mark.file && mark.line > 0 ? fs::path(*mark.file).parent_path() : fs::path();
  std::error_code error;
  const fs::path beside = fs::absolute(folder / name, error);
  return !error && fs::exists(beside, error) ? beside.string() : name.string();
}

void load_plugin(const Node& entry, PluginHost& host, Problems& problems) {
  if (!entry.is_scalar()) {
    problems.add(entry,
                 "got " + entry.describe_value() + ", expected the path of a shared library");
    return;
  }
  void* handle = ::dlopen(library_path(entry).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* why = ::dlerror();
    problems.add(entry, std::string("cannot load the plugin: ") + (why ? why : "unknown reason"),
                 "give a path from the folder of this file");
    return;
  }
  auto* function = reinterpret_cast<RegisterFunction>(::dlsym(handle, "tutti_register"));
  if (!function) {
    problems.add(entry, "the library has no function tutti_register", "see tutti/config/plugin.h");
    return;
  }
  try {
    function(host);
  } catch (const std::exception& e) {
    problems.add(entry, std::string("the plugin failed to register: ") + e.what());
  }
}

}  // namespace

void load_plugins(const Node& list, PluginHost& host, Problems& problems) {
  if (list.is_null()) return;
  if (!list.is_list()) {
    problems.add(list, "got " + list.describe_value() + ", expected a list of shared libraries",
                 "write plugins: [libname.so]");
    return;
  }
  for (const Node& entry : list.elements()) load_plugin(entry, host, problems);
}

}  // namespace tutti::config
