#include "tutti/config/plugin.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/program.h"

namespace tutti::config {
namespace {
namespace fs = std::filesystem;

constexpr std::string_view kMark = TUTTI_PLUGIN_MARK;

fs::path shipped_folder() {
  return own_program().parent_path().parent_path() / "lib" / "tutti" / "plugins";
}

// The version a file was built for, without running any of its code; empty: it does not say.
std::string version_in(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return {};  // the loader searches for it
  const std::string bytes = read_file(path);
  const std::size_t at = bytes.find(kMark);
  if (at == std::string::npos) return {};
  const std::size_t begin = at + kMark.size();
  return bytes.substr(begin, std::min<std::size_t>(bytes.find('\0', begin) - begin, 40));
}

// "undefined symbol: _ZN5tutti..." in words of the source.
std::string readable(const std::string& message) {
  const std::size_t at = message.find("_Z");
  if (at == std::string::npos) return message;
  const std::size_t end = std::min(message.find_first_of(" \t(", at), message.size());
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(message.substr(at, end - at).c_str(), nullptr, nullptr, &status),
      std::free);
  return status == 0 ? message.substr(0, at) + name.get() + message.substr(end) : message;
}

// Tutti may itself be part of a library that was loaded for its caller alone (RTLD_LOCAL: a module
// of Python): plugins would not find the symbols they take from it.
void show_own_symbols() {
  Dl_info own{};
  if (::dladdr(reinterpret_cast<const void*>(&shipped_plugins), &own) != 0 && own.dli_fname)
    ::dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
}

struct LoadFailure {
  std::string what;
  std::string fix;
};

LoadFailure other_version(const std::string& got) {
  return {"the plugin was built for Tutti " + got + ", expected " TUTTI_VERSION,
          "build it again with the headers of this Tutti"};
}

// A library for workers need not register anything: their items may only need what it loads.
enum class Library { kPlugin, kForWorkers };

std::optional<LoadFailure> try_load(const std::string& path, Library kind,
                                    PluginRegistry& registry) {
  const std::string version = version_in(path);
  if (!version.empty() && version != TUTTI_VERSION) return other_version(version);
  show_own_symbols();
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* why = ::dlerror();
    const std::string message = why ? readable(why) : "unknown reason";
    const bool missing = message.find("undefined symbol") != std::string::npos;
    return LoadFailure{"cannot load the plugin: " + message,
                       missing ? "build it with the headers of this Tutti (" TUTTI_VERSION
                                 "), and link the other libraries it uses"
                               : "give a path from the folder of this file"};
  }
  const auto mark = reinterpret_cast<const char* (*)()>(::dlsym(handle, "tutti_plugin_mark"));
  const auto add =
      reinterpret_cast<void (*)(PluginRegistry&)>(::dlsym(handle, "tutti_register_plugin"));
  if (!mark || !add) {
    if (kind == Library::kForWorkers) return {};
    return LoadFailure{"the library has no TUTTI_PLUGIN", "see docs/extending.md"};
  }
  // Once more, for a library the loader had to search for.
  const std::string built_for = std::string(mark()).substr(kMark.size());
  if (built_for != TUTTI_VERSION) return other_version(built_for);
  if (!registry.begin(handle)) return {};
  try {
    add(registry);
  } catch (const std::exception& e) {
    return LoadFailure{std::string("the plugin failed to register: ") + e.what(), ""};
  } catch (...) {  // whatever it throws is the plugin's own error
    return LoadFailure{"the plugin failed to register: it threw something that is no exception",
                       ""};
  }
  return {};
}

}  // namespace

fs::path shipped_plugin(const std::string& name) {
  return shipped_folder() / ("lib" + name + ".so");
}

std::vector<std::string> shipped_plugins() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(shipped_folder(), error)) {
    const std::string stem = entry.path().stem().string();
    if (entry.path().extension() == ".so" && stem.starts_with("lib"))
      names.push_back(stem.substr(3));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string plugin_path(const Node& entry) {
  const fs::path name = entry.raw();
  const Mark mark = entry.mark();
  const fs::path folder =
      mark.file && mark.line > 0 ? fs::path(*mark.file).parent_path() : fs::path();
  std::error_code error;
  const fs::path beside = fs::absolute(folder / name, error);
  if (!error && fs::is_regular_file(beside, error)) return beside.string();
  const fs::path shipped = shipped_plugin(name.string());
  return !name.has_parent_path() && fs::exists(shipped, error) ? shipped.string() : name.string();
}

void load_plugin(const std::string& path, PluginRegistry& registry) {
  if (const auto failure = try_load(path, Library::kForWorkers, registry))
    throw ConfigError(path + ": " + failure->what, failure->fix);
}

void load_plugins(const Node& list, PluginRegistry& registry, Problems& problems) {
  if (list.is_null()) return;
  if (!list.is_list()) {
    problems.add(list, "got " + list.describe_value() + ", expected a list of shared libraries",
                 "write plugins: [libname.so]");
    return;
  }
  const Library kind =
      list.path().starts_with("parallel") ? Library::kForWorkers : Library::kPlugin;
  for (const Node& entry : list.elements()) {
    if (!entry.is_scalar()) {
      problems.add(entry,
                   "got " + entry.describe_value() + ", expected the path of a shared library");
      continue;
    }
    if (const auto failure = try_load(plugin_path(entry), kind, registry))
      problems.add(entry, failure->what, failure->fix);
  }
}

}  // namespace tutti::config
