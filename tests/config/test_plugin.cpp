// A plugin as a user would write it; check_test.cpp loads it.
#include "tutti/config/plugin.h"

namespace {

struct TestOptimizer {
  int speed = 1;
};

}  // namespace

TUTTI_PLUGIN(registry) {
  tutti::config::Schema<TestOptimizer> schema("test_optimizer", "Only here.");
  schema.field("speed", &TestOptimizer::speed, "how fast", {.min = 1});
  registry.catalogue().add("optimizer", schema);
  registry.resolvers().add("shout", [](const tutti::config::ResolverCall& call) {
    return tutti::config::text_value(call.argument(0) + "!");
  });
}
