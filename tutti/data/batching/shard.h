// Which part of the data a rank works on in an epoch, when the data is cut into shards.
//
// ```text
// shard = ((epoch x world) + rank) % total_shards
// ```
//
// total_shards is a multiple of the world size, so that over total_shards / world epochs every
// shard (and so every utterance) is seen exactly once. Utterance i belongs to shard i %
// total_shards, which gives each shard the same mix of lengths even when the manifest is sorted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tutti::data {

struct Sharding {
  int total_shards = 1;
  int dist_world_size = 1;
};

constexpr int shard_of(std::uint64_t epoch, int world, int rank, int total_shards) {
  return static_cast<int>(
      (epoch * static_cast<std::uint64_t>(world) + static_cast<std::uint64_t>(rank)) %
      static_cast<std::uint64_t>(total_shards));
}

struct ShardingMistake {
  std::string key;   // "dist_world_size" or "total_shards"
  std::string what;  // with the arithmetic
  std::string fix;
};
// The two rules, against the number of ranks. `ranks_are` says where that number comes from, e.g.
// "num_nodes x num_device = 2 x 8 = 16". Both may be broken; the first is returned.
std::optional<ShardingMistake> find_sharding_mistake(const Sharding& sharding, int num_ranks,
                                                     const std::string& ranks_are);

}  // namespace tutti::data
