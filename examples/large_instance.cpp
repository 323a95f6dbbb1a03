// "Multi-GPU Inference with the Parallel API": a WorkerPlugin that loads a large instance once per
// worker, and a plain function that uses it. Run it: build/bin/example_large_instance
#include <cstdio>

#include "tutti/config/load.h"
#include "tutti/parallel/parallel.h"

using namespace tutti;
using namespace tutti::parallel;

struct Model {
  std::string operator()(const std::string& audio) const { return "text of " + audio; }
};
struct Dataset {
  std::string audio(std::uint64_t i) const { return "audio " + std::to_string(i); }
  std::string text(std::uint64_t i) const {
    return (i == 7 ? "another text of audio " : "text of audio ") + std::to_string(i);
  }
};

// Initialize a large instance for each worker.
class LargeInstancePlugin : public WorkerPlugin {
 public:
  void setup(Env& worker) override {
    worker.put("model", std::make_shared<Model>());
    worker.put("dataset", std::make_shared<Dataset>());
  }
};
TUTTI_REGISTER_PLUGIN(LargeInstancePlugin);

Json inference(std::uint64_t idx) {
  const auto& data = get_worker().get<Dataset>("dataset");
  const auto& model = get_worker().get<Model>("model");
  return {{"hyp", model(data.audio(idx))}, {"ref", data.text(idx)}};
}
TUTTI_REGISTER_FUNCTION(inference);

int main(int argc, char** argv) try {
  if (const auto code = worker_main_if_requested(argc, argv)) return *code;
  const auto config = config::parse_yaml("parallel: {env: local, n_workers: 2}", "example");

  const auto parallel = set_parallel(config["parallel"]);
  const auto client = get_client<LargeInstancePlugin>();
  const std::vector<Json> results = parallel_map(inference, range(50));

  int wrong = 0;
  for (const Json& r : results) wrong += r["hyp"] != r["ref"] ? 1 : 0;
  std::printf("%d of %zu wrong\n", wrong, results.size());
  return wrong == 1 ? 0 : 1;
} catch (...) {
  return report_and_exit_code();
}
