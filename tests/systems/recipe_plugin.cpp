// A recipe's own library as a user would write it: a corpus, a stage after measure, a model, and a
// provider and runner for `infer`. plugin_test.cpp loads it into the built program.
#include <fmt/format.h>
#include <torch/torch.h>

#include "tutti/config/plugin.h"
#include "tutti/core/file.h"
#include "tutti/parallel/runner.h"
#include "tutti/systems/corpus.h"
#include "tutti/systems/dataset_builder.h"
#include "tutti/systems/stage.h"
#include "tutti/systems/training/training_model.h"
#include "tutti/trainer/model.h"
#include "tutti/trainer/registry.h"

namespace {

using namespace tutti;

// ---- a corpus: three utterances of silence, described by the config
struct SilenceSettings {
  int count = 3;
};
class Silence final : public systems::DatasetBuilder {
 public:
  explicit Silence(SilenceSettings settings) : settings_(settings) {}
  std::vector<std::string> splits() const override { return {"train"}; }
  void build(const systems::BuildContext& context) const override {
    std::string lines;
    for (int i = 0; i < settings_.count; ++i)
      lines +=
          Json{{"id", fmt::format("s{}", i)}, {"audio", "none.wav"}, {"text", "silence"}}.dump() +
          "\n";
    write_file_atomic(context.data_dir / "train.jsonl", lines);
  }

 private:
  SilenceSettings settings_;
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
  PullModel(std::shared_ptr<Pull> pull, double target, std::string fails)
      : ModuleModel(pull), pull_(std::move(pull)), target_(target), fails_(std::move(fails)) {}
  trainer::StepOutput training_step(const trainer::Batch&) override {
    if (fails_ == "used") pull_->place.view({7});  // as any mistake with shapes
    if (fails_ == "throws") throw 5;
    trainer::StepOutput out;
    out.loss = (pull_->place - target_).square().sum();
    out.stats["loss"] = out.loss.detach();
    return out;
  }

 private:
  std::shared_ptr<Pull> pull_;
  double target_;
  std::string fails_;
};
struct PullSettings {
  double target = 1;
  std::string fails;
};

// ---- parts that throw what is no exception
struct Nothing {};
class ThrowingCallback final : public trainer::Callback {
 public:
  void on_step(const trainer::Moment&) override { throw 5; }
};
class ThrowingLogger final : public trainer::Logger {
 public:
  void log(const trainer::LogPoint&, const trainer::Metrics&) override { throw "a text"; }
  void flush() override {}
};

// ---- what infer runs instead of a recogniser
class LengthProvider : public parallel::EnvironmentProvider {
 public:
  using EnvironmentProvider::EnvironmentProvider;
  void build_env(parallel::Env& env) const override {
    if (config()["provider"]["params"]["unit"].value_or<std::string>("") == "throws") throw 5;
    env.put("unit", std::make_shared<std::string>(
                        config()["provider"]["params"]["unit"].value_or<std::string>("items")));
  }
};

class LengthRunner : public parallel::BaseRunner {
 public:
  using BaseRunner::BaseRunner;
  Json forward(std::uint64_t index, const parallel::Env& env) const override {
    if (index == 1 && env.get<std::string>("unit") == "throws later") throw 5;
    return {{"utt_id", "item" + std::to_string(index)},
            {"length", std::to_string(index * index) + " " + env.get<std::string>("unit")}};
  }
};

struct LengthSettings {
  config::Node params;
};
config::Schema<LengthSettings> length_schema(const char* name) {
  config::Schema<LengthSettings> schema(name, "Squares.");
  schema.field("params", &LengthSettings::params, "{unit: text}");
  return schema;
}

}  // namespace

TUTTI_PLUGIN(registry) {
  config::Schema<PullSettings> pull("pull", "One number.");
  pull.field("target", &PullSettings::target, "where it is pulled to");
  pull.field("fails", &PullSettings::fails, "when",
             {.one_of = {"", "built", "used", "thrown", "throws"}});
  registry.add<trainer::TrainableModel>(pull, [](const PullSettings& s, const config::Node&) {
    if (s.fails == "built") throw std::out_of_range("the table has no row 7");
    if (s.fails == "thrown") throw 5;
    return std::make_unique<PullModel>(std::make_shared<Pull>(), s.target, s.fails);
  });
  registry.add<trainer::Callback>(
      config::Schema<Nothing>("throwing_callback", "Throws."),
      [](const Nothing&) { return std::make_unique<ThrowingCallback>(); });
  registry.add<trainer::Logger>(config::Schema<Nothing>("throwing_logger", "Throws."),
                                [](const Nothing&, const trainer::LoggerContext&) {
                                  return std::make_unique<ThrowingLogger>();
                                });
  registry.add<data::Transform>(
      config::Schema<Nothing>("throwing_transform", "Throws."),
      [](const Nothing&) -> data::Transform { return [](data::Sample&) { throw 5; }; });
  config::Schema<SilenceSettings> silence("silence", "Nothing to hear.");
  silence.field("count", &SilenceSettings::count, "utterances", {.min = 1});
  registry.add<systems::DatasetBuilder>(
      silence, [](const SilenceSettings& s) { return std::make_unique<Silence>(s); });
  registry.add<LengthProvider>(length_schema("LengthProvider"));
  registry.add<LengthRunner>(length_schema("LengthRunner"));
  registry.add(systems::Stage{.name = "summarise",
                              .summary = "a file that says how it went",
                              .folder_key = "exp_dir",
                              .run = summarise,
                              .after = "measure"});
}
