#include "tutti/systems/training/training_model.h"

#include <fmt/format.h>

#include "tutti/core/error.h"
#include "tutti/core/text.h"
#include "tutti/core/users_code.h"
#include "tutti/speech/decoding/speech2text.h"
#include "tutti/speech/models/asr_trainable.h"
#include "tutti/speech/models/model_config.h"
#include "tutti/systems/models/task_settings.h"
#include "tutti/systems/preprocess.h"
#include "tutti/systems/torchscript_settings.h"
#include "tutti/trainer/init.h"
#include "tutti/trainer/torchscript_model.h"

namespace tutti::systems {
namespace {

std::unique_ptr<trainer::TrainableModel> make_torchscript(const config::Node& model,
                                                          const config::Node&) {
  const TorchScriptSettings s = read_torchscript(model);
  return trainer::make_torchscript_model({.path = s.path,
                                          .loss = s.loss,
                                          .inputs = s.inputs,
                                          .target = s.target,
                                          .input_lengths = s.input_lengths,
                                          .target_lengths = s.target_lengths});
}

std::unique_ptr<trainer::TrainableModel> make_asr(const config::Node& training) {
  config::Problems problems;
  check_trainable(training, problems);
  auto settings = speech::read_asr_settings(training, problems);
  problems.throw_if_any();
  if (settings.init.empty()) settings.init = training["init"].value_or<std::string>("");
  const speech::TextCodec codec = make_codec(training);
  std::vector<std::string> tokens;
  for (int id = 0; id < static_cast<int>(codec.tokens().size()); ++id)
    tokens.push_back(codec.tokens().token(id));
  return std::make_unique<speech::AsrTrainable>(speech::AsrModel(speech::Build{}, settings),
                                                std::move(tokens));
}

}  // namespace

ModelRegistry& model_registry() {
  static ModelRegistry models = [] {
    ModelRegistry builtin("inference model");
    builtin.add("torchscript", make_torchscript);
    return builtin;
  }();
  return models;
}

bool is_users_model(const config::Node& training) {
  return !training["model"]["_target_"].is_null();
}

std::unique_ptr<trainer::TrainableModel> make_training_model(const config::Node& training) {
  const config::Node target = training["model"]["_target_"];
  if (target.is_null()) return make_asr(training);
  if (const auto* make = model_registry().find(target.as<std::string>())) {
    auto model = users_code(fmt::format("model {}: it could not be built", target.raw()),
                            [&] { return (*make)(training["model"], training); });
    trainer::initialize(*model, training["init"].value_or<std::string>(""));
    return model;
  }
  throw ConfigError(
      fmt::format("{}: model._target_: got '{}', expected one of {}", target.mark().describe(),
                  target.raw(), join(model_registry().names(), ", ")),
      "set task: asr for ESPnet's models, or name the plugin that has it");
}

data::Prepare refuse_short(data::Prepare prepare, const trainer::TrainableModel& model) {
  const auto* ours = dynamic_cast<const speech::AsrTrainable*>(&model);
  if (ours == nullptr) return prepare;
  return [prepare = std::move(prepare), network = ours->model()](data::Sample& sample,
                                                                 std::uint64_t epoch) {
    prepare(sample, epoch);
    if (speech::too_short(network, sample.speech.size()))
      throw DataError(
          fmt::format("{}: too short for the model: {} samples", sample.uid, sample.speech.size()),
          "leave it out, or set on_bad: skip");
  };
}

}  // namespace tutti::systems
