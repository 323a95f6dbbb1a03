// FSDP in one process: how models are cut, and that a sharded model of one rank computes as before.
#include "tutti/trainer/strategies/fsdp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/trainer/toy.h"
#include "tutti/core/error.h"
#include "tutti/trainer/recompute.h"
#include "tutti/trainer/world.h"

namespace tutti::trainer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::shared_ptr<toy::NetBase> deep_net(double dropout = 0) {
  torch::manual_seed(7);
  return std::make_shared<toy::DeepNetImpl>(8, 3, dropout);
}

std::vector<std::string> unit_names(const UnitCut& cut) {
  toy::Model model(deep_net());
  std::vector<std::string> names;
  for (const UnitSpec& unit : cut_into_units(model, cut))
    names.push_back(unit.name + (unit.resident ? " (resident)" : ""));
  return names;
}

template <class Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Units, ByClassBySizeAndWithVectorsApart) {
  EXPECT_THAT(unit_names({.classes = {"Block"}}),
              ElementsAre("root (resident)", "blocks.0", "blocks.1", "blocks.2"));
  EXPECT_THAT(unit_names({.min_params = 300}),
              ElementsAre("first.weight", "blocks.1.inner.weight", "blocks.2.norm.weight"));
  EXPECT_THAT(
      unit_names({.classes = {"Block"}, .vectors_apart = true}),
      ElementsAre("root (resident)", "vectors (resident)", "blocks.0", "blocks.1", "blocks.2"));
}

TEST(Units, AnUnknownClassIsNamedWithThoseThereAre) {
  const std::string error = error_of([] { unit_names({.classes = {"Blok"}}); });
  EXPECT_THAT(error, HasSubstr("no module of class 'Blok'"));
  EXPECT_THAT(error, HasSubstr("Linear"));
  EXPECT_THAT(error, HasSubstr("did you mean 'Block'?"));
  toy::Model model(deep_net());
  const std::string other = error_of([&] { enable_recomputation(model, {"Linear"}); });
  EXPECT_THAT(other, HasSubstr("got 'Linear', expected one of Block"));
}

// One pass by hand: forward and backward of a sharded model, and what it holds in between.
std::vector<at::Tensor> gradients_of_one_pass(Strategy& strategy, double dropout,
                                              const std::vector<std::string>& again = {}) {
  toy::Model model(deep_net(dropout));
  enable_recomputation(model, again);
  NamedTensors trainable = model.named_parameters();
  const auto groups = strategy.setup(model, {trainable}, at::kCPU);
  std::vector<at::Tensor> last;
  for (int pass = 0; pass < 3; ++pass) {  // recorded, then replayed twice
    Batch batch = toy::batches(1, 4)[0];
    for (auto& [name, tensor] : batch.tensors) tensor = tensor.to(torch::kFloat);
    torch::manual_seed(11);
    strategy.begin({});
    model.training_step(batch).loss.backward();
    strategy.settle(true);
    strategy.finish(0, true);
    last.clear();
    for (const auto& [name, parameter] : groups[0]) {
      last.push_back(parameter.grad().clone().reshape({-1}));
      parameter.mutable_grad().reset();
    }
  }
  return last;
}

TEST(Fsdp, OneRankComputesTheGradientsOfAWholeModel) {
  launch::RankContext rank;
  World world = join_world(rank, {});
  const auto single = make_single_strategy();
  const auto want = gradients_of_one_pass(*single, 0.3);
  for (const char* kind : {"full", "grad_op", "recompute", "size"}) {
    SCOPED_TRACE(kind);
    FsdpOptions options{.units = {.classes = {"Block"}}};
    if (kind == std::string("grad_op")) options.sharding = Sharding::kGradOp;
    if (kind == std::string("size")) options.units = {.min_params = 100};
    const auto strategy = make_fsdp_strategy(options, world);
    const auto got =
        gradients_of_one_pass(*strategy, 0.3,
                              kind == std::string("recompute") ? std::vector<std::string>{"Block"}
                                                               : std::vector<std::string>{});
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(torch::allclose(got[i], want[i], 1e-6, 1e-7)) << i;
    EXPECT_EQ(strategy->memory().gathered, 0);  // nothing is left whole between passes
    EXPECT_GT(strategy->memory().gathered_peak, 0);
  }
}

}  // namespace
}  // namespace tutti::trainer
