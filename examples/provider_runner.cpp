// "A small provider/runner example": the least one has to write.
// Run it: build/bin/example_provider_runner [n_workers]
#include <cstdio>
#include <cstdlib>

#include "tutti/parallel/parallel.h"
#include "tutti/parallel/runner.h"

using namespace tutti;
using namespace tutti::parallel;

class MyProvider : public EnvironmentProvider {
 public:
  using EnvironmentProvider::EnvironmentProvider;
  void build_env(Env& env) const override {
    env.put("offset", std::make_shared<std::uint64_t>(1000));
  }
};
TUTTI_REGISTER_PROVIDER(MyProvider);

class MyRunner : public BaseRunner {
 public:
  using BaseRunner::BaseRunner;
  Json forward(std::uint64_t idx, const Env& env) const override {
    return idx + env.get<std::uint64_t>("offset");
  }
};
TUTTI_REGISTER_RUNNER(MyRunner);

int main(int argc, char** argv) try {
  if (const auto code = worker_main_if_requested(argc, argv)) return *code;
  ParallelSettings settings;
  settings.n_workers = argc > 1 ? std::atoi(argv[1]) : 2;
  const ParallelScope parallel(settings);

  MyProvider provider;
  MyRunner runner(provider);
  const auto results = runner(range(100));

  std::printf("first %s, last %s\n", results.front().dump().c_str(), results.back().dump().c_str());
  return results.back() == 1099 ? 0 : 1;
} catch (...) {
  return report_and_exit_code();
}
