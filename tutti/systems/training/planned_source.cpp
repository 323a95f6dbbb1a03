#include "tutti/systems/training/planned_source.h"

#include <torch/torch.h>

#include <algorithm>

#include "tutti/core/error.h"

namespace tutti::systems {
namespace {

torch::ScalarType scalar_type(data::DType dtype) {
  switch (dtype) {
    case data::DType::kUint8:
      return torch::kUInt8;
    case data::DType::kInt16:
      return torch::kInt16;
    case data::DType::kInt32:
      return torch::kInt32;
    case data::DType::kInt64:
      return torch::kInt64;
    case data::DType::kFloat32:
      return torch::kFloat32;
    case data::DType::kFloat64:
      return torch::kFloat64;
  }
  throw InternalError("unknown element type");
}

class PlannedStream final : public trainer::BatchStream {
 public:
  PlannedStream(const PlannedSourceInputs& inputs, data::EpochPlan plan,
                data::PlanPosition position)
      : sample_rate_(inputs.sample_rate),
        loader_(inputs.loader, inputs.dataset, inputs.prepare, std::move(plan), inputs.rank,
                position) {}
  std::optional<trainer::Batch> next() override {
    auto batch = loader_.next();
    if (!batch) return std::nullopt;
    return to_trainer_batch(std::move(*batch), sample_rate_);
  }

 private:
  int sample_rate_;
  data::Loader loader_;
};

class PlannedSource final : public trainer::DataSource {
 public:
  explicit PlannedSource(PlannedSourceInputs inputs) : inputs_(std::move(inputs)) {}

  std::unique_ptr<trainer::BatchStream> open(const trainer::Position& position) override {
    return std::make_unique<PlannedStream>(
        inputs_, plan_at(position),
        data::PlanPosition{static_cast<std::uint64_t>(position.epoch),
                           static_cast<std::uint64_t>(position.batch)});
  }

  std::optional<std::int64_t> num_batches(std::int64_t epoch) const override {
    return static_cast<std::int64_t>(plan_of(epoch).num_groups());
  }
  std::optional<std::int64_t> batches_left(const trainer::Position& position) const override {
    const auto groups = static_cast<std::int64_t>(plan_at(position).num_groups());
    return std::max<std::int64_t>(0, groups - position.batch);
  }
  std::uint64_t first_plan_hash(const trainer::Position& position) const override {
    if (position.before.empty()) return plan_hash(position.epoch);
    return first_plan(position).hash();
  }
  std::uint64_t plan_hash(std::int64_t epoch) const override {
    plan_of(epoch);
    return hash_;
  }

 private:
  int world() const { return inputs_.plan->settings().world; }

  // The loop asks for the hash at every step; a plan is made once per epoch.
  const data::EpochPlan& plan_of(std::int64_t epoch) const {
    if (epoch != epoch_) {
      current_ = inputs_.plan->epoch(static_cast<std::uint64_t>(epoch));
      hash_ = current_.hash();
      epoch_ = epoch;
    }
    return current_;
  }

  // The plan of the ranks with which the epoch began.
  data::EpochPlan first_plan(const trainer::Position& position) const {
    data::PlanSettings settings = inputs_.plan->settings();
    settings.world = position.before.front().world_size;
    if (settings.sharding) settings.sharding->dist_world_size = settings.world;
    return data::BatchPlan(settings, inputs_.dataset)
        .epoch(static_cast<std::uint64_t>(position.epoch));
  }

  // What ranks of other numbers left of an epoch, dealt out over ours.
  data::EpochPlan plan_at(const trainer::Position& position) const {
    if (position.before.empty()) return plan_of(position.epoch);
    data::EpochPlan plan = first_plan(position);
    for (std::size_t i = 0; i < position.before.size(); ++i) {
      const int next = i + 1 < position.before.size() ? position.before[i + 1].world_size : world();
      plan = data::deal_again(plan, static_cast<std::uint64_t>(position.before[i].batches), next,
                              inputs_.plan->settings().global_batches);
    }
    return plan;
  }

  PlannedSourceInputs inputs_;
  // Touched only by the loop thread.
  mutable std::int64_t epoch_ = -1;
  mutable data::EpochPlan current_;
  mutable std::uint64_t hash_ = 0;
};

}  // namespace

trainer::Batch to_trainer_batch(data::Batch batch, int sample_rate) {
  trainer::Batch out;
  out.utt_ids = std::move(batch.uids);
  for (auto& [name, array] : batch.arrays)
    out.tensors[name] = torch::from_blob(
        array.bytes.get(), array.shape, [keep = array.bytes](void*) {},
        torch::TensorOptions(scalar_type(array.dtype)));
  const auto lengths = batch.arrays.find("speech_lengths");
  if (sample_rate > 0 && lengths != batch.arrays.end()) {
    const auto* samples = lengths->second.data<std::int64_t>();
    for (std::int64_t i = 0; i < lengths->second.size(); ++i)
      out.audio_seconds += static_cast<double>(samples[i]) / sample_rate;
  }
  return out;
}

std::unique_ptr<trainer::DataSource> make_planned_source(PlannedSourceInputs inputs) {
  return std::make_unique<PlannedSource>(std::move(inputs));
}

}  // namespace tutti::systems
