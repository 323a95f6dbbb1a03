// Named optimizers: each loss moves only its own optimizer's parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "tests/trainer/toy.h"
#include "tutti/core/error.h"
#include "tutti/trainer/loop.h"

namespace tutti::trainer {
namespace {

using toy::Adversaries;

FitResult run(Adversaries& model, std::vector<OptimizerSpec> optimizers) {
  const auto control = make_local_control();
  const auto strategy = make_single_strategy();
  MemorySource train(toy::batches(5, 4), 0, 1);
  LoopSettings settings;
  settings.precision = PrecisionMode::k64;
  settings.max_epochs = 1;
  FitInputs inputs{.model = model,
                   .train = train,
                   .strategy = *strategy,
                   .control = *control,
                   .settings = settings,
                   .optimizers = std::move(optimizers)};
  return fit(inputs);
}

OptimizerSpec sgd(const std::string& name, const std::string& params) {
  return {.name = name,
          .params = params.empty() ? std::vector<std::string>{} : std::vector{params},
          .options = {.kind = OptimizerKind::kSgd, .lr = 0.1}};
}

TEST(NamedOptimizers, ALossMovesOnlyItsOwnParameters) {
  Adversaries model(/*critic_every=*/0);
  const auto critic = model.named_parameters()[2].second.detach().clone();
  const auto maker = model.named_parameters()[0].second.detach().clone();
  ASSERT_EQ(model.named_parameters()[2].first, "critic.weight");
  EXPECT_EQ(run(model, {sgd("maker", "maker"), sgd("critic", "critic")}).steps, 5);
  EXPECT_TRUE(critic.to(at::kDouble).equal(model.named_parameters()[2].second.detach()));
  EXPECT_FALSE(maker.to(at::kDouble).equal(model.named_parameters()[0].second.detach()));
  model.critic_every = 1;
  run(model, {sgd("maker", "maker"), sgd("critic", "critic")});
  EXPECT_FALSE(critic.to(at::kDouble).equal(model.named_parameters()[2].second.detach()));
}

TEST(NamedOptimizers, EachIsClippedByItsOwnLimit) {
  const auto moved = [](std::optional<double> maker, std::optional<double> critic,
                        ClipAlgorithm algorithm) {
    torch::manual_seed(3);
    Adversaries model;
    std::vector<at::Tensor> before, after;
    for (const auto& [name, p] : model.named_parameters())
      before.push_back(p.detach().to(at::kDouble).clone());
    OptimizerSpec first = sgd("maker", "maker"), second = sgd("critic", "critic");
    first.gradient_clip_val = maker;
    second.gradient_clip_val = critic;
    first.gradient_clip_algorithm = second.gradient_clip_algorithm = algorithm;
    run(model, {first, second});
    const auto parameters = model.named_parameters();
    const auto norm = [&](std::size_t a, std::size_t b) {
      return std::hypot((parameters[a].second.detach() - before[a]).norm().item<double>(),
                        (parameters[b].second.detach() - before[b]).norm().item<double>());
    };
    return std::pair{norm(0, 1), norm(2, 3)};  // of the maker, of the critic
  };
  constexpr double kMost = 5 * 0.1 * 1e-3;  // steps x rate x limit
  const auto free = moved(std::nullopt, std::nullopt, ClipAlgorithm::kNorm);
  EXPECT_GT(free.first, 2 * kMost);
  EXPECT_GT(free.second, 2 * kMost);
  const auto one = moved(1e-3, std::nullopt, ClipAlgorithm::kNorm);
  EXPECT_LE(one.first, kMost * 1.0001);
  EXPECT_GT(one.second, 2 * kMost);
  const auto other = moved(std::nullopt, 1e-3, ClipAlgorithm::kValue);
  EXPECT_GT(other.first, 2 * kMost);
  EXPECT_LE(other.second, kMost * std::sqrt(2.0) * 1.0001);  // two elements
}

TEST(NamedOptimizers, EveryParameterHasExactlyOneOwner) {
  Adversaries model;
  const auto message = [&](std::vector<OptimizerSpec> specs) {
    try {
      run(model, std::move(specs));
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(message({sgd("maker", "maker")}),
              testing::HasSubstr("nobody's `params` matches parameter 'critic.weight'"));
  EXPECT_THAT(message({sgd("a", "maker"), sgd("b", "")}),
              testing::HasSubstr("'maker.weight' belongs to a and b"));
  EXPECT_THAT(message({sgd("a", ""), sgd("b", "mak")}), testing::HasSubstr("matches no parameter"));
}

}  // namespace
}  // namespace tutti::trainer
