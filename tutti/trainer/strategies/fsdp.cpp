#include "tutti/trainer/strategies/fsdp.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/trainer/strategies/gatherer.h"
#include "tutti/trainer/strategies/gradient_shards.h"
#include "tutti/trainer/strategies/norm_sync.h"
#include "tutti/trainer/world.h"

namespace tutti::trainer {
namespace {

// Who exchanges what. Gathers and sums have a group each, so that a rank may be early with one and
// late with the other without breaking the order of either.
struct FsdpGroups {
  std::shared_ptr<Collectives> world;
  std::shared_ptr<Collectives> gathers;   // ranks that share one copy of the model
  std::shared_ptr<Collectives> sums;      // the same ranks
  std::shared_ptr<Collectives> replicas;  // hybrid: ranks with the same shards, one per node
};

FsdpGroups make_groups(Sharding sharding, World& world) {
  const int size = world.control->world_size();
  const int rank = world.control->rank();
  const auto range = [](int first, int step, int count) {
    std::vector<int> ranks;
    for (int i = 0; i < count; ++i) ranks.push_back(first + i * step);
    return ranks;
  };
  FsdpGroups groups;
  groups.world = world.collectives;
  if (sharding != Sharding::kHybrid) {
    groups.gathers = world.make_group("fsdp-gathers", range(0, 1, size));
    groups.sums = world.make_group("fsdp-sums", range(0, 1, size));
    return groups;
  }
  const int local = world.rank.local_world_size;
  if (local < 1 || size % local != 0)
    throw ConfigError(fmt::format("sharding_strategy: hybrid_shard needs as many ranks on every "
                                  "node, but {} ranks do not divide by {}",
                                  size, local),
                      "use sharding_strategy: full_shard");
  const int node = rank / local;
  const auto in_node = range(node * local, 1, local);
  groups.gathers = world.make_group(fmt::format("fsdp-gathers-{}", node), in_node);
  groups.sums = world.make_group(fmt::format("fsdp-sums-{}", node), in_node);
  groups.replicas = world.make_group(fmt::format("fsdp-replicas-{}", rank % local),
                                     range(rank % local, local, size / local));
  return groups;
}

class FsdpStrategy final : public Strategy {
 public:
  FsdpStrategy(FsdpOptions options, FsdpGroups groups, Control& control,
               std::shared_ptr<NormSync> norms)
      : Strategy("fsdp", /*moves_model=*/true, /*lockstep=*/true),
        options_(std::move(options)),
        groups_(std::move(groups)),
        control_(control),
        norms_(std::move(norms)),
        meter_(memory_) {}

  std::vector<NamedTensors> setup(TrainableModel& model, const std::vector<NamedTensors>& groups,
                                  at::Device device) override {
    check_same_model(model, control_);
    device_ = device;
    if (norms_) norms_->attach(model, device);
    UnitCut cut = options_.units;
    for (std::size_t group = 0; group < groups.size(); ++group)
      for (const auto& [name, parameter] : groups[group]) cut.optimizer_of[name] = group;
    cut.vectors_apart = options_.gather_type.has_value();
    for (UnitSpec& spec : cut_into_units(model, cut)) add_unit(std::move(spec));
    for (const auto& [name, buffer] : unique_parameters(model.named_buffers()).tensors)
      share_buffer(buffer);
    std::vector<FlatUnit*> all, trainable;
    for (const auto& unit : units_) {
      all.push_back(unit.get());
      if (unit->trainable()) trainable.push_back(unit.get());
    }
    gatherer_ = std::make_unique<Gatherer>(
        all, *groups_.gathers, control_, device,
        GatherOptions{.in_flight = options_.gathers_in_flight,
                      .keep_all = options_.sharding == Sharding::kGradOp});
    gradients_ = std::make_unique<GradientShards>(trainable, *groups_.sums, groups_.replicas.get(),
                                                  control_, meter_, device);
    if (control_.rank() == 0)
      log::info("fsdp: {} units, shards in {}, {:.1f} MB of weights on this rank", units_.size(),
                groups_.gathers->world_size(), static_cast<double>(memory_.shards) / 1e6);
    std::vector<NamedTensors> parts;
    for (const NamedTensors& group : groups) parts.push_back(parts_of(group));
    return parts;
  }

  void begin(const Pass& pass) override {
    if (norms_) norms_->begin(pass.training);
    gatherer_->begin(pass.training);
    if (pass.training) gradients_->begin(pass);
    training_ = pass.training;
    watch_ = std::make_unique<WatchScope>(gatherer_.get());
  }

  void settle(bool complete) override {
    watch_.reset();
    // A rank that still computes needs this one's units and statistics in turns.
    std::future<void> statistics;
    if (norms_) statistics = norms_->settle_beside();
    if (training_) gradients_->settle(complete);
    gatherer_->settle();
    if (training_) gradients_->drain();
    if (statistics.valid()) statistics.get();
  }

  void finish(std::size_t group, bool) override { gradients_->finish(group); }

  at::Tensor squared_norm(const std::vector<at::Tensor>& gradients) override {
    const auto wide = master_type_ == at::kDouble ? at::kDouble : at::kFloat;
    at::Tensor sum = gradients.empty() ? at::zeros({1}, at::TensorOptions().dtype(wide))
                                       : local_squared_norm(gradients).reshape({1}).to(wide);
    const at::Device home = sum.device();
    sum = sum.to(device_);
    wait(*groups_.sums->all_reduce(sum), control_, "summing the gradient norm");
    return sum.to(home).reshape({});
  }

  const Placements* placements() const override { return &placements_; }

 private:
  void add_unit(UnitSpec spec) {
    const at::Tensor& first = spec.parameters[0].second;
    const at::ScalarType own = first.scalar_type();
    if (first.requires_grad()) master_type_ = own;
    const bool low = options_.gather_type && spec.name != "vectors" && own == at::kFloat;
    UnitHome home{
        .rank = groups_.gathers->rank(),
        .world_size = groups_.gathers->world_size(),
        .device = device_,
        .gather_type = low ? *options_.gather_type : own,
        .reduce_type = options_.reduce_type && own == at::kFloat ? *options_.reduce_type : own,
        .offload = options_.cpu_offload};
    units_.push_back(std::make_unique<FlatUnit>(std::move(spec), home, meter_));
    FlatUnit& unit = *units_.back();
    unit.shard(*groups_.world, control_);
    for (std::size_t i = 0; i < unit.parameters().size(); ++i)
      placements_[unit.parameters()[i].first] = unit.parts()[i];
  }

  void share_buffer(at::Tensor buffer) {
    torch::NoGradGuard no_grad;
    if (buffer.numel() == 0) return;
    at::Tensor value = buffer.detach().to(device_).contiguous();
    wait(*groups_.world->broadcast(value, 0), control_, "sending rank 0's buffers");
    buffer.set_data(value);
  }

  NamedTensors parts_of(const NamedTensors& group) const {
    NamedTensors out;
    for (const auto& [name, parameter] : group) {
      const auto found = placements_.find(name);
      if (found != placements_.end() && found->second.part.numel() > 0)
        out.emplace_back(name, found->second.part);
    }
    return out;
  }

  FsdpOptions options_;
  FsdpGroups groups_;
  Control& control_;
  std::shared_ptr<NormSync> norms_;  // shared: callers know the name of the type only
  MemoryMeter meter_;
  at::Device device_ = at::kCPU;
  at::ScalarType master_type_ = at::kFloat;
  std::vector<std::unique_ptr<FlatUnit>> units_;
  Placements placements_;
  std::unique_ptr<Gatherer> gatherer_;
  std::unique_ptr<GradientShards> gradients_;
  std::unique_ptr<WatchScope> watch_;
  bool training_ = false;
};

}  // namespace

std::unique_ptr<Strategy> make_fsdp_strategy(const FsdpOptions& options, World& world,
                                             std::shared_ptr<NormSync> norms) {
  return std::make_unique<FsdpStrategy>(options, make_groups(options.sharding, world),
                                        *world.control, std::move(norms));
}

}  // namespace tutti::trainer
