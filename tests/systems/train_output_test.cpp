// What `tutti train` leaves in a file and shows on a terminal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tests/systems/toy_recipe.h"
#include "tutti/core/text.h"

namespace tutti::systems {
namespace {

using testing::HasSubstr;
using testing::Not;

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

// Everything a program writes to a terminal of 100 columns.
std::string on_terminal(const ToyRecipe& recipe, const std::vector<std::string>& overrides) {
  int master = -1;
  winsize size{.ws_row = 40, .ws_col = 130, .ws_xpixel = 0, .ws_ypixel = 0};
  const pid_t child = ::forkpty(&master, nullptr, nullptr, &size);
  if (child == 0) {
    ::setenv("TERM", "xterm", 1);
    ::setenv("NO_COLOR", "1", 1);
    ::setenv("OMP_NUM_THREADS", "1", 1);
    if (::chdir(recipe.path().c_str()) != 0) ::_exit(1);
    auto words = recipe.words(overrides);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  std::string said;
  char buffer[4096];
  for (ssize_t n; (n = ::read(master, buffer, sizeof buffer)) > 0;)
    said.append(buffer, static_cast<std::size_t>(n));
  ::close(master);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << said;
  return said;
}

TEST(TrainOutput, AFileGetsShortPlainLinesWithEachValueOnce) {
  const ToyRecipe recipe;
  const auto result = recipe.train({"num_device=2"});
  ASSERT_TRUE(result.ok()) << result.describe();
  const std::string text = result.out + result.err;
  for (const std::string& line : split(text, '\n')) {
    EXPECT_LT(line.size(), 120U) << line;
    EXPECT_THAT(line, Not(HasSubstr("//")));
    for (const char* name : {"loss=", "lr=", "[rank "})
      EXPECT_LE(count(line, name), line.find("valid:") == std::string::npos ? 1U : 2U) << line;
  }
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, Not(HasSubstr("\x1e")));
  EXPECT_THAT(text, Not(HasSubstr("[rank 0]")));
  EXPECT_THAT(text, Not(HasSubstr("loss_toy")));  // equal to the loss
  EXPECT_THAT(text, HasSubstr("epoch 1/3, step 1/6: loss="));
  EXPECT_THAT(text, HasSubstr("model: 4 parameters, 16 B in float32"));
  EXPECT_THAT(text, HasSubstr("best valid/loss: "));
  EXPECT_THAT(text, HasSubstr("in exp/checkpoints/epoch"));
  EXPECT_THAT(text, HasSubstr("(names of files count epochs from 0)"));
  const Json line = recipe.metrics().front();
  for (const char* name : {"train/loss", "train/loss_toy", "optim0_lr0", "time/forward"})
    EXPECT_TRUE(line.contains(name)) << name;
}

TEST(TrainOutput, WhatTwoWatchIsSaidOnce) {
  const ToyRecipe recipe;
  const auto result = recipe.train(
      {"++trainer.callbacks=[{_target_: lightning.pytorch.callbacks.ModelCheckpoint, monitor: "
       "valid/loss}]"});
  ASSERT_TRUE(result.ok()) << result.describe();
  EXPECT_EQ(count(result.out + result.err, "best valid/loss: "), 1U) << result.describe();
}

TEST(TrainOutput, ATerminalGetsOneProgressLineAndATable) {
  for (const char* devices : {"num_device=1", "num_device=2"}) {
    const ToyRecipe recipe(kToyForward, /*work=*/500);
    const std::string text = on_terminal(recipe, {devices});
    EXPECT_THAT(text, HasSubstr("\x1b[K\r"));
    EXPECT_THAT(text, Not(testing::ContainsRegex("\x1b\\[[0-9;]*m")));
    EXPECT_THAT(text, Not(HasSubstr("\x1e")));
    EXPECT_THAT(text, HasSubstr("epoch 1/3, step "));
    EXPECT_EQ(count(text, "val loss"), 1U) << text;
    EXPECT_THAT(text, Not(HasSubstr("[rank 0]")));
    EXPECT_THAT(text, HasSubstr("best valid/loss: "));
  }
}

TEST(TrainOutput, CtrlCSaysHowToGoOn) {
  const ToyRecipe recipe(kToyForward, /*work=*/500);
  Process process =
      Process::start({.argv = recipe.words({"num_device=2", "trainer.max_epochs=9999"}),
                      .env = {{"OMP_NUM_THREADS", "1"}},
                      .cwd = recipe.path(),
                      .stdout_path = recipe.path() / "log"});
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (!(recipe.has("exp/metrics.jsonl") && !recipe.series("train/loss").empty()) &&
         !process.poll() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  ::kill(process.pid(), SIGINT);
  const auto status = process.wait();
  const std::string text = recipe.read("log");
  EXPECT_EQ(status.exit_code, 130) << text;
  EXPECT_EQ(count(text, "the same command goes on"), 1U) << text;
  EXPECT_THAT(text, Not(HasSubstr("exit code 130")));
  EXPECT_THAT(text, Not(HasSubstr("its last lines")));
}

}  // namespace
}  // namespace tutti::systems
