// Whether ranks can exchange tensors, and how fast: what `tutti doctor --gpus` runs before the first
// training on a new machine.
//
//   World world = join_world(rank, {.run_folder = ".", .device = "cuda:0"});
//   check_collectives(world, device);                                   // throws if a sum is wrong
//   for (const Speed& s : measure_collectives(world, device)) ...       // the same on all ranks
//
// Collective: all ranks call both. Throws CommError: a wrong result, a lost or a silent rank.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tutti/trainer/world.h"

namespace tutti::trainer {

struct Speed {
  std::string operation;  // "all_reduce", or "copy" within each rank's own memory
  std::int64_t num_bytes = 0;
  double seconds = 0;  // of one, on the slowest rank
  double
      bytes_per_second;  // all_reduce: over each rank's link, 2 (W - 1) / W of the bytes per rank
};

// Every operation with numbers whose results are known to the last bit.
void check_collectives(World& world, at::Device device);

// `tell` is called before each row with what comes, on every rank.
std::vector<Speed> measure_collectives(World& world, at::Device device,
                                       const std::function<void(const std::string&)>& tell = {});

}  // namespace tutti::trainer
