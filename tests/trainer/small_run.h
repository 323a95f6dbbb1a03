// The toy problem in one process, with everything fit() takes at hand.
#pragma once

#include <memory>
#include <vector>

#include "tests/trainer/toy.h"
#include "tutti/trainer/loop.h"

namespace tutti::trainer {

struct SmallRun {
  std::unique_ptr<Control> control = make_local_control();
  std::unique_ptr<Strategy> strategy = make_single_strategy();
  toy::Model model{0.0};
  std::unique_ptr<MemorySource> train = std::make_unique<MemorySource>(toy::batches(10, 4), 0, 1);
  std::unique_ptr<MemorySource> valid = std::make_unique<MemorySource>(toy::batches(3, 4), 0, 1);
  LoopSettings settings;
  std::vector<Criterion> criteria;
  std::vector<Callback*> callbacks;
  std::vector<Logger*> loggers;
  StopSignals* signals = nullptr;
  ScheduleSpec schedule;

  SmallRun() {
    settings.precision = PrecisionMode::k64;
    settings.max_epochs = 2;
    settings.show_progress = false;
  }
  FitResult run(TrainableModel* other = nullptr) {
    OptimizerSpec spec;
    spec.options.lr = 0.01;
    spec.schedule = schedule;
    FitInputs inputs{.model = other ? *other : model,
                     .train = *train,
                     .valid = valid.get(),
                     .strategy = *strategy,
                     .control = *control,
                     .settings = settings,
                     .optimizers = {spec},
                     .criteria = criteria,
                     .callbacks = callbacks,
                     .loggers = loggers,
                     .signals = signals};
    return fit(inputs);
  }
  TensorMap model_tensors() {
    TensorMap out;
    for (const auto& [name, p] : model.named_parameters()) out[name] = p.detach();
    return out;
  }
  at::Tensor weights(TrainableModel* other = nullptr) {
    std::vector<at::Tensor> all;
    for (const auto& [name, p] : (other ? *other : model).named_parameters())
      all.push_back(p.detach().flatten());
    return at::cat(all);
  }
};

}  // namespace tutti::trainer
