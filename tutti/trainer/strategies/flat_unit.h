// One unit of a sharded model: its parameters laid end to end, cut into W equal shards.
//
// The parameters stay the tensors the model knows, as views into one flat buffer. Between uses the
// buffer's memory is given back while the storage object stays, so that whatever autograd saved of
// the weights is valid again when the memory comes back. Rank r keeps elements r*S .. (r+1)*S in
// the model's own type (and, with offload, in host memory): the shard is what optimizers update.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/trainer/collectives/collectives.h"
#include "tutti/trainer/strategies/side_stream.h"
#include "tutti/trainer/strategies/strategy.h"
#include "tutti/trainer/strategies/units.h"

namespace tutti::trainer {

// Counts what the strategy holds.
class MemoryMeter {
 public:
  explicit MemoryMeter(ShardMemory& memory) : memory_(memory) {}
  void shards(std::int64_t bytes) { memory_.shards += bytes, note(); }
  void gathered(std::int64_t bytes) { memory_.gathered += bytes, note(); }
  void gradients(std::int64_t bytes) { memory_.gradients += bytes, note(); }

 private:
  void note();
  ShardMemory& memory_;
};

struct UnitHome {
  int rank = 0;  // among those that share the unit
  int world_size = 1;
  at::Device device = at::kCPU;
  at::ScalarType gather_type = at::kFloat;  // of the whole unit, and of computation
  at::ScalarType reduce_type = at::kFloat;  // of summed gradients
  bool offload = false;                     // the shard lives in host memory
};

class FlatUnit {
 public:
  FlatUnit(UnitSpec spec, const UnitHome& home, MemoryMeter& meter);
  FlatUnit(const FlatUnit&) = delete;
  FlatUnit& operator=(const FlatUnit&) = delete;

  // Makes the shard from rank 0's values and turns the parameters into views of freed memory.
  void shard(Collectives& world, Control& control);

  const std::string& name() const { return spec_.name; }
  const NamedTensors& parameters() const { return spec_.parameters; }
  bool resident() const { return spec_.resident; }
  std::size_t optimizer() const { return spec_.optimizer; }
  bool trainable() const { return spec_.parameters[0].second.requires_grad(); }
  c10::StorageImpl* storage() const { return full_.storage().unsafeGetStorageImpl(); }
  // This rank's part of each parameter; the tensors are views into the shard.
  const std::vector<Placement>& parts() const { return parts_; }

  // The whole unit: freed -> in flight -> ready -> freed.
  bool freed() const { return state_ == State::kFreed; }
  bool ready() const { return state_ == State::kReady; }
  void start_gather(Collectives& collectives, SideStream& stream);
  void finish_gather(Control& control, SideStream& stream);
  void release();  // REQUIRES: not in flight

  // Gradients of one backward pass.
  void start_backward();
  // Moves parameter `index`'s gradient into the flat one; true when it was the last of the unit.
  bool take_gradient(std::size_t index);
  bool has_gradient(std::size_t index) const { return arrived_[index] != 0; }
  bool has_all_gradients() const { return pending_ == 0; }
  at::Tensor
  take_flat_gradient();   // whole, summed over nothing yet; drops the unit's own reference
  void drop_gradients();  // what a broken backward pass left behind
  at::Tensor empty_reduced() const;
  std::int64_t flat_gradient_bytes() const;
  at::Tensor zero_gradient() const;  // a contribution of nothing

  // Gradients of one optimizer window, this rank's part. With offload they travel to the host on
  // `stream`, and are waited for in hand_over().
  void add_reduced(const at::Tensor& reduced, SideStream& stream);
  void hand_over();  // becomes the gradient of the parts
  void forget_window();

 private:
  enum class State { kFreed, kInFlight, kReady };
  void allocate();
  void add_arrived();
  at::TensorOptions flat_options(at::ScalarType type) const;

  UnitSpec spec_;
  UnitHome home_;
  MemoryMeter& meter_;
  std::vector<std::int64_t> offsets_;  // by parameter
  std::int64_t numel_ = 0;
  std::int64_t shard_numel_ = 0;
  at::Tensor full_;
  at::Tensor shard_;
  std::vector<Placement> parts_;

  State state_ = State::kFreed;
  WorkPtr work_;
  Mark mark_;
  at::Tensor sent_;  // alive while the transport reads it

  at::Tensor flat_gradient_;
  std::vector<char> arrived_;
  std::size_t pending_ = 0;
  at::Tensor shard_gradient_;
  std::int64_t window_bytes_ = 0;
  // With offload: a gradient on its way to the host.
  struct Arriving {
    at::Tensor from;  // alive while it is copied
    at::Tensor to;
    Mark mark;
  };
  std::optional<Arriving> arriving_;
};

}  // namespace tutti::trainer
