// "Inference or evaluation with runners": the seeds' DecodeProvider and DecodeRunner in C++.
// Run it: build/bin/example_decode_runner
#include <cstdio>

#include "tutti/config/load.h"
#include "tutti/parallel/parallel.h"
#include "tutti/parallel/runner.h"

using namespace tutti;
using namespace tutti::parallel;

// Stand-ins for an evaluation set and a model.
struct EvalSet {
  std::vector<std::string> utterances;
};
struct Model {
  std::string device;
  std::string decode(const std::string& sample, int beam_size) const {
    return sample + " (beam " + std::to_string(beam_size) + " on " + device + ")";
  }
};

std::shared_ptr<EvalSet> load_eval_split(const config::Node& config) {
  auto set = std::make_shared<EvalSet>();
  for (int i = 0; i < config["size"].as<int>(); ++i)
    set->utterances.push_back("utterance " + std::to_string(i));
  return set;
}

class DecodeProvider : public InferenceProvider {
 public:
  using InferenceProvider::InferenceProvider;
  std::any build_dataset(const config::Node& cfg) const override {
    return load_eval_split(cfg["dataset"]);
  }
  std::any build_model(const config::Node& cfg) const override {
    return std::make_shared<Model>(Model{cfg["model"]["device"].as<std::string>()});
  }
};
TUTTI_REGISTER_PROVIDER(DecodeProvider);

class DecodeRunner : public BaseRunner {
 public:
  using BaseRunner::BaseRunner;
  Json forward(std::uint64_t idx, const Env& env) const override {
    const std::string& sample = env.get<EvalSet>("dataset").utterances[idx];
    const int beam_size = env.param("beam_size", 5);
    return {{"utt_id", idx}, {"hyp", env.get<Model>("model").decode(sample, beam_size)}};
  }
};
TUTTI_REGISTER_RUNNER(DecodeRunner);

int main(int argc, char** argv) try {
  if (const auto code = worker_main_if_requested(argc, argv)) return *code;
  const config::Node cfg = config::parse_yaml(
      "dataset: {size: 100}\n"
      "model: {device: cpu}\n"
      "parallel_gpu: {env: local, n_workers: 2}\n",
      "example");

  DecodeProvider provider(cfg, {{"beam_size", 8}});
  DecodeRunner runner(provider);

  const auto parallel =
      set_parallel(cfg["parallel_gpu"]);  // the same config works locally or on SLURM
  const std::vector<Json> results = runner(range(100));

  std::printf("%s\n", results.back().dump().c_str());
  return results.size() == 100 && results[99]["hyp"] == "utterance 99 (beam 8 on cpu)" ? 0 : 1;
} catch (...) {
  return report_and_exit_code();
}
