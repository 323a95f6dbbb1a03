// What the loop refuses, what it does after a signal or a NaN, and what it keeps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <map>

#include "tests/trainer/python.h"
#include "tests/trainer/small_run.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"

namespace tutti::trainer {
namespace {

using testing::HasSubstr;

// What a run says when it cannot go on.
std::string refusal(SmallRun& s, TrainableModel* model = nullptr) {
  try {
    s.run(model);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Loop, LimitsThatLeaveNothingToTrainAreRefused) {
  SmallRun none, little, never;
  none.settings.limit_train_batches = Amount::count(0);
  EXPECT_THAT(refusal(none), HasSubstr("trainer.limit_train_batches: got 0"));
  little.settings.limit_train_batches = Amount::fraction(0.05);
  EXPECT_THAT(refusal(little), HasSubstr("limit_train_batches: got 0.05, which is less than one"));
  never.settings.val_check_interval = Amount::count(11);
  EXPECT_THAT(refusal(never), HasSubstr("val_check_interval: got 11, but an epoch has 10 batches"));
  never.settings.check_val_every_n_epoch.reset();  // across epochs: the 11th batch of 20
  EXPECT_EQ(refusal(never), "");
}

TEST(Loop, AnUnknownMetricIsRefusedWithTheKnownOnes) {
  SmallRun best, plateau;
  best.criteria = {{"valid/los", Better::kLower, 3}};
  EXPECT_THAT(refusal(best),
              testing::AllOf(HasSubstr("no metric 'valid/los'"),
                             HasSubstr("did you mean 'valid/loss'"), HasSubstr("valid/large")));
  plateau.settings.num_sanity_val_steps = 0;
  plateau.schedule = schedule_spec(config::PlateauLrSettings{});
  plateau.schedule.monitor = "valid/bleu";
  EXPECT_THAT(refusal(plateau), HasSubstr("scheduler_monitor: there is no metric 'valid/bleu'"));
}

TEST(Loop, EveryCriterionHasItsOwnList) {
  TempFolder folder;
  SmallRun s;
  s.settings.max_epochs = 12;
  s.settings.checkpoint_folder = folder.path();
  s.criteria = {{"valid/loss", Better::kLower, 3}, {"valid/loss", Better::kLower, 10}};
  s.run();
  const Json best = parse_json(read_file(folder.path() / "best.json"), "best.json");
  EXPECT_EQ(best["valid/loss"].size(), 3u);
  EXPECT_EQ(best["valid/loss (min 10)"].size(), 10u);
  for (const auto& [name, list] : best.items())
    for (const Json& entry : list)
      EXPECT_TRUE(std::filesystem::exists(folder.path() / entry["file"].get<std::string>()));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "valid.loss.ave_3best.pth"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "valid.loss.ave_10best.pth"));
}

// Raises a signal at one step.
struct Raise final : Callback {
  std::int64_t step;
  bool in_validation;
  explicit Raise(std::int64_t at, bool validation = false) : step(at), in_validation(validation) {}
  void on_step(const Moment& m) override {
    if (m.step == step && !in_validation) ::raise(SIGTERM);
  }
  void before_validation(const Moment& m) override {
    if (m.step == step && in_validation) ::raise(SIGTERM);
  }
};

// The weights, the list of the best and the log of a run that is stopped are those of one that is
// not.
void expect_same_after_stop(bool in_validation) {
  TempFolder whole_folder, folder;
  const auto prepare = [](SmallRun& s, const std::filesystem::path& where) {
    s.settings.max_epochs = 3;
    s.settings.num_sanity_val_steps = 0;
    s.settings.checkpoint_folder = where;
    s.criteria = {{"valid/loss", Better::kLower, 2}};
  };
  SmallRun whole, stopped, resumed;
  prepare(whole, whole_folder.path());
  prepare(stopped, folder.path());
  prepare(resumed, folder.path());
  const auto whole_log = make_jsonl_logger(whole_folder.path() / "metrics.jsonl");
  whole.loggers = {whole_log.get()};
  whole.run();
  {
    StopSignals signals;
    Raise raise(20, in_validation);  // the last step of the second epoch
    stopped.signals = &signals;
    stopped.callbacks = {&raise};
    const auto log = make_jsonl_logger(folder.path() / "metrics.jsonl");
    stopped.loggers = {log.get()};
    EXPECT_EQ(stopped.run().end, FitEnd::kPreempted);
  }
  const auto log = make_jsonl_logger(folder.path() / "metrics.jsonl");
  resumed.loggers = {log.get()};
  EXPECT_EQ(resumed.run().steps, 30);
  EXPECT_TRUE(whole.weights().equal(resumed.weights()));
  EXPECT_EQ(read_file(whole_folder.path() / "best.json"), read_file(folder.path() / "best.json"));
  const auto validations = [](const std::filesystem::path& path) {
    std::vector<std::string> found;
    for (const std::string& line : split(read_file(path / "metrics.jsonl"), '\n'))
      if (line.find("valid/loss") != std::string::npos ||
          line.find("train/loss_epoch") != std::string::npos)
        found.push_back(line);
    return found;
  };
  EXPECT_EQ(validations(whole_folder.path()), validations(folder.path()));
}

TEST(Stop, OnTheLastStepOfAnEpochTheValidationIsMadeAfterTheResume) {
  expect_same_after_stop(/*in_validation=*/false);
}

TEST(Stop, InAValidationItIsMadeAfterTheResume) { expect_same_after_stop(/*in_validation=*/true); }

TEST(Stop, MaxTimeCountsAllProcesses) {
  TempFolder folder;
  SmallRun first, second;
  for (SmallRun* s : {&first, &second}) s->settings.checkpoint_folder = folder.path();
  first.settings.max_time.seconds = second.settings.max_time.seconds = 1e-9;
  EXPECT_EQ(first.run().steps, 1);
  EXPECT_EQ(second.run().steps, 1);  // its time was up already
}

TEST(Loop, AKilledRunsLaterLinesAreForgotten) {
  TempFolder folder;
  SmallRun first, second;
  for (SmallRun* s : {&first, &second}) {
    s->settings.checkpoint_folder = folder.path() / "checkpoints";
    s->settings.log_every_n_steps = 1;
  }
  const std::filesystem::path file = folder.path() / "metrics.jsonl";
  {
    const auto log = make_jsonl_logger(file);
    const auto table = make_csv_logger(folder.path());
    first.loggers = {log.get(), table.get()};
    first.settings.max_steps = 4;
    first.run();
    log->log({5, 0}, {{"train/loss", 9}});  // what it did after its last save
    table->log({5, 0}, {{"train/loss", 9}});
  }
  std::ofstream(file, std::ios::app) << "{\"step\": 6, \"epo";  // and was killed
  const auto log = make_jsonl_logger(file);
  const auto table = make_csv_logger(folder.path());
  second.loggers = {log.get(), table.get()};
  second.run();
  std::map<std::int64_t, int> lines;
  for (const std::string& line : split(trim(read_file(file)), '\n'))
    if (line.find("\"train/loss\"") != std::string::npos) ++lines[parse_json(line, "line")["step"]];
  EXPECT_EQ(lines.size(), 20u);
  for (const auto& [step, count] : lines) EXPECT_EQ(count, 1) << "step " << step;
  EXPECT_EQ(read_file(folder.path() / "metrics.csv").find(",9\n"), std::string::npos);
}

TEST(NotFinite, ADroppedStepLeavesNoTrace) {
  const auto train = [](bool with_nan) {
    SmallRun s;
    s.settings.max_epochs = 1;
    auto data = toy::batches(10, 4);
    Batch bad = data[3];
    bad.tensors["x"] = bad.tensors["x"].clone();
    bad.tensors["x"][0][0] = std::nan("");
    if (with_nan) data.insert(data.begin() + 3, bad);
    s.train = std::make_unique<MemorySource>(data, 0, 1);
    torch::manual_seed(3);
    toy::Model model(std::make_shared<toy::NormNetImpl>());
    const FitResult result = s.run(&model);
    EXPECT_EQ(result.skipped_steps, with_nan ? 1 : 0);
    std::vector<at::Tensor> all = {s.weights(&model)};
    for (const auto& [name, buffer] : model.named_buffers())
      all.push_back(buffer.to(torch::kDouble).flatten());
    return at::cat(all);
  };
  EXPECT_TRUE(train(true).equal(train(false)));
}

TEST(NotFinite, GradientsEndTheRunAfterTooManyInARowWithAndWithoutClipping) {
  for (const double clip : {0.0, 1.0}) {
    SmallRun s;
    s.settings.gradient_clip_val = clip;
    s.settings.max_nonfinite_steps = 5;
    toy::BadGradients model(3);
    EXPECT_THAT(refusal(s, &model),
                HasSubstr("a gradient was NaN or infinite in 5 steps in a row"));
    EXPECT_TRUE(s.weights(&model).isfinite().all().item<bool>());
  }
}

TEST(FromLightning, WeightsOptimizerEpochAndStepAreTakenOver) {
  if (!toy::python_has_torch()) GTEST_SKIP() << TUTTI_PYTHON " has no torch here";
  TempFolder folder;
  // Ours for two epochs, as Lightning would have written them, and one more from there.
  SmallRun first, third, whole;
  first.settings.checkpoint_folder = folder.path() / "first";
  first.run();
  const auto ours = CheckpointStore::newest(folder.path() / "first");
  TensorMap all = ours->checkpoint.model;
  for (const auto& [name, tensor] : ours->checkpoint.optimizer) all["/" + name] = tensor;
  write_safetensors(folder.path() / "all.safetensors", all);
  const char* script = R"(
import json, struct, sys, torch
f = open('all.safetensors', 'rb'); n = struct.unpack('<Q', f.read(8))[0]
head = json.loads(f.read(n)); data = f.read(); head.pop('__metadata__', None)
kind = {'F64': torch.float64, 'I64': torch.int64}
def read(name):
    h = head[name]; a, b = h['data_offsets']
    return torch.frombuffer(bytearray(data[a:b]), dtype=kind[h['dtype']]).reshape(h['shape']).clone()
names = ['first.weight', 'first.bias', 'second.weight', 'second.bias']
state = {i: {'step': torch.tensor(float(read('/optimizer/step/' + n))),
             'exp_avg': read('/optimizer/exp_avg/' + n),
             'exp_avg_sq': read('/optimizer/exp_avg_sq/' + n)} for i, n in enumerate(names)}
progress = dict(total=dict(ready=2, started=2, processed=2, completed=1),
                current=dict(ready=2, started=2, processed=2, completed=1))
torch.save({'epoch': 1, 'global_step': 20, 'pytorch-lightning_version': '2.4.0',
            'state_dict': {'model.' + n: read(n) for n in names},
            'loops': {'fit_loop': {'epoch_progress': progress}}, 'callbacks': {},
            'optimizer_states': [{'state': state, 'param_groups': [{'lr': 0.01, 'params': [0, 1, 2, 3]}]}],
            'lr_schedulers': []}, 'epoch=1-step=20.ckpt')
)";
  const auto made = run_command({.argv = {TUTTI_PYTHON, "-c", script}, .cwd = folder.path()});
  ASSERT_TRUE(made.ok()) << made.describe();
  third.settings.checkpoint_folder = folder.path() / "third";
  third.settings.resume = (folder.path() / "epoch=1-step=20.ckpt").string();
  third.settings.max_epochs = whole.settings.max_epochs = 3;
  EXPECT_EQ(third.run().steps, 30);
  whole.run();
  EXPECT_TRUE(third.weights().equal(whole.weights()));
}

}  // namespace
}  // namespace tutti::trainer
