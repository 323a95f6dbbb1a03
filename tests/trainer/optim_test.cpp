// Optimizers against torch's own, schedules against their formulas.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/core/error.h"
#include "tutti/trainer/optim/optimizer.h"
#include "tutti/trainer/optim/schedule.h"

namespace tutti::trainer {
namespace {

struct Twin {
  torch::Tensor ours;
  torch::Tensor theirs;
};

// Runs 10 updates of `options` and of `reference` on the same gradients; the largest difference.
template <class TorchOptimizer, class TorchOptions>
double compare(const OptimizerOptions& options, TorchOptions reference, at::ScalarType type,
               bool strided) {
  torch::manual_seed(1);
  Twin twin{torch::randn({5, 7}, type), {}};
  if (strided) twin.ours = torch::randn({7, 5}, type).t();
  twin.theirs = twin.ours.clone();
  twin.ours.set_requires_grad(true);
  twin.theirs.set_requires_grad(true);
  auto optimizer = make_optimizer(options, {{"w", twin.ours}});
  TorchOptimizer torch_optimizer({twin.theirs}, reference);
  for (int i = 0; i < 10; ++i) {
    const auto gradient = torch::randn({5, 7}, type);
    twin.ours.mutable_grad() = gradient * 4;
    twin.theirs.mutable_grad() = gradient.clone();
    optimizer->step(options.lr, 0.25);
    torch_optimizer.step();
  }
  return (twin.ours - twin.theirs).abs().max().template item<double>();
}

TEST(Optimizer, AdamEqualsTorch) {
  for (const bool amsgrad : {false, true})
    for (const bool strided : {false, true}) {
      OptimizerOptions o{
          .kind = OptimizerKind::kAdam, .lr = 0.01, .weight_decay = 0.1, .amsgrad = amsgrad};
      EXPECT_LT((compare<torch::optim::Adam>(
                    o, torch::optim::AdamOptions(0.01).weight_decay(0.1).amsgrad(amsgrad),
                    at::kDouble, strided)),
                1e-13);
    }
}

TEST(Optimizer, AdamWEqualsTorch) {
  const OptimizerOptions o{.kind = OptimizerKind::kAdamW, .lr = 0.01, .weight_decay = 0.1};
  EXPECT_LT((compare<torch::optim::AdamW>(o, torch::optim::AdamWOptions(0.01).weight_decay(0.1),
                                          at::kDouble, false)),
            1e-13);
  EXPECT_LT((compare<torch::optim::AdamW>(o, torch::optim::AdamWOptions(0.01).weight_decay(0.1),
                                          at::kFloat, false)),
            1e-5);
}

TEST(Optimizer, SgdEqualsTorch) {
  for (const bool nesterov : {false, true})
    for (const bool strided : {false, true}) {
      OptimizerOptions o{.kind = OptimizerKind::kSgd,
                         .lr = 0.1,
                         .weight_decay = 0.01,
                         .momentum = 0.9,
                         .nesterov = nesterov};
      EXPECT_LT(
          (compare<torch::optim::SGD>(
              o, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01).nesterov(nesterov),
              at::kDouble, strided)),
          1e-13);
    }
}

TEST(Optimizer, StateIsKeyedByNameAndSurvivesReordering) {
  auto a = torch::randn({3}).set_requires_grad(true);
  auto b = torch::randn({2}).set_requires_grad(true);
  auto first = make_optimizer(OptimizerOptions{}, {{"a", a}, {"b", b}});
  a.mutable_grad() = torch::ones({3});  // b has no gradient and must keep no state
  first->step(0.1, 1);
  const auto state = first->state();
  EXPECT_EQ(state.count("exp_avg/a"), 1u);
  EXPECT_EQ(state.count("exp_avg/b"), 0u);
  EXPECT_EQ(state.at("step/a").item<std::int64_t>(), 1);
  auto second = make_optimizer(OptimizerOptions{}, {{"b", b}, {"a", a}});
  second->load_state(state);
  EXPECT_TRUE(second->state().at("exp_avg/a").equal(state.at("exp_avg/a")));
  auto other = make_optimizer(OptimizerOptions{}, {{"c", b}});
  EXPECT_THROW(other->load_state(state), DataError);
}

TEST(Schedule, WarmupPeaksAtBaseLearningRate) {
  const auto s = make_schedule(config::WarmupLrSettings{.warmup_steps = 100}, 0.002);
  EXPECT_NEAR(s->lr(0), 0.002 / 100, 1e-12);
  EXPECT_NEAR(s->lr(99), 0.002, 1e-12);
  EXPECT_NEAR(s->lr(399), 0.001, 1e-12);
}

TEST(Schedule, PiecewiseLinearInterpolatesThenDecays) {
  const auto s =
      make_schedule(config::PiecewiseLinearWarmupLrSettings{.warmup_steps_list = {0, 30, 60},
                                                            .warmup_lr_list = {0, 5e-5, 5e-4}},
                    5e-4);
  EXPECT_NEAR(s->lr(14), 2.5e-5, 1e-15);
  EXPECT_NEAR(s->lr(29), 5e-5, 1e-15);
  EXPECT_NEAR(s->lr(44), 2.75e-4, 1e-15);
  EXPECT_NEAR(s->lr(59), 5e-4, 1e-15);
  EXPECT_NEAR(s->lr(239), 2.5e-4, 1e-15);
}

TEST(Schedule, CosineWarmupAndPlateau) {
  const auto cosine = make_schedule(
      config::CosineWarmupLrSettings{.warmup_steps = 10, .total_steps = 110, .min_lr = 0.1}, 1.1);
  EXPECT_NEAR(cosine->lr(4), 0.55, 1e-12);
  EXPECT_NEAR(cosine->lr(9), 1.1, 1e-12);
  EXPECT_NEAR(cosine->lr(59), 0.6, 1e-12);
  EXPECT_NEAR(cosine->lr(500), 0.1, 1e-12);
  const config::PlateauLrSettings half{.factor = 0.5, .patience = 1};
  const auto plateau = make_schedule(half, 1.0);
  plateau->observe(3);
  plateau->observe(3);
  EXPECT_EQ(plateau->lr(0), 1.0);
  plateau->observe(3);
  EXPECT_EQ(plateau->lr(0), 0.5);
  const auto resumed = make_schedule(half, 1.0);
  resumed->load(plateau->state());
  EXPECT_EQ(resumed->lr(0), 0.5);
}

}  // namespace
}  // namespace tutti::trainer
