// Optimizers and schedules against numbers that torch computed (golden/torch_optim.py).
#include <gtest/gtest.h>

#include "tests/places.h"
#include "tutti/config/load.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/trainer/from_config.h"

namespace tutti::trainer {
namespace {

const Json& golden() {
  static const Json numbers =
      parse_json(read_file(in_source("tests/trainer/golden/torch_optim.json")), "torch_optim.json");
  return numbers;
}

OptimizerSpec spec_of(const std::string& optimizer, const std::string& scheduler) {
  return plan_training(config::parse_yaml("optimizer: " + optimizer + "\nscheduler: " + scheduler +
                                              "\ntrainer: {max_epochs: 1}\n",
                                          "training.yaml"),
                       {.exp_dir = "exp", .rank = 1})
      .optimizers[0];
}

const char* const kSgd = "{_target_: torch.optim.SGD, lr: 0.1}";

TEST(TorchNumbers, Schedules) {
  ASSERT_GE(golden()["schedulers"].size(), 17u);
  for (const Json& item : golden()["schedulers"]) {
    const std::string yaml = item["yaml"];
    const auto schedule = spec_of(kSgd, yaml).schedule.build(0.1);
    for (std::size_t i = 0; i < item["lr"].size(); ++i) {
      const double expected = item["lr"][i];
      EXPECT_NEAR(schedule->lr(static_cast<std::int64_t>(i)), expected,
                  1e-6 * std::abs(expected) + 1e-15)
          << yaml << " update " << i;
      if (item.contains("momentum")) {
        EXPECT_NEAR(*schedule->momentum(static_cast<std::int64_t>(i)),
                    item["momentum"][i].get<double>(), 1e-6)
            << yaml << " update " << i;
      }
    }
  }
}

TEST(TorchNumbers, Plateau) {
  for (const Json& item : golden()["plateau"]) {
    const std::string yaml = item["yaml"];
    const auto schedule = spec_of(kSgd, yaml).schedule.build(0.1);
    for (std::size_t i = 0; i < item["values"].size(); ++i) {
      schedule->observe(item["values"][i]);
      EXPECT_NEAR(schedule->lr(0), item["lr"][i].get<double>(), 1e-9) << yaml << " value " << i;
    }
  }
}

// Half of the updates, then the rest with the state of a checkpoint.
TEST(TorchNumbers, Optimizers) {
  ASSERT_GE(golden()["optimizers"].size(), 18u);
  for (const Json& item : golden()["optimizers"]) {
    const std::string yaml = item["yaml"];
    const OptimizerSpec spec = spec_of(
        yaml, item["cycle"].get<bool>()
                  ? "{_target_: torch.optim.lr_scheduler.OneCycleLR, max_lr: 0.2, total_steps: 60}"
                  : "{_target_: constant}");
    at::Tensor w = torch::linspace(-1, 1, 5, torch::kDouble).requires_grad_();
    const auto build = [&] {
      std::vector<std::unique_ptr<Optimizer>> groups;
      groups.push_back(spec.make({{"w", w}}));
      return std::make_unique<OptimizerGroups>(std::move(groups), spec.schedule);
    };
    auto optimizer = build();
    const at::Tensor index = torch::arange(5, torch::kDouble);
    for (std::size_t step = 0; step < item["weights"].size(); ++step) {
      if (step == item["weights"].size() / 2) {
        const auto state = optimizer->state();
        optimizer = build();
        optimizer->load_state(state);
      }
      w.mutable_grad() = torch::cos(index + 1.3 * static_cast<double>(step)) * (1 + 0.1 * index) +
                         0.1 * w.detach();
      optimizer->step({static_cast<std::int64_t>(step), 0}, 1.0);
      for (int i = 0; i < 5; ++i)
        EXPECT_NEAR(w[i].item<double>(), item["weights"][step][i].get<double>(), 1e-6)
            << yaml << " update " << step;
    }
  }
}

}  // namespace
}  // namespace tutti::trainer
