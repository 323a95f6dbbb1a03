// All ranks of a run: the side channel and the collectives, joined and ready.
//
//   const launch::RankContext rank = launch::detect(...).rank;
//   World world = join_world(rank, {.run_folder = "exp/asr", .device = "cpu"});
//   auto strategy = make_strategy("ddp", world);
//   ... fit(...) ...
//   world.control->finish();
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/launch/control.h"
#include "tutti/trainer/collectives/collectives.h"
#include "tutti/trainer/control.h"
#include "tutti/trainer/strategies/fsdp.h"
#include "tutti/trainer/strategies/strategy.h"

namespace tutti::trainer {

struct WorldOptions {
  std::filesystem::path run_folder;  // shared by all ranks
  std::string device = "cpu";        // "cuda:0"
  std::string backend = "auto";   // auto | gloo | nccl | tcp; auto: nccl on GPUs, else gloo or tcp
  std::string interface;          // network interface, as the config's `interface`
  double heartbeat_timeout = 15;  // seconds of silence after which a rank counts as lost
  double timeout = 1800;          // seconds the others wait for a rank that is alive
  std::vector<std::pair<std::string, std::string>> must_agree;  // e.g. {"config", hash}
};

struct World {
  launch::RankContext rank;
  std::shared_ptr<launch::ControlPlane> plane;  // shared with `control`; null in a world of one
  std::unique_ptr<Control> control;
  std::shared_ptr<Collectives> collectives;  // shared with the plane's failure callback
  // Collectives of their own among `ranks` (sorted, this one included), all of which must call it
  // with the same name; a name is used once.
  std::function<std::shared_ptr<Collectives>(const std::string& name,
                                             const std::vector<int>& ranks)>
      make_group;
};

// Returns when all ranks are here. Throws CommError naming those that are not.
World join_world(const launch::RankContext& rank, const WorldOptions& options);

// `name`: auto, single, single_device, ddp, ddp_find_unused_parameters_true/_false, fsdp. Throws
// ConfigError for other names. `bucket_cap_mb`: gradients ddp sends together, MiB.
// `sync_batchnorm`: see batch_norm.h.
std::unique_ptr<Strategy> make_strategy(const std::string& name, World& world,
                                        const FsdpOptions& fsdp = {}, double bucket_cap_mb = 25,
                                        bool sync_batchnorm = false);

}  // namespace tutti::trainer
