// `tutti train` when it is stopped, started again, started twice, or started with something else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>

#include <algorithm>
#include <regex>
#include <set>
#include <thread>

#include "tests/places.h"
#include "tests/systems/toy_training.h"
#include "tutti/core/text.h"
#include "tutti/core/threads.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Training : public testing::Test {
 protected:
  void SetUp() override {
    if (!python_has_torch()) GTEST_SKIP() << TUTTI_PYTHON " has no torch here";
  }
};

// Slurm as far as a job of one task sees it; what scontrol was asked goes to a file.
class FakeSlurm {
 public:
  explicit FakeSlurm(const ToyTraining& toy, const std::string& preempted = "None", int tasks = 1)
      : calls_(toy.path() / "scontrol.calls") {
    fs::create_directories(toy.path() / "bin");
    const fs::path program = toy.path() / "bin" / "scontrol";
    write_file_atomic(program, "#!/bin/sh\necho \"$*\" >> " + shell_quote(calls_.string()) +
                                   "\n[ \"$1\" = show ] && echo 'JobId=77 PreemptTime=" +
                                   preempted + " SuspendTime=None'\nexit 0\n");
    ::chmod(program.c_str(), 0755);
    env_ = {{"PATH", (toy.path() / "bin").string() + ":/usr/bin:/bin"},
            {"SLURM_JOB_ID", "77"},
            {"SLURM_STEP_ID", "0"},
            {"SLURM_NTASKS", std::to_string(tasks)},
            {"SLURM_STEP_NUM_TASKS", std::to_string(tasks)},
            {"SLURM_NNODES", "1"},
            {"SLURM_PROCID", "0"},
            {"SLURM_LOCALID", "0"},
            {"SLURM_NODEID", "0"}};
  }
  const std::map<std::string, std::string>& env() const { return env_; }
  std::string calls() const { return fs::exists(calls_) ? read_file(calls_) : ""; }

 private:
  fs::path calls_;
  std::map<std::string, std::string> env_;
};

// The exit code after a signal when it has made a step.
int stopped_by(int signal, const ToyTraining& toy, const FakeSlurm& slurm) {
  const std::size_t before = toy.steps();
  Process process = toy.start({}, slurm.env());
  EXPECT_TRUE(ToyTraining::wait_until(process, [&] { return toy.steps() > before; })) << toy.log();
  ::kill(process.pid(), signal);
  return process.wait().exit_code;
}

TEST_F(Training, ScancelEndsAJobTheRequeueSignalAndAPreemptionBringItBack) {
  {
    const ToyTraining toy(4, 100);
    const FakeSlurm slurm(toy);
    EXPECT_EQ(stopped_by(SIGTERM, toy, slurm), 85) << toy.log();
    EXPECT_THAT(slurm.calls(), testing::Not(HasSubstr("requeue")));
    EXPECT_TRUE(fs::exists(toy.checkpoints() / "last" / "COMPLETE"));
    EXPECT_EQ(stopped_by(SIGUSR1, toy, slurm), 85) << toy.log();
    EXPECT_THAT(slurm.calls(), HasSubstr("requeue 77"));
  }
  const ToyTraining toy(4, 100);
  const FakeSlurm slurm(toy, "2026-11-16T02:00:00");
  EXPECT_EQ(stopped_by(SIGTERM, toy, slurm), 85) << toy.log();
  EXPECT_THAT(slurm.calls(), HasSubstr("requeue 77"));
}

TEST_F(Training, ALostTerminalIsAnsweredWithACheckpoint) {
  for (const char* devices : {"trainer.devices=1", "trainer.devices=2"}) {
    const ToyTraining toy(4, 100);
    Process process = toy.start({devices});
    ASSERT_TRUE(ToyTraining::wait_until(process, [&] { return toy.steps() > 0; })) << toy.log();
    ::kill(process.pid(), SIGHUP);
    EXPECT_EQ(process.wait().exit_code, 85) << devices << toy.log();
    EXPECT_THAT(toy.log(), HasSubstr("stopped by SIGHUP"));
    EXPECT_TRUE(fs::exists(toy.checkpoints() / "last" / "COMPLETE"));
  }
}

TEST_F(Training, ASignalWhileRanksMeetIsAnswered) {
  const ToyTraining toy;
  const FakeSlurm slurm(toy, "None", 2);  // the other rank never comes
  Process process = toy.start({"trainer.devices=2"}, slurm.env());
  ASSERT_TRUE(ToyTraining::wait_until(process, [&] {
    return fs::exists(toy.exp() / ".rendezvous");
  })) << toy.log();
  ::kill(process.pid(), SIGUSR1);
  EXPECT_EQ(process.wait().exit_code, 85) << toy.log();
  EXPECT_THAT(slurm.calls(), HasSubstr("requeue 77"));
}

TEST_F(Training, ASignalWhileDataDoesNotComeIsAnswered) {
  const ToyTraining toy;
  fs::remove(toy.path() / "data/t50.wav");
  ASSERT_EQ(::mkfifo((toy.path() / "data/t50.wav").c_str(), 0600), 0);  // a file that never opens
  Process process = toy.start({"dataloader.train.shuffle=false"});
  // Batches of four: those before number 12 are there.
  ASSERT_TRUE(ToyTraining::wait_until(process, [&] { return toy.steps() >= 12; })) << toy.log();
  ::kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.wait().exit_code, 85) << toy.log();
  EXPECT_TRUE(fs::exists(toy.checkpoints() / "step-00000012" / "COMPLETE"));
}

// One utterance, in a file that never opens: a validation that begins does not end.
void stall_validation(const ToyTraining& toy) {
  const fs::path audio = toy.path() / "data/v.wav";
  ASSERT_EQ(::mkfifo(audio.c_str(), 0600), 0);
  const Json line = {{"id", "v0"}, {"audio", audio.string()}, {"text", "a"}};
  write_file_atomic(toy.path() / "data/valid.jsonl", line.dump() + "\n");
}

TEST_F(Training, ASignalInAValidationThatDoesNotEndIsAnswered) {
  const ToyTraining toy;
  stall_validation(toy);
  Process process = toy.start();
  ASSERT_TRUE(ToyTraining::wait_until(process, [&] { return toy.steps() == 24; })) << toy.log();
  ::kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.wait().exit_code, 85) << toy.log();
  EXPECT_TRUE(fs::exists(toy.checkpoints() / "step-00000024" / "COMPLETE"));
}

TEST_F(Training, ASignalBeforeTheFirstStepIsAnswered) {
  // While it reads data and model, and in the trial of the validation.
  for (const char* said : {"default clipping", "strategy single"}) {
    const ToyTraining toy;
    stall_validation(toy);
    Process process = toy.start({"trainer.num_sanity_val_steps=1"});
    ASSERT_TRUE(ToyTraining::wait_until(process, [&] {
      return toy.log().find(said) != std::string::npos;
    })) << toy.log();
    ::kill(process.pid(), SIGTERM);
    EXPECT_EQ(process.wait().exit_code, 85) << said << "\n" << toy.log();
    EXPECT_EQ(toy.steps(), 0U);
  }
}

// From the moment at which the program with torch is started, long before its main().
TEST_F(Training, ASignalWhileTheProgramIsLoadedIsAnswered) {
  const ToyTraining toy;
  for (const char* devices : {"trainer.devices=1", "trainer.devices=2"}) {
    for (const auto& [signal, code] : {std::pair{SIGTERM, 85}, {SIGUSR1, 85}, {SIGINT, 130}}) {
      Process process = toy.start({devices});
      const fs::path program = "/proc/" + std::to_string(process.pid()) + "/exe";
      ASSERT_TRUE(ToyTraining::wait_until(process, [&] {
        std::error_code gone;
        return fs::read_symlink(program, gone).filename() == "tutti-run";
      })) << toy.log();
      ::kill(process.pid(), signal);
      const ExitStatus status = process.wait();
      EXPECT_EQ(status.signal, 0) << status.describe();
      EXPECT_EQ(status.exit_code, code) << devices << " " << signal << "\n" << toy.log();
      EXPECT_EQ(toy.steps(), 0U);
    }
  }
}

// Whether a checkpoint is growing.
bool is_saving(const ToyTraining& toy) {
  if (!fs::exists(toy.checkpoints())) return false;
  for (const auto& entry : fs::directory_iterator(toy.checkpoints()))
    if (entry.path().filename().string().find(".tmp-") != std::string::npos) return true;
  return false;
}

TEST_F(Training, ASignalWhileACheckpointIsWrittenLeavesAWholeOne) {
  const ToyTraining toy(4, 1, 1, /*ballast=*/30);
  const std::string often =
      "+trainer.callbacks=[{_target_: model_checkpoint, every_n_train_steps: 1}]";
  Process process = toy.start({"trainer.devices=2", "trainer.max_epochs=50", often});
  ASSERT_TRUE(ToyTraining::wait_until(process, [&] { return is_saving(toy); })) << toy.log();
  ::kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.wait().exit_code, 85) << toy.log();
  // Another rank may hear of it first, and all may be over before this one says "SIGTERM: stopping".
  EXPECT_THAT(toy.log(), testing::AllOf(HasSubstr("stopped by SIGTERM"),
                                        HasSubstr("checkpoint saved: the same command goes on")));
  EXPECT_TRUE(fs::exists(toy.checkpoints() / "last" / "COMPLETE"));
  EXPECT_FALSE(is_saving(toy));  // the end waited for it
}

TEST_F(Training, ADiskThatFailsEndsTheRunAndTheLastCheckpointStands) {
  const ToyTraining toy(4, 100);
  Process process = toy.start({"trainer.max_epochs=50"});
  ASSERT_TRUE(ToyTraining::wait_until(process, [&] {
    return fs::exists(toy.checkpoints() / "last" / "COMPLETE");
  })) << toy.log();
  fs::rename(toy.checkpoints(), toy.exp() / "away");
  write_file_atomic(toy.checkpoints(), "in the way");
  EXPECT_EQ(process.wait().exit_code, 4) << toy.log();
  EXPECT_THAT(toy.log(), HasSubstr("the last checkpoint could not be written"));
  fs::remove(toy.checkpoints());
  fs::rename(toy.exp() / "away", toy.checkpoints());
  const auto resumed = toy.train({"trainer.max_epochs=3"});
  EXPECT_TRUE(resumed.ok()) << resumed.describe();
  EXPECT_THAT(resumed.err + resumed.out, HasSubstr("resumed from"));
}

TEST_F(Training, AStoppedValidationIsMadeAfterTheResumeWithTheSameBest) {
  const ToyTraining whole(24, 1, 100), stopped(24, 1, 100);
  ASSERT_TRUE(whole.train().ok());
  Process process = stopped.start();
  ASSERT_TRUE(ToyTraining::wait_until(process, [&] { return stopped.steps() >= 24; }))
      << stopped.log();
  ::kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.wait().exit_code, 85) << stopped.log();
  EXPECT_TRUE(fs::exists(stopped.checkpoints() / "step-00000024" / "COMPLETE"));
  const auto resumed = stopped.train();
  ASSERT_TRUE(resumed.ok()) << resumed.describe();
  EXPECT_EQ(read_file(whole.checkpoints() / "best.json"),
            read_file(stopped.checkpoints() / "best.json"));
  EXPECT_EQ(stopped.metrics("valid/loss").size(), 2U);
  EXPECT_EQ(stopped.steps(), 48U);
}

TEST_F(Training, AFolderHasOneTrainerAtATime) {
  const ToyTraining toy(4, 100);
  Process process = toy.start();
  ASSERT_TRUE(ToyTraining::wait_until(process, [&] { return toy.steps() >= 1; })) << toy.log();
  const auto second = toy.train();
  EXPECT_EQ(second.exit_code, 4) << second.describe();
  EXPECT_THAT(second.err + second.out,
              HasSubstr("process " + std::to_string(process.pid()) + " on "));
  ::kill(process.pid(), SIGKILL);
  process.wait();
  const auto third = toy.train({"+trainer.max_steps=30"});  // the dead one's lock is no obstacle
  ASSERT_TRUE(third.ok()) << third.describe();
  std::map<int, int> seen;  // what the killed one logged after its last save is not there twice
  for (const Json& row : toy.metrics("train/seen")) ++seen[row["step"].get<int>()];
  EXPECT_EQ(seen.size(), 30U);
  for (const auto& [step, times] : seen) EXPECT_EQ(times, 1) << "step " << step;
}

TEST_F(Training, AChangedConfigIsRefusedAcceptedOrAFreshStart) {
  const ToyTraining toy;
  ASSERT_TRUE(toy.train({"trainer.max_epochs=1"}).ok());
  const std::string config = read_file(toy.exp() / "config.yaml");
  const auto more = toy.train({"trainer.log_every_n_steps=2"});  // and two epochs: always fine
  ASSERT_TRUE(more.ok()) << more.describe();
  EXPECT_TRUE(fs::exists(toy.checkpoints() / "step-00000048"));
  EXPECT_EQ(read_file(toy.exp() / "config.yaml.1"), config);

  const std::string second = read_file(toy.exp() / "config.yaml");
  const auto refused = toy.train({"optimizer.lr=0.001"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(
      refused.err + refused.out,
      testing::AllOf(HasSubstr("optimizer.lr: 0.01 there, 0.001 here"), HasSubstr("--force"),
                     HasSubstr("--continue_with optimizer.lr"), HasSubstr("exp_tag=")));
  EXPECT_EQ(read_file(toy.exp() / "config.yaml"), second);

  const auto accepted =
      toy.train({"--continue_with", "optimizer.lr", "optimizer.lr=0.001", "trainer.max_epochs=3"});
  ASSERT_TRUE(accepted.ok()) << accepted.describe();
  EXPECT_EQ(toy.metrics("optim0_lr0").back()["optim0_lr0"], 0.001);
  EXPECT_TRUE(fs::exists(toy.checkpoints() / "step-00000072"));
  EXPECT_THAT(read_file(toy.exp() / "config.yaml"), HasSubstr("0.001"));

  const auto afresh = toy.train({"--force", "optimizer.lr=0.002", "trainer.max_epochs=1"});
  ASSERT_TRUE(afresh.ok()) << afresh.describe();
  EXPECT_TRUE(fs::exists(toy.checkpoints() / "step-00000024"));
  EXPECT_FALSE(fs::exists(toy.checkpoints() / "step-00000072"));
  EXPECT_TRUE(fs::exists(toy.exp() / "checkpoints.before" / "step-00000072"));
  EXPECT_EQ(toy.steps(), 24U);
}

TEST_F(Training, AFinishedRunKeepsItsConfigAndSaysWhatToRaise) {
  const ToyTraining toy;
  ASSERT_TRUE(toy.train({"trainer.max_epochs=2"}).ok());
  const std::string config = read_file(toy.exp() / "config.yaml");
  const auto refused = toy.train({"optimizer.lr=0.05", "trainer.max_epochs=2"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err + refused.out,
              testing::AllOf(HasSubstr("that run is finished"),
                             HasSubstr("raise trainer.max_epochs to go on")));

  const ToyTraining::Words accepted = {"--continue_with", "optimizer.lr", "optimizer.lr=0.05"};
  const auto with = [&](const std::string& word) {
    ToyTraining::Words words = accepted;
    words.push_back(word);
    const auto result = toy.train(words);
    EXPECT_TRUE(result.ok()) << result.describe();
    return result.err + result.out;
  };
  EXPECT_THAT(with("trainer.max_epochs=2"),
              HasSubstr("nothing is left to train: trainer.max_epochs is 2, and 2 are trained; "
                        "raise trainer.max_epochs to go on"));
  EXPECT_THAT(with("trainer.max_epochs=1"),
              HasSubstr("trainer.max_epochs is 1, but 2 are trained already"));
  EXPECT_THAT(with("+trainer.max_steps=48"),
              HasSubstr("raise trainer.max_epochs and trainer.max_steps"));
  EXPECT_EQ(read_file(toy.exp() / "config.yaml"), config);
  EXPECT_FALSE(fs::exists(toy.exp() / "config.yaml.1"));
  // What it was trained with is still its config.
  EXPECT_TRUE(toy.train({"trainer.max_epochs=2"}).ok());

  EXPECT_THAT(with("trainer.max_epochs=3"), HasSubstr("all done"));
  EXPECT_EQ(toy.steps(), 72U);
  EXPECT_THAT(read_file(toy.exp() / "config.yaml"), HasSubstr("0.05"));
}

TEST_F(Training, TheWaysOnNameAllThatDiffers) {
  const ToyTraining toy;
  ASSERT_TRUE(toy.train({"+trainer.max_steps=2"}).ok());
  const auto refused = [&](ToyTraining::Words words) {
    words.insert(words.end(), {"+trainer.max_steps=4", "optimizer.lr=0.05"});
    const auto result = toy.train(words);
    EXPECT_EQ(result.exit_code, 2) << result.describe();
    return result.err + result.out;
  };
  EXPECT_THAT(refused({"--continue_with", "optimizer.lr", "seed=2"}),
              testing::AllOf(HasSubstr("--continue_with optimizer.lr seed  goes on"),
                             testing::Not(HasSubstr("is finished"))));
  EXPECT_THAT(refused({"--continue_with", "optimzer.lr"}),
              testing::AllOf(HasSubstr("--continue_with optimzer.lr: that key does not differ"),
                             HasSubstr("--continue_with optimizer.lr  goes on")));
  EXPECT_THAT(refused({"model.sample_rate=8000"}), HasSubstr("if its weights fit"));
  // Weights of other shapes are no beginning.
  std::string config = read_file(toy.exp() / "config.yaml");
  const std::size_t model = config.find("\nmodel:\n");
  ASSERT_NE(model, std::string::npos) << config;
  config.insert(model + 8, "  encoder_conf:\n    output_size: 4\n");
  write_file_atomic(toy.exp() / "config.yaml", config);
  EXPECT_THAT(
      refused({}),
      testing::AllOf(HasSubstr("not --continue_with: another model.encoder_conf.output_size"),
                     HasSubstr("--force"), HasSubstr("exp_tag="),
                     testing::Not(HasSubstr("goes on from"))));
}

TEST_F(Training, AModelThatDoesNotFitLeavesTheConfigAlone) {
  const ToyTraining toy;
  ASSERT_TRUE(toy.train({"trainer.max_epochs=1"}).ok());
  const std::string config = read_file(toy.exp() / "config.yaml");
  // Another model under the same name.
  std::string script = read_file(toy.path() / "make.py");
  for (const auto& [from, to] :
       {std::pair<std::string, std::string>{"Linear(1, 2)", "Linear(1, 3)"},
        {"os.makedirs('data')", "sys.exit()"}})
    script.replace(script.find(from), from.size(), to);
  write_file_atomic(toy.path() / "other.py", script);
  ASSERT_TRUE(
      run_command({.argv = {TUTTI_PYTHON, "other.py", "4", "1", "1", "0"}, .cwd = toy.path()})
          .ok());
  const auto refused = toy.train({"trainer.max_epochs=2"});
  EXPECT_EQ(refused.exit_code, 3) << refused.describe();
  EXPECT_EQ(read_file(toy.exp() / "config.yaml"), config);
}

TEST_F(Training, OtherNumbersOfRanksSeeEveryUtteranceOnce) {
  const ToyTraining toy(4, 100);
  Process process = toy.start({"trainer.devices=2", "trainer.max_epochs=1"});
  ASSERT_TRUE(ToyTraining::wait_until(process, [&] { return toy.steps() >= 4; })) << toy.log();
  ::kill(process.pid(), SIGTERM);
  ASSERT_EQ(process.wait().exit_code, 85) << toy.log();
  const std::size_t by_two = toy.steps();
  ASSERT_LT(by_two, 12U);
  const auto resumed = toy.train({"trainer.max_epochs=1"});
  ASSERT_TRUE(resumed.ok()) << resumed.describe();
  EXPECT_THAT(resumed.err + resumed.out, HasSubstr("0.5 times as many utterances per step"));
  double seen = 0, ids = 0, squares = 0;  // means over ranks: the first rows stand for two
  for (const Json& row : toy.metrics("train/seen")) {
    const double ranks = row["step"].get<std::size_t>() <= by_two ? 2 : 1;
    seen += ranks * row["train/seen"].get<double>();
    ids += ranks * row["train/seen_id"].get<double>();
    squares += ranks * row["train/seen_sq"].get<double>();
  }
  EXPECT_NEAR(seen, 96, 1e-3);
  EXPECT_NEAR(ids, 95 * 96 / 2, 1e-2);
  EXPECT_NEAR(squares, 95 * 96 * 191 / 6, 1);
}

TEST_F(Training, OtherBatchesInTheMiddleOfAnEpochBeginItAnew) {
  const ToyTraining toy;
  ASSERT_TRUE(toy.train({"+trainer.max_steps=20"}).ok());  // of 24 in the epoch
  // Batches of eight: 12 in an epoch, fewer than it has made.
  const std::string key = "dataloader.train.batch_size";
  const auto resumed = toy.train({"--continue_with", key, key + "=8", "+trainer.max_steps=32"});
  ASSERT_TRUE(resumed.ok()) << resumed.describe();
  EXPECT_THAT(resumed.err + resumed.out, HasSubstr("the epoch begins anew"));
  double seen = 0;
  for (const Json& row : toy.metrics("train/seen"))
    if (row["step"].get<int>() > 20) seen += row["train/seen"].get<double>();
  EXPECT_EQ(seen, 96);  // every utterance once
}

TEST_F(Training, OneProcessUsesAllCoresUnlessToldOtherwise) {
  if (usable_cpus() < 2) GTEST_SKIP() << "one core";
  const ToyTraining toy(4, 100);
  const auto threads = [&](Process process) {
    const std::size_t before = toy.steps();
    EXPECT_TRUE(ToyTraining::wait_until(process, [&] { return toy.steps() > before; }))
        << toy.log();
    const std::string status = read_file("/proc/" + std::to_string(process.pid()) + "/status");
    process.terminate(std::chrono::minutes(1));
    return std::stoi(status.substr(status.find("Threads:") + 8));
  };
  EXPECT_GT(threads(toy.start_unlimited()), threads(toy.start()));
}

TEST_F(Training, OwnProgressGoesBeforeACheckpointThatWasNamed) {
  const ToyTraining first, second;
  ASSERT_TRUE(first.train({"trainer.max_epochs=1"}).ok());
  const std::string from = "+fit.ckpt_path=" + first.exp().string();
  ASSERT_TRUE(second.train({from, "+trainer.max_steps=30"}).ok());
  EXPECT_EQ(second.metrics("train/seen").front()["step"],
            25);  // it went on from the first one's end
  const auto again = second.train({from, "+trainer.max_steps=40"});
  ASSERT_TRUE(again.ok()) << again.describe();
  EXPECT_THAT(again.err + again.out, HasSubstr("this run has checkpoints of its own"));
  EXPECT_EQ(second.steps(), 16U);  // 25 to 40, each once
  // Never: afresh at each command, but not when the same job comes back.
  ASSERT_TRUE(second.train({"+fit.ckpt_path=never", "+trainer.max_steps=5"}).ok());
  EXPECT_EQ(second.steps(), 5U);
  ASSERT_TRUE(
      second.train({"+fit.ckpt_path=never", "+trainer.max_steps=8"}, {{"TUTTI_RESTART_COUNT", "1"}})
          .ok());
  EXPECT_EQ(second.steps(), 8U);
}

// Each file operation of a save and of the averages after it in turn: the one before which it dies.
TEST_F(Training, KilledAtAnyMomentOfASaveItKeepsTheSameBest) {
  const ToyTraining toy;
  const ToyTraining::Words kept = {"best_model_criterion=[[valid/loss, 2, min]]"};
  const auto until = [&](int epochs) {
    ToyTraining::Words words = kept;
    words.push_back("trainer.max_epochs=" + std::to_string(epochs));
    return words;
  };
  ASSERT_TRUE(toy.train(until(2)).ok());
  const fs::path before = toy.path() / "before";
  fs::rename(toy.exp(), before);
  const auto put_back = [&] {
    fs::remove_all(toy.exp());
    fs::copy(before, toy.exp(), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  };
  const auto content = [&] {  // step folders have times in them, and weights are long
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(toy.checkpoints())) {
      std::string& file = files[entry.path().filename().string()];
      if (entry.is_symlink())
        file = fs::read_symlink(entry.path()).string();
      else if (entry.is_regular_file())
        file = std::to_string(std::hash<std::string>{}(read_file(entry.path())));
    }
    return files;
  };
  put_back();
  ASSERT_TRUE(toy.train(until(3)).ok());
  const auto calm = content();
  ASSERT_EQ(calm.count("valid.loss.ave_2best.safetensors"), 1U);

  int kills = 0;
  for (bool killed = true; killed; kills += killed) {
    put_back();
    // By its name: a path in LD_PRELOAD ends at a space.
    killed = toy.train(until(3), {{"LD_PRELOAD", "libdie_before.so"},
                                  {"LD_LIBRARY_PATH", in_bin()},
                                  {"TUTTI_TEST_DIE_IN", toy.checkpoints().string()},
                                  {"TUTTI_TEST_DIE_BEFORE", std::to_string(kills)}})
                 .exit_code != 0;
    const auto again = toy.train(until(3));
    ASSERT_TRUE(again.ok()) << again.describe();
    EXPECT_EQ(content(), calm) << "killed before operation " << kills;
    ASSERT_LT(kills, 100);
  }
  EXPECT_GT(kills, 10);
}

TEST_F(Training, WeightsOfARunWhoseCheckpointsAreGoneAreNotAveragedWithOthers) {
  const ToyTraining toy;
  ASSERT_TRUE(toy.train({"trainer.max_epochs=3"}).ok());
  for (const auto& entry : fs::directory_iterator(toy.checkpoints()))  // to free the disk
    if (entry.path().filename().string().starts_with("step-")) fs::remove_all(entry.path());
  const ToyTraining::Words others = {"trainer.max_epochs=2", "optimizer.lr=0.001", "seed=7"};
  const auto refused = toy.train(others);
  EXPECT_EQ(refused.exit_code, 2) << refused.describe();
  EXPECT_THAT(refused.err + refused.out,
              testing::AllOf(HasSubstr("its checkpoints (step-*) are gone"), HasSubstr("--force")));
  EXPECT_TRUE(fs::exists(toy.checkpoints() / "valid.loss.ave_3best.safetensors"));
  ToyTraining::Words forced = others;
  forced.insert(forced.begin(), "--force");
  const auto anew = toy.train(forced);
  ASSERT_TRUE(anew.ok()) << anew.describe();
  EXPECT_THAT(anew.err + anew.out, HasSubstr("checkpoints.before"));
  EXPECT_TRUE(fs::exists(toy.checkpoints() / "valid.loss.ave_2best.safetensors"));
  EXPECT_FALSE(fs::exists(toy.checkpoints() / "valid.loss.ave_3best.safetensors"));
  EXPECT_TRUE(fs::exists(toy.exp() / "checkpoints.before/valid.loss.ave_3best.safetensors"));
  EXPECT_EQ(parse_json(read_file(toy.checkpoints() / "best.json"), "best")["valid/loss"].size(),
            2U);
  // Once more: what was kept of the first stays.
  ASSERT_TRUE(toy.train(forced).ok());
  EXPECT_TRUE(fs::exists(toy.exp() / "checkpoints.before/valid.loss.ave_2best.safetensors"));
  EXPECT_TRUE(fs::exists(toy.exp() / "checkpoints.before.1/valid.loss.ave_3best.safetensors"));
}

TEST_F(Training, BestWeightsThatAreDamagedOrGoneAreNamedAndNotAveraged) {
  const ToyTraining toy;
  ASSERT_TRUE(toy.train({"trainer.max_epochs=3"}).ok());
  const std::string damaged = "epoch1_step48_valid.loss.safetensors";
  const std::string gone = "epoch0_step24_valid.loss.safetensors";
  std::string content = read_file(toy.checkpoints() / damaged);
  content.back() ^= 1;
  fs::remove(toy.checkpoints() / damaged);  // a link: the step's own stays whole
  write_file_atomic(toy.checkpoints() / damaged, content);
  fs::remove(toy.checkpoints() / gone);
  const auto again = toy.train({"trainer.max_epochs=3", "trainer.log_every_n_steps=2"});
  ASSERT_TRUE(again.ok()) << again.describe();
  EXPECT_THAT(
      again.err + again.out,
      testing::AllOf(HasSubstr("best.json lists " + gone + ", which is not there"),
                     HasSubstr(damaged + " is left out of the average"), HasSubstr("checksum")));
  EXPECT_TRUE(fs::exists(toy.checkpoints() / "valid.loss.ave_1best.safetensors"));
  EXPECT_FALSE(fs::exists(toy.checkpoints() / "valid.loss.ave_3best.safetensors"));
}

TEST_F(Training, AWordThatIsNoCheckpointIsRefusedWhateverIsThere) {
  const ToyTraining toy;
  ASSERT_TRUE(toy.train({"trainer.max_epochs=1"}).ok());
  const auto refused = toy.train({"+fit.ckpt_path=bset", "trainer.max_epochs=2"});
  EXPECT_EQ(refused.exit_code, 2) << refused.describe();
  EXPECT_THAT(refused.err + refused.out, HasSubstr("did you mean 'best'?"));
}

TEST_F(Training, AFolderThatCannotBeWrittenToIsTheUsersToMend) {
  if (::unshare(CLONE_NEWNS) != 0) GTEST_SKIP() << "needs root (a mount)";
  const ToyTraining toy;
  ASSERT_TRUE(toy.train({"trainer.max_epochs=1"}).ok());
  const std::string exp = toy.exp().string();
  const auto mount = [&](const ToyTraining::Words& words) {
    ToyTraining::Words argv = {"mount"};
    argv.insert(argv.end(), words.begin(), words.end());
    const auto done = run_command({.argv = argv});
    ASSERT_TRUE(done.ok()) << done.describe();
  };
  mount({"--make-rprivate", "/"});
  mount({"--bind", exp, exp});
  mount({"-o", "remount,ro,bind", exp});
  const auto refused = toy.train({"trainer.max_epochs=2"});
  EXPECT_EQ(refused.exit_code, 4) << refused.describe();
  EXPECT_THAT(refused.err + refused.out, HasSubstr("Read-only file system"));
  EXPECT_TRUE(run_command({.argv = {"umount", exp}}).ok());
}

TEST_F(Training, GoingBackToTheBestTakesItsOptimizerAndNeverUndoesARequeue) {
  const ToyTraining toy;
  const ToyTraining::Words best = {"+fit.ckpt_path=best", "trainer.max_epochs=4"};
  const auto early = toy.train(best);
  EXPECT_EQ(early.exit_code, 2) << early.describe();
  EXPECT_THAT(early.err + early.out, HasSubstr("until the first validation is made"));
  // The loss falls for ever, so by its maximum the first epoch stays the best.
  const std::string criterion = "best_model_criterion=[[valid/loss, 3, max]]";
  ASSERT_TRUE(toy.train({criterion, "trainer.max_epochs=4"}).ok());
  const std::string model = read_file(toy.checkpoints() / "step-00000096/model.safetensors");
  EXPECT_EQ(fs::read_symlink(toy.checkpoints() / "best"), "step-00000024");
  EXPECT_FALSE(fs::exists(toy.checkpoints() / "step-00000048"));

  const auto back = toy.train({criterion, "+fit.ckpt_path=best", "trainer.max_epochs=4"});
  ASSERT_TRUE(back.ok()) << back.describe();
  EXPECT_THAT(back.err + back.out, HasSubstr("epoch 2, batch 0, step 24"));
  EXPECT_TRUE(fs::exists(toy.exp() / "checkpoints.before" / "step-00000096"));
  EXPECT_EQ(toy.steps(), 96U);  // each step once
  // With its optimizer and random numbers: the same way again.
  EXPECT_EQ(read_file(toy.checkpoints() / "step-00000096/model.safetensors"), model);

  const auto requeued = toy.train({criterion, "+fit.ckpt_path=best", "trainer.max_epochs=5"},
                                  {{"TUTTI_RESTART_COUNT", "1"}});
  ASSERT_TRUE(requeued.ok()) << requeued.describe();
  EXPECT_THAT(requeued.err + requeued.out, HasSubstr("epoch 5, batch 0, step 96"));
}

TEST_F(Training, WhatCannotWorkIsRefusedWithItsKey) {
  const ToyTraining toy;
  const auto refused = [&](const ToyTraining::Words& words) {
    const auto result = toy.train(words);
    EXPECT_EQ(result.exit_code, 2) << result.describe();
    return result.err + result.out;
  };
  EXPECT_THAT(
      refused({"trainer.max_epochs=-1", "+trainer.max_steps=5", "+trainer.limit_train_batches=0"}),
      HasSubstr("limit_train_batches"));
  EXPECT_THAT(refused({"+trainer.limit_train_batches=0.01"}), HasSubstr("limit_train_batches"));
  EXPECT_THAT(refused({"+trainer.val_check_interval=5000"}), HasSubstr("val_check_interval"));
  EXPECT_THAT(
      refused({"best_model_criterion=[[valid/bleu, 3, max]]", "trainer.num_sanity_val_steps=2"}),
      testing::AllOf(HasSubstr("valid/bleu"), HasSubstr("valid/loss")));
}

TEST_F(Training, KilledBetweenTwoLogLinesItLogsTheSameMeans) {
  const ToyTraining whole, killed;
  const ToyTraining::Words words = {
      "dataloader.train.shuffle=false", "trainer.log_every_n_steps=5", "trainer.max_epochs=1",
      "+trainer.callbacks=[{_target_: ModelCheckpoint, every_n_train_steps: 4}]"};
  ASSERT_TRUE(whole.train(words).ok());
  const fs::path audio = killed.path() / "data/t50.wav";  // of step 13
  fs::rename(audio, killed.path() / "away.wav");
  ASSERT_EQ(::mkfifo(audio.c_str(), 0600), 0);  // it never opens
  Process process = killed.start(words);
  ASSERT_TRUE(ToyTraining::wait_until(process, [&] {
    return fs::exists(killed.checkpoints() / "step-00000012" / "COMPLETE");
  })) << killed.log();
  ::kill(process.pid(), SIGKILL);
  process.wait();
  fs::rename(killed.path() / "away.wav", audio);
  const auto resumed = killed.train(words);
  ASSERT_TRUE(resumed.ok()) << resumed.describe();
  EXPECT_THAT(resumed.err + resumed.out, HasSubstr("step 12"));
  for (const std::string suffix : {"", "_epoch"}) {
    const auto expected = whole.metrics("train/loss" + suffix);
    const auto got = killed.metrics("train/loss" + suffix);
    ASSERT_EQ(got.size(), expected.size());
    ASSERT_FALSE(got.empty());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i]["step"], expected[i]["step"]);
      for (const char* name : {"train/seen", "train/seen_id", "train/seen_sq"})
        EXPECT_EQ(got[i][name + suffix], expected[i][name + suffix]) << name << ", line " << i;
      EXPECT_NEAR(got[i]["train/loss" + suffix].get<double>(),
                  expected[i]["train/loss" + suffix].get<double>(), 1e-6);
    }
  }
}

std::set<std::string> kept_saves(const ToyTraining& toy) {  // not the best: these have a metric
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(toy.checkpoints())) {
    const std::string name = entry.path().filename().string();
    if (std::regex_match(name, std::regex("epoch\\d+_step\\d+\\.safetensors"))) names.insert(name);
  }
  return names;
}

TEST_F(Training, ACallbackThatKeepsAllKeepsOnlyItsOwnSaves) {
  const ToyTraining toy;
  const auto trained = toy.train(
      {"trainer.max_epochs=4", "+trainer.limit_train_batches=2",
       "+trainer.callbacks=[{_target_: ModelCheckpoint, save_top_k: -1, every_n_epochs: 2},"
       "{_target_: ModelCheckpoint, monitor: valid/loss, every_n_train_steps: 1}]"});
  ASSERT_TRUE(trained.ok()) << trained.describe();
  EXPECT_THAT(kept_saves(toy),
              testing::ElementsAre("epoch1_step4.safetensors", "epoch3_step8.safetensors"));
}

TEST_F(Training, WhatCtrlCSavesIsNotKeptForGood) {
  const ToyTraining toy(4, 100);
  const ToyTraining::Words kept = {
      "+trainer.callbacks=[{_target_: ModelCheckpoint, save_top_k: -1, every_n_epochs: 2}]"};
  Process process = toy.start(kept);
  ASSERT_TRUE(ToyTraining::wait_until(process, [&] { return toy.steps() > 0; })) << toy.log();
  ::kill(process.pid(), SIGINT);
  ASSERT_EQ(process.wait().exit_code, 130) << toy.log();
  const auto resumed = toy.train(kept);
  ASSERT_TRUE(resumed.ok()) << resumed.describe();
  EXPECT_THAT(kept_saves(toy), testing::ElementsAre("epoch1_step48.safetensors"));
}

TEST_F(Training, Bf16WeightsTrainOnTwoRanks) {
  const ToyTraining toy;
  const auto result =
      toy.train({"trainer.devices=2", "+trainer.precision=bf16-true", "trainer.max_epochs=1"});
  EXPECT_TRUE(result.ok()) << result.describe();
}

}  // namespace
}  // namespace tutti::systems
