// A plugin for workers; plugins_test.cpp names it in a parallel block.
#include <cstdlib>

#include "tutti/config/plugin.h"
#include "tutti/parallel/registry.h"
#include "tutti/parallel/runner.h"

namespace {

struct Greeting : tutti::parallel::WorkerPlugin {
  void setup(tutti::parallel::Env&) override { ::setenv("GREETING", "hello from the plugin", 1); }
};
struct NoSettings {};

}  // namespace

TUTTI_PLUGIN(registry) {
  registry.add<Greeting>(tutti::config::Schema<NoSettings>("Greeting", "Sets a variable."));
}
