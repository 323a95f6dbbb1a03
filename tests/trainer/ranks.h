// Starting ranks of trainer_rank as processes, and what they leave behind.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"
#include "tutti/trainer/checkpoint/safetensors.h"

namespace tutti::trainer {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

struct Ranks {
  std::vector<Process> processes;
  std::vector<fs::path> logs;

  std::string log(int rank) const { return read_file(logs[static_cast<std::size_t>(rank)]); }
  // Exit statuses; kills what is left after `limit`, which fails the test.
  std::vector<ExitStatus> wait(std::chrono::seconds limit = std::chrono::seconds(90)) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    std::vector<ExitStatus> out;
    for (std::size_t i = 0; i < processes.size(); ++i) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          deadline - std::chrono::steady_clock::now());
      const auto status = processes[i].wait_for(std::max(left, std::chrono::milliseconds(1)));
      if (!status) ADD_FAILURE() << "rank " << i << " still runs:\n" << log(static_cast<int>(i));
      out.push_back(status.value_or(ExitStatus{-1, SIGALRM}));
    }
    return out;
  }
};

inline int g_start = 0;  // distinguishes several starts in one folder, as a restart count does

inline Ranks start(const fs::path& dir, int world_size, const Words& words) {
  Ranks ranks;
  ++g_start;
  for (int rank = 0; rank < world_size; ++rank) {
    Words argv = {in_bin("trainer_rank"), "dir=" + dir.string()};
    argv.insert(argv.end(), words.begin(), words.end());
    const fs::path log = dir / ("log-" + std::to_string(g_start) + "-" + std::to_string(rank));
    ranks.logs.push_back(log);
    ranks.processes.push_back(Process::start({.argv = argv,
                                              .env = {{"RANK", std::to_string(rank)},
                                                      {"WORLD_SIZE", std::to_string(world_size)},
                                                      {"RUN_ID", "test-" + std::to_string(g_start)},
                                                      {"OMP_NUM_THREADS", "1"}},
                                              .stdout_path = log}));
  }
  return ranks;
}

inline void expect_all_ok(Ranks& ranks) {
  const auto statuses = ranks.wait();
  for (std::size_t i = 0; i < statuses.size(); ++i)
    EXPECT_TRUE(statuses[i].ok()) << statuses[i].describe() << "\n"
                                  << ranks.log(static_cast<int>(i));
}

inline TensorMap final_weights(const fs::path& dir, int rank = 0) {
  return read_safetensors(dir / ("final-" + std::to_string(rank) + ".safetensors"));
}

inline double largest_difference(const TensorMap& a, const TensorMap& b) {
  double largest = 0;
  for (const auto& [name, tensor] : a)
    largest = std::max(largest, (tensor - b.at(name)).abs().max().item<double>());
  return largest;
}

inline TensorMap train(const fs::path& dir, int world_size, const Words& words) {
  make_folders(dir);
  Ranks ranks = start(dir, world_size, words);
  expect_all_ok(ranks);
  for (int rank = 1; rank < world_size; ++rank)  // replicas never drift
    EXPECT_EQ(largest_difference(final_weights(dir, 0), final_weights(dir, rank)), 0);
  return final_weights(dir);
}

inline Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// The weights of a sharded run: every rank wrote its parts of the flattened parameters.
inline TensorMap train_sharded(const fs::path& dir, int world_size, Words words) {
  make_folders(dir);
  words.push_back("strategy=fsdp");
  Ranks ranks = start(dir, world_size, words);
  expect_all_ok(ranks);
  TensorMap whole;
  std::vector<TensorMap> parts;
  for (int rank = 0; rank < world_size; ++rank) parts.push_back(final_weights(dir, rank));
  for (const auto& [name, part] : parts[0]) {
    std::vector<at::Tensor> pieces;
    for (const TensorMap& of_rank : parts) pieces.push_back(of_rank.at(name));
    whole[name] = at::cat(pieces);
  }
  return whole;
}

inline TensorMap flattened(TensorMap tensors) {
  for (auto& [name, tensor] : tensors) tensor = tensor.reshape({-1});
  return tensors;
}

// Something worth cutting into units.
inline const Words kDeep = {"depth=3",    "width=8", "unit_class=Block", "steps=12",
                            "batches=64", "batch=4", "clip=0.5"};

inline TensorMap last_checkpoint(const fs::path& dir, const std::string& file) {
  return read_safetensors(dir / "checkpoints" / "last" / file);
}

// 16 examples per step however many ranks share them, so that all runs see the same data.
inline Words checkpointed_run(int accumulate, int steps) {
  return {"batches=40",
          "batch=4",
          "checkpoints=1",
          "ema=1",
          "clip=0.3",
          "accum=" + std::to_string(accumulate),
          "steps=" + std::to_string(steps)};
}

// Starts two ranks with a fault on rank 1 and returns rank 0's last words.
inline std::string fault_seen_by_rank_zero(const std::string& fault, const Words& more = {},
                                           bool rank_one_hangs = false) {
  TempFolder folder;
  Words words = {"fault=" + fault, "fault_rank=1", "steps=2000", "epochs=200"};
  words.insert(words.end(), more.begin(), more.end());
  Ranks ranks = start(folder.path(), 2, words);
  const auto status = ranks.processes[0].wait_for(std::chrono::seconds(60));
  EXPECT_TRUE(status) << ranks.log(0);
  EXPECT_FALSE(status && status->ok()) << ranks.log(0);
  if (rank_one_hangs) ranks.processes[1].signal_group(SIGKILL);
  EXPECT_FALSE(ranks.wait()[1].ok());
  return ranks.log(0);
}

}  // namespace tutti::trainer
