#include "tutti/trainer/strategies/flat_unit.h"

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>

namespace tutti::trainer {
namespace {

constexpr std::int64_t kAlignment = 16;  // elements

// Transports move bytes: they need not know bfloat16.
at::Tensor as_bytes(const at::Tensor& flat) { return flat.view(at::kByte); }

std::int64_t bytes_of_tensor(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
}

}  // namespace

void MemoryMeter::note() {
  memory_.gathered_peak = std::max(memory_.gathered_peak, memory_.gathered);
  memory_.gradients_peak = std::max(memory_.gradients_peak, memory_.gradients);
  memory_.peak = std::max(memory_.peak, memory_.shards + memory_.gathered + memory_.gradients);
}

FlatUnit::FlatUnit(UnitSpec spec, const UnitHome& home, MemoryMeter& meter)
    : spec_(std::move(spec)), home_(home), meter_(meter), arrived_(spec_.parameters.size(), 0) {
  for (const auto& [name, parameter] : spec_.parameters) {
    // Matrix kernels want aligned weights.
    numel_ = (numel_ + kAlignment - 1) / kAlignment * kAlignment;
    offsets_.push_back(numel_);
    numel_ += parameter.numel();
  }
  shard_numel_ = (numel_ + home_.world_size - 1) / home_.world_size;
}

at::TensorOptions FlatUnit::flat_options(at::ScalarType type) const {
  return at::TensorOptions().dtype(type).device(home_.device);
}

void FlatUnit::shard(Collectives& world, Control& control) {
  torch::NoGradGuard no_grad;
  const at::ScalarType own_type = spec_.parameters[0].second.scalar_type();
  at::Tensor whole = at::zeros({shard_numel_ * home_.world_size}, flat_options(own_type));
  for (std::size_t i = 0; i < offsets_.size(); ++i) {
    const at::Tensor& parameter = spec_.parameters[i].second;
    whole.narrow(0, offsets_[i], parameter.numel()).copy_(parameter.detach().reshape({-1}));
  }
  wait(*world.broadcast(as_bytes(whole), 0), control, "sending rank 0's weights");
  const at::Tensor mine = whole.narrow(0, home_.rank * shard_numel_, shard_numel_);
  shard_ = home_.offload && !home_.device.is_cpu() ? mine.to(at::kCPU).pin_memory() : mine.clone();
  whole.reset();
  meter_.shards(bytes_of_tensor(shard_));

  full_ = at::empty({shard_numel_ * home_.world_size}, flat_options(home_.gather_type));
  for (std::size_t i = 0; i < offsets_.size(); ++i) {
    at::Tensor& parameter = spec_.parameters[i].second;
    Placement part;
    part.shape = parameter.sizes().vec();
    const std::int64_t begin =
        std::clamp<std::int64_t>(home_.rank * shard_numel_ - offsets_[i], 0, parameter.numel());
    const std::int64_t end = std::clamp<std::int64_t>((home_.rank + 1) * shard_numel_ - offsets_[i],
                                                      0, parameter.numel());
    part.start = begin;
    part.part = end > begin
                    ? shard_.narrow(0, offsets_[i] + begin - home_.rank * shard_numel_, end - begin)
                    : at::empty({0}, shard_.options());
    parts_.push_back(std::move(part));
    // The same tensor object with other memory: modules and saved references stay valid.
    parameter.set_data(full_.narrow(0, offsets_[i], parameter.numel()).view(parameter.sizes()));
  }
  meter_.gathered(bytes_of_tensor(full_));
  state_ = State::kReady;
  release();
}

void FlatUnit::allocate() {
  c10::StorageImpl* memory = storage();
  const auto num_bytes = static_cast<std::size_t>(bytes_of_tensor(full_));
  const c10::DeviceGuard guard(home_.device);  // the allocator takes the current one
  memory->set_data_ptr_noswap(memory->allocator()->allocate(num_bytes));
  memory->set_nbytes(num_bytes);
  meter_.gathered(bytes_of_tensor(full_));
}

void FlatUnit::start_gather(Collectives& collectives, SideStream& stream) {
  RECORD_USER_SCOPE("fsdp.gather");
  torch::NoGradGuard no_grad;
  // Allocated for the computing stream, which is the one that will free it.
  if (state_ == State::kFreed) allocate();
  state_ = State::kReady;  // if there is no memory for what is sent: allocated, so that it is freed
  try {
    mark_ = stream.run([&] {
      sent_ = shard_;
      if (sent_.device() != home_.device) sent_ = sent_.to(home_.device, /*non_blocking=*/true);
      if (sent_.scalar_type() != home_.gather_type) sent_ = sent_.to(home_.gather_type);
      work_ = collectives.all_gather(as_bytes(full_), as_bytes(sent_));
    });
  } catch (...) {  // whatever it was, the unit must not look gathered
    release();
    throw;
  }
  state_ = State::kInFlight;
}

void FlatUnit::finish_gather(Control& control, SideStream& stream) {
  if (state_ != State::kInFlight) return;
  wait(*work_, control, "gathering " + spec_.name);
  stream.wait(mark_);
  work_.reset();
  mark_.reset();
  sent_.reset();
  state_ = State::kReady;
}

void FlatUnit::release() {
  if (state_ == State::kFreed) return;
  c10::StorageImpl* memory = storage();
  memory->set_data_ptr_noswap(at::DataPtr(nullptr, home_.device));
  memory->set_nbytes(0);
  meter_.gathered(-bytes_of_tensor(full_));
  state_ = State::kFreed;
}

void FlatUnit::start_backward() {
  std::fill(arrived_.begin(), arrived_.end(), 0);
  pending_ = arrived_.size();
}

bool FlatUnit::take_gradient(std::size_t index) {
  torch::NoGradGuard no_grad;
  if (!flat_gradient_.defined()) {
    flat_gradient_ = zero_gradient();  // the gaps between parameters are summed as well
    meter_.gradients(flat_gradient_bytes());
  }
  const at::Tensor& parameter = spec_.parameters[index].second;
  at::Tensor& gradient = parameter.mutable_grad();
  flat_gradient_.narrow(0, offsets_[index], parameter.numel()).copy_(gradient.reshape({-1}));
  gradient.reset();
  arrived_[index] = 1;
  return --pending_ == 0;
}

at::Tensor FlatUnit::take_flat_gradient() { return std::exchange(flat_gradient_, at::Tensor()); }

void FlatUnit::drop_gradients() {
  for (const auto& [name, parameter] : spec_.parameters) parameter.mutable_grad().reset();
  if (flat_gradient_.defined()) meter_.gradients(-flat_gradient_bytes());
  flat_gradient_.reset();
}

at::Tensor FlatUnit::empty_reduced() const {
  return at::empty({shard_numel_}, flat_options(home_.reduce_type));
}

at::Tensor FlatUnit::zero_gradient() const {
  return at::zeros({shard_numel_ * home_.world_size}, flat_options(home_.reduce_type));
}

std::int64_t FlatUnit::flat_gradient_bytes() const {
  return shard_numel_ * home_.world_size *
         static_cast<std::int64_t>(c10::elementSize(home_.reduce_type));
}

void FlatUnit::add_reduced(const at::Tensor& reduced, SideStream& stream) {
  torch::NoGradGuard no_grad;
  if (window_bytes_ == 0) {
    window_bytes_ = bytes_of_tensor(shard_);
    meter_.gradients(window_bytes_);
  }
  const at::Tensor own = reduced.to(shard_.scalar_type());
  if (own.device() == shard_.device()) {
    if (shard_gradient_.defined())
      shard_gradient_.add_(own);
    else
      shard_gradient_ = own;
    return;
  }
  add_arrived();  // of the micro-batch before
  Arriving next{.from = own, .to = at::empty_like(shard_, at::TensorOptions().pinned_memory(true))};
  next.mark = stream.run([&] { next.to.copy_(next.from, /*non_blocking=*/true); });
  arriving_ = std::move(next);
}

// Waits for it.
void FlatUnit::add_arrived() {
  if (!arriving_) return;
  torch::NoGradGuard no_grad;
  SideStream::synchronize(arriving_->mark);
  if (shard_gradient_.defined())
    shard_gradient_.add_(arriving_->to);
  else
    shard_gradient_ = arriving_->to;
  arriving_.reset();
}

void FlatUnit::hand_over() {
  add_arrived();
  if (!shard_gradient_.defined()) return;
  const std::int64_t shard_begin = home_.rank * shard_numel_;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const at::Tensor& part = parts_[i].part;
    if (part.numel() > 0)
      part.mutable_grad() =
          shard_gradient_.narrow(0, offsets_[i] + parts_[i].start - shard_begin, part.numel());
  }
  shard_gradient_.reset();  // the parts keep it until the optimizer's zero_grad()
}

void FlatUnit::forget_window() {
  if (arriving_) SideStream::synchronize(arriving_->mark);  // before its memory goes
  arriving_.reset();
  shard_gradient_.reset();
  meter_.gradients(-std::exchange(window_bytes_, 0));
}

}  // namespace tutti::trainer
