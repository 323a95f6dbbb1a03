// Checkpoints outside of exp_dir: trainer.default_root_dir and ModelCheckpoint's dirpath.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/systems/toy_training.h"
#include "tutti/core/text.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class CheckpointsElsewhere : public testing::Test {
 protected:
  void SetUp() override {
    if (!python_has_torch()) GTEST_SKIP() << TUTTI_PYTHON " has no torch here";
  }
  static std::string root(const fs::path& folder) {
    return "trainer.default_root_dir=" + folder.string();
  }
  static std::string dirpath(const fs::path& folder) {
    return "+trainer.callbacks=[{_target_: model_checkpoint, dirpath: " + folder.string() + "}]";
  }
  static std::string exp(const fs::path& folder) { return "exp_dir=" + folder.string(); }
  static void expect_refused(const CommandResult& result, const std::string& reason,
                             const std::string& fix) {
    EXPECT_EQ(result.exit_code, 2) << result.describe();
    EXPECT_THAT(result.err + result.out, AllOf(HasSubstr(reason), HasSubstr(fix)));
  }
};

TEST_F(CheckpointsElsewhere, AreOfOneExperimentAndOthersGetALineToPaste) {
  const ToyTraining toy;
  const fs::path here = fs::canonical(toy.path()), away = here / "away", other = here / "exp" / "b";
  const fs::path saved = away / "checkpoints";
  const auto first = toy.train({root(away), "trainer.max_epochs=1"});
  ASSERT_TRUE(first.ok()) << first.describe();
  ASSERT_TRUE(fs::exists(saved / "step-00000024"));
  EXPECT_TRUE(fs::exists(toy.checkpoints() / "last" / "COMPLETE"));  // found from exp_dir

  const std::string own = root(away / "b"), whose = (here / "exp" / "toy").string();
  for (const std::string word : {"optimizer.lr=0.5", "--force"})
    expect_refused(toy.train({root(away), exp(other), word}), whose, own);
  expect_refused(toy.train({dirpath(saved), exp(other)}), whose,
                 "trainer.callbacks.0.dirpath=" + saved.string() + "_b");
  EXPECT_TRUE(fs::exists(saved / "step-00000024"));
  EXPECT_FALSE(fs::exists(other));
  const auto second = toy.train({own, exp(other), "optimizer.lr=0.5", "trainer.max_epochs=1"});
  ASSERT_TRUE(second.ok()) << second.describe();

  const auto more = toy.train({root(away)});
  ASSERT_TRUE(more.ok()) << more.describe();
  EXPECT_THAT(more.err + more.out, HasSubstr("resumed from"));
  EXPECT_TRUE(fs::exists(saved / "step-00000048"));
  const auto without = toy.train({"trainer.max_epochs=3"});  // exp_dir knows where they are
  ASSERT_TRUE(without.ok()) << without.describe();
  EXPECT_TRUE(fs::exists(saved / "step-00000072"));

  write_file_atomic(saved / "notes.txt", "mine");
  const auto afresh = toy.train({root(away), "--force", "trainer.max_epochs=1"});
  ASSERT_TRUE(afresh.ok()) << afresh.describe();
  EXPECT_TRUE(fs::exists(away / "checkpoints.before" / "step-00000072"));
  EXPECT_TRUE(fs::exists(saved / "step-00000024"));
  EXPECT_FALSE(fs::exists(saved / "step-00000072"));
  EXPECT_TRUE(fs::exists(saved / "notes.txt"));
  EXPECT_TRUE(fs::exists(away / "b" / "checkpoints" / "step-00000024"));
}

TEST_F(CheckpointsElsewhere, OfAnExperimentsOwnFolderAreNotTakenByADirpath) {
  const ToyTraining toy;
  ASSERT_TRUE(toy.train({"trainer.max_epochs=1"}).ok());
  const fs::path exp_dir = fs::canonical(toy.exp()), other = toy.path() / "exp" / "b";
  expect_refused(toy.train({dirpath(exp_dir / "checkpoints"), exp(other)}), exp_dir.string(),
                 "trainer.callbacks.0.dirpath=");
  expect_refused(toy.train({dirpath(exp_dir)}), "exp_dir is the same", "leave dirpath out");
}

TEST_F(CheckpointsElsewhere, HaveOneTrainerAtATime) {
  const ToyTraining toy(4, 100);
  const fs::path away = fs::canonical(toy.path()) / "away";
  Process process = toy.start({root(away)});
  ASSERT_TRUE(ToyTraining::wait_until(process, [&] { return toy.steps() >= 1; })) << toy.log();
  const auto second = toy.train({root(away), exp(toy.path() / "exp" / "b")});
  EXPECT_EQ(second.exit_code, 4) << second.describe();
  EXPECT_THAT(second.err + second.out,
              AllOf(HasSubstr("process " + std::to_string(process.pid()) + " on "),
                    HasSubstr(root(away / "b"))));
  ::kill(process.pid(), SIGKILL);
  process.wait();
  const auto third = toy.train({root(away), "+trainer.max_steps=30"});
  EXPECT_TRUE(third.ok()) << third.describe();  // the dead one's lock is no obstacle
}

TEST_F(CheckpointsElsewhere, GoWithAMovedExperimentAndNotWithItsCopy) {
  const ToyTraining toy;
  const fs::path here = fs::canonical(toy.path()), away = here / "away";
  ASSERT_TRUE(toy.train({root(away), "trainer.max_epochs=1"}).ok());
  const fs::path moved = here / "exp" / "moved", copy = here / "exp" / "copy";
  fs::rename(toy.exp(), moved);
  const auto more = toy.train({root(away), exp(moved)});
  ASSERT_TRUE(more.ok()) << more.describe();
  EXPECT_THAT(more.err + more.out, HasSubstr("resumed from"));

  fs::copy(moved, copy, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  expect_refused(toy.train({root(away), exp(copy), "trainer.max_epochs=3"}), moved.string(),
                 root(away / "copy"));

  // To another place: by the line of the refusal.
  const fs::path target = here / "new";
  const std::string line = "mkdir -p " + shell_quote((target / "checkpoints").string()) +
                           " && mv " + shell_quote((away / "checkpoints").string()) + "/* " +
                           shell_quote((target / "checkpoints").string());
  const auto placed = [&] { return toy.train({root(target), exp(moved), "trainer.max_epochs=3"}); };
  expect_refused(placed(), (away / "checkpoints").string(), line);
  ASSERT_TRUE(run_command({.argv = {"sh", "-c", line}}).ok());
  const auto there = placed();
  ASSERT_TRUE(there.ok()) << there.describe();
  EXPECT_THAT(there.err + there.out, HasSubstr("resumed from"));
  EXPECT_TRUE(fs::exists(moved / "checkpoints" / "step-00000072"));
  EXPECT_TRUE(fs::exists(target / "checkpoints" / "step-00000072"));
}

TEST_F(CheckpointsElsewhere, OfADeletedExperimentAreNotGoneOnWithUnasked) {
  const ToyTraining toy;
  const fs::path here = fs::canonical(toy.path()), away = here / "away";
  const fs::path exp_dir = here / "exp" / "toy";
  ASSERT_TRUE(toy.train({root(away), "trainer.max_epochs=1"}).ok());
  fs::remove_all(exp_dir);
  const std::string line = "mkdir -p " + shell_quote(exp_dir.string()) + " && ln -sfn " +
                           shell_quote((away / "checkpoints").string()) + " " +
                           shell_quote((exp_dir / "checkpoints").string());
  expect_refused(toy.train({root(away), "optimizer.lr=0.5"}), "does not know", line);
  ASSERT_TRUE(run_command({.argv = {"sh", "-c", line}}).ok());
  const auto taken = toy.train({root(away)});
  ASSERT_TRUE(taken.ok()) << taken.describe();
  EXPECT_THAT(taken.err + taken.out, HasSubstr("resumed from"));
}

}  // namespace
}  // namespace tutti::systems
