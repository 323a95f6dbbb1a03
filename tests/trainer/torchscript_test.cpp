// A model scripted in Python trains here; its file is made by the real torch.jit.
#include "tutti/trainer/torchscript_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/python.h"
#include "tests/trainer/toy.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"
#include "tutti/trainer/loop.h"

namespace tutti::trainer {
namespace {

constexpr const char* kScript = R"(
import sys, torch
from typing import Dict, Tuple
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    def forward(self, x):
        return self.net(x)
class WithLoss(Net):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Tuple[torch.Tensor, Dict[str, torch.Tensor], torch.Tensor]:
        loss = (self.net(x) - y).square().mean()
        return loss, {"mse": loss}, torch.tensor(x.size(0))
torch.jit.script(Net()).save(sys.argv[1] + "/plain.pt")
torch.jit.script(WithLoss()).save(sys.argv[1] + "/loss.pt")
)";

TEST(TorchScript, TrainsWithEitherKindOfLoss) {
  if (!toy::python_has_torch()) GTEST_SKIP() << TUTTI_PYTHON " has no torch here";
  TempFolder folder;
  // A file, because scripting reads the source of the classes.
  write_file_atomic(folder.path() / "make.py", kScript);
  const auto made = run_command(
      {.argv = {TUTTI_PYTHON, (folder.path() / "make.py").string(), folder.path().string()},
       .timeout = std::chrono::seconds(100)});
  ASSERT_TRUE(made.ok()) << made.describe();
  auto data = toy::batches(10, 8);
  for (Batch& batch : data)
    for (auto& [name, tensor] : batch.tensors) tensor = tensor.to(at::kFloat);
  std::vector<double> losses;
  for (const bool own_loss : {false, true}) {
    TorchScriptOptions options;
    options.path = folder.path() / (own_loss ? "loss.pt" : "plain.pt");
    options.loss = own_loss ? "output" : "mse";
    if (own_loss) options.inputs = {"x", "y"};
    const auto model = make_torchscript_model(options);
    MemorySource train(data, 0, 1), valid(data, 0, 1);
    const auto control = make_local_control();
    const auto strategy = make_single_strategy();
    LoopSettings settings;
    settings.max_epochs = 20;
    settings.show_progress = false;
    FitInputs inputs{.model = *model,
                     .train = train,
                     .valid = &valid,
                     .strategy = *strategy,
                     .control = *control,
                     .settings = settings,
                     .optimizers = {{.options = {.lr = 0.01}}}};
    losses.push_back(fit(inputs).last_validation.at("valid/loss"));
    EXPECT_EQ(model->named_parameters()[0].first, "net.0.weight");
  }
  EXPECT_LT(losses[0], 0.3);
  EXPECT_NEAR(losses[0], losses[1], 1e-5);

  EXPECT_THROW(make_torchscript_model({.path = folder.path() / "none.pt"}), IoError);
  EXPECT_THROW(make_torchscript_model({.path = folder.path() / "plain.pt", .loss = "hinge"}),
               ConfigError);
}

}  // namespace
}  // namespace tutti::trainer
