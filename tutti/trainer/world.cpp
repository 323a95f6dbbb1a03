#include "tutti/trainer/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <thread>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/trainer/collectives/nccl.h"
#include "tutti/trainer/strategies/norm_sync.h"

namespace tutti::trainer {
namespace {

class PlaneControl final : public Control {
 public:
  PlaneControl(std::shared_ptr<launch::ControlPlane> plane, launch::Timeout timeout)
      : Control(timeout), plane_(std::move(plane)) {}
  int rank() const override { return plane_->rank().rank; }
  int world_size() const override { return plane_->rank().world_size; }
  std::vector<std::string> all_gather(const std::string& what, const std::string& blob) override {
    std::lock_guard lock(gathering_);
    return plane_->all_gather(blob, what);
  }
  void set_phase(const std::string& phase) override { plane_->set_phase(phase); }
  void request_stop() noexcept override { plane_->request_stop(); }
  bool stop_requested() const noexcept override { return plane_->stop_requested(); }
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
  void still_waiting(const std::string& what) override {
    std::lock_guard lock(gathering_);
    // Those that wait as well answer at once; the hub names the others.
    const auto all = plane_->all_gather(what, "an operation between ranks", launch::Timeout(5));
    std::vector<std::string> lines;
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      lines.push_back(fmt::format("rank {}: {}", rank, all[rank]));
    throw CommError(
        fmt::format("all ranks have waited for {} s: {}", timeout().count(), join(lines, "; ")),
        "check the network between the nodes (firewall, interface)");
  }
  void finish() override { plane_->finish(); }

 private:
  std::mutex gathering_;  // a GPU's overseer asks who is missing while the loop is stuck
  std::shared_ptr<launch::ControlPlane> plane_;
};

// Keys of one group of ranks.
class StoreKeyValue final : public KeyValue {
 public:
  StoreKeyValue(std::unique_ptr<launch::Store> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}
  void set(const std::string& key, const std::string& value) override {
    store_->set(prefix_ + key, value);
  }
  std::string get(const std::string& key) override {
    return store_->wait(prefix_ + key, launch::Timeout(300));
  }
  std::int64_t add(const std::string& key, std::int64_t by) override {
    return store_->add(prefix_ + key, by);
  }

 private:
  std::unique_ptr<launch::Store> store_;
  std::string prefix_;
};

std::string choose_backend(const WorldOptions& options) {
  if (options.backend != "auto") return options.backend;
  if (options.device.rfind("cuda", 0) == 0) return "nccl";
  return gloo_available() ? "gloo" : "tcp";
}

// A kernel that waits for a lost rank blocks the host; aborting lets it run into the error.
class AbortList {
 public:
  void add(const std::shared_ptr<Collectives>& collectives) {
    std::lock_guard lock(mutex_);
    all_.push_back(collectives);
  }
  void abort() {
    std::lock_guard lock(mutex_);
    for (const auto& weak : all_)
      if (const auto collectives = weak.lock()) collectives->abort();
  }

 private:
  std::mutex mutex_;  // the plane's thread aborts
  std::vector<std::weak_ptr<Collectives>> all_;
};

std::shared_ptr<Collectives> connect(const std::shared_ptr<launch::ControlPlane>& plane,
                                     Control& control, const launch::RankContext& rank,
                                     const WorldOptions& options, const std::string& name,
                                     const std::vector<int>& ranks) {
  if (ranks.size() == 1) return make_local_collectives();
  const auto place = std::find(ranks.begin(), ranks.end(), rank.rank) - ranks.begin();
  const int own = static_cast<int>(place), size = static_cast<int>(ranks.size());
  const std::string backend = choose_backend(options);
  control.set_phase("connecting " + backend);
  auto store = std::make_shared<StoreKeyValue>(plane->open_store(), name.empty() ? "" : name + "/");
  if (backend == "gloo")
    return make_gloo_collectives(std::move(store), own, size, plane->own_address());
  if (backend == "tcp") {
    if (size != rank.world_size)
      throw ConfigError("trainer: groups of ranks need Gloo or NCCL, got tcp",
                        "shard over all ranks, or use a libtorch with Gloo");
    return make_tcp_collectives(plane);
  }
  if (backend != "nccl")
    throw ConfigError(fmt::format(
        "trainer: collectives backend: got '{}', expected auto, gloo, nccl or tcp", backend));
  return make_nccl_collectives(*store, own, size, at::Device(options.device), control);
}

std::vector<int> everyone(const launch::RankContext& rank) {
  std::vector<int> ranks(static_cast<std::size_t>(rank.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

World join_world(const launch::RankContext& rank, const WorldOptions& options) {
  World world;
  world.rank = rank;
  if (rank.world_size == 1) {
    world.control = make_local_control();
    world.collectives = make_local_collectives();
    world.make_group = [](const std::string&, const std::vector<int>&) {
      return std::shared_ptr<Collectives>(make_local_collectives());
    };
    return world;
  }
  launch::ControlOptions control;
  control.run_folder = options.run_folder;
  control.interface = options.interface;
  control.device = options.device;
  control.heartbeat_timeout = launch::Timeout(options.heartbeat_timeout);
  control.timeout = launch::Timeout(options.timeout);
  control.must_agree = options.must_agree;
  world.plane = launch::ControlPlane::join(rank, control);
  if (rank.rank == 0) log::info("ranks:\n{}", trim(world.plane->startup_table()));
  world.control = std::make_unique<PlaneControl>(world.plane, launch::Timeout(options.timeout));

  const auto to_abort = std::make_shared<AbortList>();  // shared with the plane's callback
  world.plane->on_failure([to_abort](const std::string&) { to_abort->abort(); });
  world.make_group = [plane = world.plane, control = world.control.get(), rank, options, to_abort](
                         const std::string& name, const std::vector<int>& ranks) {
    auto made = connect(plane, *control, rank, options, name, ranks);
    to_abort->add(made);
    return made;
  };
  world.collectives = world.make_group("", everyone(rank));
  return world;
}

std::unique_ptr<Strategy> make_strategy(const std::string& name, World& world,
                                        const FsdpOptions& fsdp, double bucket_cap_mb,
                                        bool sync_batchnorm) {
  const bool many = world.control->world_size() > 1;
  const auto norms = [&]() -> std::shared_ptr<NormSync> {
    if (!many || !sync_batchnorm) return nullptr;
    return std::make_shared<NormSync>(world.make_group("batch-norm", everyone(world.rank)),
                                      *world.control);
  };
  if (name == "fsdp") return make_fsdp_strategy(fsdp, world, norms());
  if (name == "auto" || name == "single" || name == "single_device") {
    if (!many) return make_single_strategy();
    if (name != "auto")
      throw ConfigError(fmt::format("trainer.strategy: got {}, but there are {} ranks", name,
                                    world.control->world_size()),
                        "use strategy: ddp");
  }
  const bool find_unused = name == "ddp_find_unused_parameters_true";
  if (name == "auto" || name == "ddp" || name == "ddp_find_unused_parameters_false" || find_unused)
    return many ? make_ddp_strategy(
                      *world.collectives, *world.control,
                      {.bucket_bytes = static_cast<std::size_t>(bucket_cap_mb * (1 << 20)),
                       .find_unused = find_unused},
                      norms())
                : make_single_strategy();
  throw ConfigError(
      fmt::format("trainer.strategy: got '{}', expected auto, single, ddp, "
                  "ddp_find_unused_parameters_true or fsdp",
                  name),
      closest_match(name, {"auto", "single", "ddp", "ddp_find_unused_parameters_true", "fsdp"})
              .empty()
          ? ""
          : "did you mean " +
                closest_match(
                    name, {"auto", "single", "ddp", "ddp_find_unused_parameters_true", "fsdp"}) +
                "?");
}

}  // namespace tutti::trainer
