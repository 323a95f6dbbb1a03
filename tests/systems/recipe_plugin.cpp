// A recipe's own library as a user would write it: a corpus, a stage after measure, a model, and a
// provider and runner for `infer`. plugin_test.cpp loads it into the built program.
#include <fmt/format.h>
#include <torch/torch.h>

#include "tutti/config/plugin.h"
#include "tutti/core/file.h"
#include "tutti/parallel/runner.h"
#include "tutti/systems/dataset_builder.h"
#include "tutti/systems/stage.h"
#include "tutti/systems/training/training_model.h"
#include "tutti/trainer/model.h"

namespace {

using namespace tutti;

// ---- a corpus: three utterances of silence, described by the config
class Silence final : public systems::DatasetBuilder {
 public:
  std::vector<std::string> splits() const override { return {"train"}; }
  void build(const systems::BuildContext& context) const override {
    const auto count = context.options["count"].value_or<int>(3);
    std::string lines;
    for (int i = 0; i < count; ++i)
      lines +=
          Json{{"id", fmt::format("s{}", i)}, {"audio", "none.wav"}, {"text", "silence"}}.dump() +
          "\n";
    write_file_atomic(context.data_dir / "train.jsonl", lines);
  }
};

// ---- a stage: leaves a file beside the results
void summarise(const systems::StageContext& context) {
  write_file_atomic(context.folder("exp_dir") / "summary.txt", "well done\n");
}

// ---- a model: one number, pulled towards the target of the config
struct Pull : torch::nn::Module {
  torch::Tensor place = register_parameter("place", torch::zeros({1}));
};
class PullModel final : public trainer::ModuleModel {
 public:
  PullModel(std::shared_ptr<Pull> pull, double target)
      : ModuleModel(pull), pull_(std::move(pull)), target_(target) {}
  trainer::StepOutput training_step(const trainer::Batch&) override {
    trainer::StepOutput out;
    out.loss = (pull_->place - target_).square().sum();
    out.stats["loss"] = out.loss.detach();
    return out;
  }

 private:
  std::shared_ptr<Pull> pull_;
  double target_;
};
struct PullSettings {
  double target = 1;
};

// ---- what infer runs instead of a recogniser
class LengthProvider : public parallel::EnvironmentProvider {
 public:
  using EnvironmentProvider::EnvironmentProvider;
  void build_env(parallel::Env& env) const override {
    env.put("unit", std::make_shared<std::string>(
                        config()["provider"]["params"]["unit"].value_or<std::string>("items")));
  }
};
TUTTI_REGISTER_PROVIDER(LengthProvider);

class LengthRunner : public parallel::BaseRunner {
 public:
  using BaseRunner::BaseRunner;
  Json forward(std::uint64_t index, const parallel::Env& env) const override {
    return {{"utt_id", "item" + std::to_string(index)},
            {"length", std::to_string(index * index) + " " + env.get<std::string>("unit")}};
  }
};
TUTTI_REGISTER_RUNNER(LengthRunner);

struct NoSettings {
  config::Node params;
};

}  // namespace

extern "C" void tutti_register(config::PluginHost& host) {
  config::Schema<PullSettings> pull("pull", "One number.");
  pull.field("target", &PullSettings::target, "where it is pulled to");
  host.catalogue().add("inference model", pull);
  for (const char* group : {"provider", "runner"}) {
    config::Schema<NoSettings> schema(
        std::string(group) == "provider" ? "LengthProvider" : "LengthRunner", "Squares.");
    schema.field("params", &NoSettings::params, "{unit: text}");
    host.catalogue().add(group, schema);
  }
  if (auto* builders = host.find<systems::DatasetBuilderRegistry>("dataset builders"))
    (*builders)["silence"] = [] { return std::make_unique<Silence>(); };
  if (auto* stages = host.find<systems::StageRegistry>("stages"))
    stages->push_back({.name = "summarise",
                       .summary = "a file that says how it went",
                       .folder_key = "exp_dir",
                       .run = summarise,
                       .after = "measure"});
  if (auto* models = host.find<systems::ModelRegistry>("models"))
    (*models)["pull"] = [](const config::Node& training) {
      return std::make_unique<PullModel>(std::make_shared<Pull>(),
                                         training["model"]["target"].value_or(1.0));
    };
}
