// Tutti inside a library, as in a module of Python; local_main.cpp loads it for itself alone.
#include <cstdio>

#include "tutti/config/check.h"
#include "tutti/config/plugin.h"
#include "tutti/core/error.h"

extern "C" int load_plugin_here(const char* path) try {
  tutti::config::Catalogue catalogue;
  tutti::config::Resolvers resolvers;
  tutti::config::PluginRegistry registry(catalogue, resolvers);
  tutti::config::load_plugin(path, registry);
  return catalogue.find("optimizer", "test_optimizer") ? 0 : 1;
} catch (...) {
  return tutti::report_and_exit_code();
}
