#include "tutti/trainer/world.h"

#include <fmt/format.h>

#include <thread>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/trainer/collectives/nccl.h"

namespace tutti::trainer {
namespace {

class PlaneControl final : public Control {
 public:
  explicit PlaneControl(std::shared_ptr<launch::ControlPlane> plane) : plane_(std::move(plane)) {}
  int rank() const override { return plane_->rank().rank; }
  int world_size() const override { return plane_->rank().world_size; }
  std::vector<std::string> all_gather(const std::string& what, const std::string& blob) override {
    return plane_->all_gather(blob, what);
  }
  void set_phase(const std::string& phase) override { plane_->set_phase(phase); }
  void fail(const std::string& why) noexcept override {
    if (!plane_->failure()) plane_->last_words(why);
  }
  void check_peers(std::chrono::milliseconds patience) override {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (true) {
      if (const auto failure = plane_->failure()) throw CommError(*failure);
      if (std::chrono::steady_clock::now() >= deadline) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  void finish() override { plane_->finish(); }

 private:
  std::shared_ptr<launch::ControlPlane> plane_;
};

class StoreKeyValue final : public KeyValue {
 public:
  explicit StoreKeyValue(std::unique_ptr<launch::Store> store) : store_(std::move(store)) {}
  void set(const std::string& key, const std::string& value) override { store_->set(key, value); }
  std::string get(const std::string& key) override {
    return store_->wait(key, launch::Timeout(300));
  }
  std::int64_t add(const std::string& key, std::int64_t by) override {
    return store_->add(key, by);
  }

 private:
  std::unique_ptr<launch::Store> store_;
};

std::string choose_backend(const WorldOptions& options) {
  if (options.backend != "auto") return options.backend;
  if (options.device.rfind("cuda", 0) == 0) return "nccl";
  return gloo_available() ? "gloo" : "tcp";
}

// The address of this host that the others reach; empty: let Gloo find it. Ranks of one node need
// no name resolution.
std::string own_address(const launch::RankContext& rank) {
  return rank.num_nodes == 1 ? "127.0.0.1" : "";
}

}  // namespace

std::unique_ptr<Control> make_plane_control(std::shared_ptr<launch::ControlPlane> plane) {
  return std::make_unique<PlaneControl>(std::move(plane));
}

World join_world(const launch::RankContext& rank, const WorldOptions& options) {
  World world;
  if (rank.world_size == 1) {
    world.control = make_local_control();
    world.collectives = make_local_collectives();
    return world;
  }
  launch::ControlOptions control;
  control.run_folder = options.run_folder;
  control.interface = options.interface;
  control.device = options.device;
  control.heartbeat_timeout = launch::Timeout(options.heartbeat_timeout);
  control.must_agree = options.must_agree;
  world.plane = launch::ControlPlane::join(rank, control);
  if (rank.rank == 0) log::info("ranks:\n{}", world.plane->startup_table());
  world.control = make_plane_control(world.plane);

  const std::string backend = choose_backend(options);
  world.control->set_phase("connecting " + backend);
  auto store = std::make_shared<StoreKeyValue>(world.plane->open_store());
  if (backend == "gloo") {
    world.collectives =
        make_gloo_collectives(std::move(store), rank.rank, rank.world_size, own_address(rank));
  } else if (backend == "nccl") {
    world.collectives = make_nccl_collectives(*store, rank.rank, rank.world_size,
                                              at::Device(options.device), *world.control);
    // A kernel that waits for a lost rank blocks the host; aborting lets it run into the error.
    world.plane->on_failure([weak = std::weak_ptr(world.collectives)](const std::string&) {
      if (const auto collectives = weak.lock()) collectives->abort();
    });
  } else if (backend == "tcp") {
    world.collectives = make_tcp_collectives(world.plane);
  } else {
    throw ConfigError(fmt::format(
        "trainer: collectives backend: got '{}', expected auto, gloo, nccl or tcp", backend));
  }
  return world;
}

std::unique_ptr<Strategy> make_strategy(const std::string& name, World& world) {
  const bool many = world.control->world_size() > 1;
  if (name == "auto" || name == "single" || name == "single_device") {
    if (!many) return make_single_strategy();
    if (name != "auto")
      throw ConfigError(fmt::format("trainer.strategy: got {}, but there are {} ranks", name,
                                    world.control->world_size()),
                        "use strategy: ddp");
  }
  const bool find_unused = name == "ddp_find_unused_parameters_true";
  if (name == "auto" || name == "ddp" || name == "ddp_find_unused_parameters_false" || find_unused)
    return many ? make_ddp_strategy(*world.collectives, *world.control, find_unused)
                : make_single_strategy();
  throw ConfigError(
      fmt::format("trainer.strategy: got '{}', expected auto, single, ddp or "
                  "ddp_find_unused_parameters_true",
                  name),
      closest_match(name, {"auto", "single", "ddp", "ddp_find_unused_parameters_true"}).empty()
          ? ""
          : "did you mean " +
                closest_match(name, {"auto", "single", "ddp", "ddp_find_unused_parameters_true"}) +
                "?");
}

}  // namespace tutti::trainer
