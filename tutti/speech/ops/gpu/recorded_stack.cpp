#include "tutti/speech/ops/gpu/recorded_stack.h"

#include "tutti/trainer/torch_version.h"

#if defined(TUTTI_WITH_CUDA_KERNELS) && TUTTI_TORCH_AT_LEAST(2, 4)
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/speech/ops/dropout.h"
#include "tutti/speech/ops/gpu/capture.h"
#include "tutti/speech/ops/gpu/gradient_sums.h"
#include "tutti/trainer/autocast.h"
#include "tutti/trainer/out_of_memory.h"

namespace tutti::speech {

// Not in the anonymous namespace: RecordedStack::State, a name of the header, holds it.
namespace recorded_stack {

struct Recording : torch::CustomClassHolder {
  at::cuda::CUDAGraph forward, backward;
  // Known by address; see address_of.
  RecordedStack::Inputs in;
  torch::Tensor out, grad_out, grad_x;
  std::vector<torch::Tensor> grads;  // of the parameters; undefined: there is none
  torch::Tensor keys;                // of dropout
  std::int64_t num_keys = 0;
  std::vector<const void*> weights;  // where the parameters were
};

}  // namespace recorded_stack

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;
using recorded_stack::Recording;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Inputs = RecordedStack::Inputs;
using Key = std::vector<std::int64_t>;

constexpr int kMaxRecordings = 128;
constexpr std::int64_t kStale = 2000;      // calls since a recording was used: it makes room
constexpr std::size_t kMaxShapes = 10000;  // that are remembered as seen
constexpr std::int64_t kMaxKeys = 4096;

// One forward pass and its backward pass.
struct Pass : torch::CustomClassHolder {
  Pass(c10::intrusive_ptr<Recording> r, Inputs i, GradientSums& s)
      : recording(std::move(r)), inputs(std::move(i)), sums(s) {}
  c10::intrusive_ptr<Recording> recording;
  Inputs inputs;
  GradientSums& sums;
  // Gone after the backward pass, or with the autograd graph: memory may be written again.
  std::shared_ptr<const bool> under_way = std::make_shared<const bool>(true);
};

// Memory of recordings is owned by none of them, so that those of other shapes lie in the same.
torch::Tensor address_of(const torch::Tensor& x) {
  return x.defined() ? torch::from_blob(x.data_ptr(), x.sizes(), x.strides(), x.options()) : x;
}

void write_to(const torch::Tensor& to, const torch::Tensor& from) {
  if (to.defined()) to.copy_(from, /*non_blocking=*/true);
}

class Replay : public torch::autograd::Function<Replay> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x,
                               c10::intrusive_ptr<Pass> pass, at::TensorList) {
    const c10::cuda::CUDAGuard guard(x.device());
    Recording& r = *pass->recording;
    write_to(r.in.x, x);
    for (std::size_t i = 0; i < r.in.others.size(); ++i)
      write_to(r.in.others[i], pass->inputs.others[i]);
    pass->inputs = {};
    if (r.num_keys > 0) {
      // As many as the layers would draw, in their order.
      const torch::Tensor keys = torch::empty({r.num_keys}, torch::kInt64);
      for (std::int64_t i = 0; i < r.num_keys; ++i)
        keys.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(draw_dropout_key());
      write_to(r.keys.narrow(0, 0, r.num_keys), keys);
    }
    r.forward.replay();
    context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    return r.out.clone();
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto pass =
        c10::static_intrusive_pointer_cast<Pass>(context->saved_data["pass"].toCapsule());
    if (!pass->under_way)
      throw InternalError("a recorded pass was differentiated twice",
                          "set trainer.cuda_graphs: false");
    Recording& r = *pass->recording;
    const c10::cuda::CUDAGuard guard(r.out.device());
    write_to(r.grad_out, gradients[0]);
    r.backward.replay();
    variable_list result(2 + r.weights.size());  // x, the pass, the parameters
    if (context->needs_input_grad(0)) result[0] = r.grad_x.clone();
    variable_list first = pass->sums.add(r.grads);
    std::move(first.begin(), first.end(), result.begin() + 2);
    pass->under_way.reset();
    return result;
  }
};

Inputs fresh_inputs(const Inputs& like) {
  const auto fresh = [&](const torch::Tensor& x) {
    return x.defined() ? at::empty(x.sizes(), x.options().device(like.x.device())) : x;
  };
  Inputs in{fresh(like.x).requires_grad_(like.x.requires_grad()), {}};
  for (const torch::Tensor& other : like.others) in.others.push_back(fresh(other));
  return in;
}

// With everything where x is.
Inputs on_device(Inputs in) {
  for (torch::Tensor& other : in.others)
    if (other.defined() && other.device() != in.x.device())
      other = other.to(in.x.device(), /*non_blocking=*/true);
  return in;
}

// Those of the parameters, then that of x, or an undefined one.
variable_list gradients_of(const torch::Tensor& out, const torch::Tensor& x,
                           const std::vector<torch::Tensor>& parameters,
                           const torch::Tensor& grad_out) {
  const WithoutAutocast plain;
  variable_list wanted = parameters;
  if (x.requires_grad()) wanted.push_back(x);
  variable_list found = torch::autograd::grad({out}, wanted, {grad_out}, /*retain_graph=*/false,
                                              /*create_graph=*/false, /*allow_unused=*/true);
  if (!x.requires_grad()) found.emplace_back();
  return found;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::int64_t reserved_bytes(at::Device device) {
  return allocator::getDeviceStats(device.index()).reserved_bytes[0].current;
}

}  // namespace

struct RecordedStack::State {
  struct Shape {
    std::int64_t seen = 0;
    std::int64_t last_call = 0;
    c10::intrusive_ptr<Recording> recording;
  };
  std::map<Key, Shape> shapes;
  std::int64_t num_calls = 0;
  std::weak_ptr<const bool> under_way;
  GradientSums sums;

  std::optional<c10::cuda::CUDAStream> side;
  PoolId pool = {};
  bool has_pool = false;
  std::int64_t pool_bytes = 0;
  // The memory of a pool is taken in one piece, which recordings of all shapes can cut as they like.
  std::int64_t arena_bytes = 0;

  bool has_room();
  void forget();
  c10::intrusive_ptr<Recording> make(const Inputs& inputs,
                                     const std::vector<torch::Tensor>& parameters,
                                     const Layers& layers);
  void warm_up(const Inputs& inputs, const std::vector<torch::Tensor>& parameters,
               const Layers& layers);
};

void RecordedStack::State::forget() {
  shapes.clear();
  has_pool = false;
  pool_bytes = 0;
}

bool RecordedStack::State::has_room() {
  int recordings = 0;
  Shape* oldest = nullptr;
  for (auto& [key, shape] : shapes) {
    if (!shape.recording) continue;
    ++recordings;
    if (!oldest || shape.last_call < oldest->last_call) oldest = &shape;
  }
  if (recordings < kMaxRecordings) return true;
  if (num_calls - oldest->last_call < kStale) return false;
  oldest->recording.reset();
  return true;
}

// Makes what is made once for a stream: handles, workspaces, scratch memory.
void RecordedStack::State::warm_up(const Inputs& inputs,
                                   const std::vector<torch::Tensor>& parameters,
                                   const Layers& layers) {
  at::Generator generator = at::globalContext().defaultGenerator(inputs.x.device());
  const at::Tensor random = generator.get_state();  // nobody else draws meanwhile
  {
    Inputs in = on_device(inputs);
    in.x = inputs.x.detach().clone().requires_grad_(inputs.x.requires_grad());
    const torch::Tensor out = layers(in);
    gradients_of(out, in.x, parameters, torch::zeros_like(out));
  }
  generator.set_state(random);
  side->synchronize();
  allocator::emptyCache();
}

c10::intrusive_ptr<Recording> RecordedStack::State::make(
    const Inputs& inputs, const std::vector<torch::Tensor>& parameters, const Layers& layers) {
  static std::mutex one_at_a_time;  // RecordedKeys
  const std::lock_guard lock(one_at_a_time);
  const at::Device device = inputs.x.device();
  auto recording = c10::make_intrusive<Recording>();
  recording->keys = torch::empty({kMaxKeys}, at::TensorOptions(device).dtype(torch::kInt64));
  RecordedKeys keys(static_cast<const std::uint64_t*>(recording->keys.data_ptr()), kMaxKeys);
  const OtherAccumulators others(parameters);
  const WithoutCastCache no_cache;
  const torch::AutoGradMode with_gradients(true);

  const bool first = !side;
  if (first) side = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index());
  at::cuda::CUDAEvent before;
  before.record(c10::cuda::getCurrentCUDAStream(device.index()));
  before.block(*side);
  const c10::cuda::CUDAStreamGuard on_side(*side);
  allocator::emptyCache();  // what the first run of this shape has left
  if (first) warm_up(inputs, parameters, layers);
  keys.restart();

  const bool fresh = !has_pool;
  if (fresh) pool = at::cuda::graph_pool_handle();
  has_pool = true;
  const std::int64_t bytes_before = reserved_bytes(device);
  Inputs in;
  torch::Tensor out, grad_out;
  variable_list grads;
  capture(recording->forward, pool, [&] {
    if (fresh && arena_bytes > 0)
      at::empty({arena_bytes}, at::TensorOptions(device).dtype(torch::kUInt8));
    in = fresh_inputs(inputs);
    out = layers(in);
  });
  recording->num_keys = keys.num_places();
  capture(recording->backward, pool, [&] {
    grad_out = at::empty(out.sizes(), out.options());
    grads = gradients_of(out, in.x, parameters, grad_out);
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& grad : grads)
      if (grad.defined()) grad = grad.contiguous();
  });
  pool_bytes += std::max<std::int64_t>(reserved_bytes(device) - bytes_before, 0);
  recording->in.x = address_of(in.x.detach());
  for (const torch::Tensor& other : in.others) recording->in.others.push_back(address_of(other));
  recording->out = address_of(out.detach());
  recording->grad_out = address_of(grad_out);
  recording->grad_x = address_of(grads.back());
  grads.pop_back();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    recording->weights.push_back(parameters[i].data_ptr());
    recording->grads.push_back(address_of(grads[i]));
  }
  if (arena_bytes == 0) arena_bytes = pool_bytes;
  return recording;
}

RecordedStack::RecordedStack() : state_(std::make_unique<State>()) {}
RecordedStack::~RecordedStack() = default;

void RecordedStack::set_on(bool on) {
  on_ = on;
  if (on) return;
  state_->forget();
  state_->sums = {};
}

torch::Tensor RecordedStack::run(const Inputs& inputs, const std::vector<torch::Tensor>& parameters,
                                 const Layers& layers) {
  State& state = *state_;
  const torch::Tensor& x = inputs.x;
  const auto trainable = [&](const torch::Tensor& p) {
    return p.requires_grad() && p.is_contiguous() && p.device() == x.device() &&
           p.scalar_type() == parameters[0].scalar_type();
  };
  if (!on_ || !x.is_cuda() || !torch::GradMode::is_enabled() || parameters.empty() ||
      !std::all_of(parameters.begin(), parameters.end(), trainable) || !state.under_way.expired())
    return layers(on_device(inputs));

  const c10::cuda::CUDAGuard guard(x.device());
  Key key{static_cast<std::int64_t>(x.scalar_type()),
          trainer::autocast_on(at::kCUDA)
              ? static_cast<std::int64_t>(trainer::autocast_type(at::kCUDA))
              : -1};
  const auto add_to_key = [&](const torch::Tensor& t) {
    key.push_back(t.defined() ? static_cast<std::int64_t>(t.scalar_type()) : -1);
    if (t.defined()) key.insert(key.end(), t.sizes().begin(), t.sizes().end());
  };
  add_to_key(x);
  key.push_back(x.requires_grad() ? 1 : 0);
  for (const torch::Tensor& other : inputs.others) add_to_key(other);
  if (state.shapes.size() > kMaxShapes) state.forget();
  State::Shape* shape = &state.shapes[key];
  shape->last_call = ++state.num_calls;
  if (shape->recording)
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (parameters[i].data_ptr() != shape->recording->weights[i]) {  // somebody moved them
        state.forget();
        return layers(on_device(inputs));
      }
  if (!shape->recording) {
    if (shape->seen++ == 0 || !state.has_room()) return layers(on_device(inputs));
    try {
      shape->recording = state.make(inputs, parameters, layers);
    } catch (const std::exception& error) {
      log::info("cuda_graphs: off from now on: {}",
                trainer::is_out_of_memory(error)
                    ? "there is not enough memory for a recording"
                    : "this model cannot be recorded: " + first_line(error.what()));
      set_on(false);
      allocator::emptyCache();
      return layers(on_device(inputs));
    }
    // Shapes that come later and need more would leave memory that nobody can use: from the start
    // again, with a larger piece.
    if (state.pool_bytes > state.arena_bytes + state.arena_bytes / 3) {
      state.forget();
      state.arena_bytes += state.arena_bytes / 4;
      allocator::emptyCache();
      return layers(on_device(inputs));
    }
  }
  state.sums.make_for(parameters);
  const auto pass = c10::make_intrusive<Pass>(shape->recording, inputs, state.sums);
  state.under_way = pass->under_way;
  ++num_replays_;
  return Replay::apply(x, pass, at::TensorList(parameters));
}

}  // namespace tutti::speech

#else

namespace tutti::speech {

struct RecordedStack::State {};
RecordedStack::RecordedStack() = default;
RecordedStack::~RecordedStack() = default;
void RecordedStack::set_on(bool) {}
torch::Tensor RecordedStack::run(const Inputs& inputs, const std::vector<torch::Tensor>&,
                                 const Layers& layers) {
  return layers(inputs);
}

}  // namespace tutti::speech
#endif
