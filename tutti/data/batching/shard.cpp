#include "tutti/data/batching/shard.h"

#include <fmt/format.h>

namespace tutti::data {

std::optional<ShardingMistake> find_sharding_mistake(const Sharding& s, int num_ranks,
                                                     const std::string& ranks_are) {
  if (s.dist_world_size != num_ranks)
    return ShardingMistake{"dist_world_size",
                           fmt::format("got {}, expected {}", s.dist_world_size, ranks_are),
                           "set dist_world_size: ${num_nodes * num_device}"};
  if (s.total_shards < 1 || s.total_shards % num_ranks != 0) {
    const int rounded =
        (s.total_shards / num_ranks + (s.total_shards < 1 ? 1 : s.total_shards % num_ranks != 0)) *
        num_ranks;
    return ShardingMistake{
        "total_shards",
        fmt::format("got {}, expected a multiple of dist_world_size = {} ({} = {} x {} + {})",
                    s.total_shards, num_ranks, s.total_shards, s.total_shards / num_ranks,
                    num_ranks, s.total_shards % num_ranks),
        fmt::format("set total_shards: {}", rounded)};
  }
  return std::nullopt;
}

}  // namespace tutti::data
