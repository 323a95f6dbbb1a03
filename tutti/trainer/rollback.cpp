// Undoing what a window did besides gradients. A step that is dropped must leave nothing behind (one
// NaN in a running mean is NaN for ever), and one that is left because of a signal is computed again
// after the resume, with the same random numbers.
#include <ATen/Context.h>
#include <torch/torch.h>

#include <cstring>
#include <map>

#include "tutti/core/error.h"
#include "tutti/trainer/run.h"

namespace tutti::trainer {
namespace {

std::string generator_state(at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard lock(generator.mutex());
  const at::Tensor state = generator.get_state().contiguous();
  return {static_cast<const char*>(state.data_ptr()), state.nbytes()};
}

void set_generator_state(at::Device device, const std::string& bytes) {
  at::Tensor state = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  std::memcpy(state.data_ptr(), bytes.data(), bytes.size());
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

// The size of the CPU's state, that state, the GPU's.
std::string random_state(Run& run) {
  std::string state = generator_state(at::kCPU);
  const auto cpu_bytes = static_cast<std::uint32_t>(state.size());
  state.insert(0, reinterpret_cast<const char*>(&cpu_bytes), sizeof(cpu_bytes));
  if (run.device.is_cuda()) state += generator_state(run.device);
  return state;
}

void restore_random_state(Run& run, const std::string& state) {
  std::uint32_t cpu_bytes = 0;
  if (state.size() >= sizeof(cpu_bytes)) std::memcpy(&cpu_bytes, state.data(), sizeof(cpu_bytes));
  if (state.size() < sizeof(cpu_bytes) || cpu_bytes > state.size() - sizeof(cpu_bytes))
    throw DataError("the checkpoint's random state is damaged");
  set_generator_state(at::kCPU, state.substr(sizeof(cpu_bytes), cpu_bytes));
  const std::string rest = state.substr(sizeof(cpu_bytes) + cpu_bytes);
  if (run.device.is_cuda() && !rest.empty()) set_generator_state(run.device, rest);
}

// Version counters do not tell which buffers a window changes (batch norm writes past them), so all
// are copied: they are small beside weights.
RollbackPoint rollback_point(Run& run) {
  RollbackPoint point{.buffers = {}, .random = random_state(run)};
  for (const auto& [name, buffer] : unique_parameters(run.in.model.named_buffers()).tensors)
    point.buffers.emplace_back(name, buffer.detach().clone());
  return point;
}

void restore_buffers(Run& run, const RollbackPoint& point) {
  torch::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> now;  // by name: a model may have replaced the tensor
  for (const auto& [name, buffer] : run.in.model.named_buffers()) now[name] = buffer;
  for (const auto& [name, value] : point.buffers)
    if (const auto found = now.find(name); found != now.end()) found->second.detach().copy_(value);
}

}  // namespace tutti::trainer
