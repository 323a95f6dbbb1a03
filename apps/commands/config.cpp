#include <CLI/CLI.hpp>

#include "apps/command.h"

namespace tutti::apps {

int run_config(int argc, char** argv) {
  CLI::App app{"Check or show config files"};
  CLI11_PARSE(app, argc, argv);
  return 0;
}

}  // namespace tutti::apps
