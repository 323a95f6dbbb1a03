#include "tutti/trainer/strategies/reducer.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <algorithm>
#include <mutex>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/trainer/strategies/strategy.h"
#include "tutti/trainer/torch_version.h"

namespace tutti::trainer {

struct Bucket {
  std::vector<std::size_t> parameters;
  std::vector<std::int64_t> offsets;  // by position in `parameters`
  at::Tensor flat;
  std::size_t pending = 0;  // parameters still without gradient in this window
  WorkPtr work;
};

class Reducer::State {
 public:
  State(NamedTensors parameters, Collectives& collectives, Control& control, ReducerOptions options)
      : parameters_(std::move(parameters)),
        collectives_(collectives),
        control_(control),
        options_(options),
        place_(parameters_.size()),
        ready_(parameters_.size(), 0) {
    std::vector<std::size_t> order(parameters_.size());
    // Backward reaches the last registered parameters first.
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = order.size() - 1 - i;
    build_buckets(order);
  }

  void arm() {
    std::lock_guard lock(mutex_);
    arm_locked();
  }

  void arm_locked() {
    for (Bucket& bucket : buckets_) {
      bucket.pending = bucket.parameters.size();
      bucket.work.reset();
    }
    std::fill(ready_.begin(), ready_.end(), 0);
    arrival_.clear();
    next_to_launch_ = 0;
    armed_ = true;
  }

  // Called by autograd right after `index`'s gradient was accumulated.
  void on_gradient(std::size_t index) {
    std::lock_guard lock(mutex_);
    if (!armed_) return;  // an inner micro-batch, or another optimizer's backward
    if (ready_[index])
      throw InternalError(fmt::format("parameter '{}' got its gradient twice in one backward pass",
                                      parameters_[index].first),
                          "do not call backward inside a hook over shared parameters");
    mark_ready(index);
  }

  void finish(bool complete) {
    std::vector<std::size_t> unused;
    {
      std::lock_guard lock(mutex_);
      if (!armed_) arm_locked();  // no backward here, but the others count on this rank
      std::vector<std::size_t> late;
      for (std::size_t i = 0; i < ready_.size(); ++i) {
        if (ready_[i]) continue;
        late.push_back(i);
        // An earlier micro-batch of the window may have used what the last one did not.
        if (!parameters_[i].second.grad().defined()) unused.push_back(i);
      }
      if (complete && !unused.empty() && !options_.find_unused) {
        armed_ = false;
        throw unused_error(unused);
      }
      for (const std::size_t index : late) mark_ready(index);
      armed_ = false;
    }
    for (Bucket& bucket : buckets_) wait(*bucket.work, control_, "summing gradients");
    if (options_.find_unused)
      clear_globally_unused(unused);
    else if (!rebuilt_)
      rebuild_buckets(complete);
  }

  std::vector<std::vector<std::size_t>> buckets() const {
    std::vector<std::vector<std::size_t>> out;
    for (const Bucket& bucket : buckets_) out.push_back(bucket.parameters);
    return out;
  }

  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators;  // weak in the tensor itself

 private:
  void build_buckets(const std::vector<std::size_t>& order) {
    buckets_.clear();
    for (const std::size_t index : order) {
      const at::Tensor& p = parameters_[index].second;
      // A bucket holds one type on one device; gradients of another kind start a new bucket.
      const std::size_t limit =
          buckets_.size() <= 1 ? options_.first_bucket_bytes : options_.bucket_bytes;
      const bool fits = !buckets_.empty() && used_bytes_ < limit &&
                        same_kind(parameters_[buckets_.back().parameters[0]].second, p);
      if (!fits) {
        buckets_.emplace_back();
        used_bytes_ = 0;
      }
      buckets_.back().parameters.push_back(index);
      used_bytes_ += static_cast<std::size_t>(p.numel()) * p.element_size();
    }
    for (std::size_t b = 0; b < buckets_.size(); ++b) allocate(b);
  }

  static bool same_kind(const at::Tensor& a, const at::Tensor& b) {
    return a.scalar_type() == b.scalar_type() && a.device() == b.device();
  }

  void allocate(std::size_t b) {
    Bucket& bucket = buckets_[b];
    std::int64_t total = 0;
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      const std::size_t index = bucket.parameters[i];
      place_[index] = {b, total};
      bucket.offsets.push_back(total);
      total += parameters_[index].second.numel();
    }
    bucket.flat = at::empty({total}, parameters_[bucket.parameters[0]].second.options());
  }

  at::Tensor slice(std::size_t index) {
    const at::Tensor& p = parameters_[index].second;
    return buckets_[place_[index].bucket]
        .flat.narrow(0, place_[index].offset, p.numel())
        .view(p.sizes());
  }

  // REQUIRES: mutex_ held.
  void mark_ready(std::size_t index) {
    ready_[index] = 1;
    arrival_.push_back(index);
    --buckets_[place_[index].bucket].pending;
    // In order only: every rank must issue the same sequence whatever order hooks fire in.
    while (next_to_launch_ < buckets_.size() && buckets_[next_to_launch_].pending == 0) {
      Bucket& bucket = buckets_[next_to_launch_++];
      fill(bucket);
      bucket.work = collectives_.all_reduce(bucket.flat);
    }
  }

  // All gradients of a bucket at once: on a GPU one kernel, or a few, instead of one for each, which
  // would take longer to launch than the whole of a recorded backward pass.
  void fill(const Bucket& bucket) {
    torch::NoGradGuard no_grad;
    std::vector<at::Tensor> parts, gradients;
    for (const std::size_t index : bucket.parameters) {
      at::Tensor& grad = parameters_[index].second.mutable_grad();
      at::Tensor part = slice(index);
      if (grad.defined()) {
        parts.push_back(part);
        gradients.push_back(grad);
      } else {
        part.zero_();
      }
      grad = part;  // frees the gradient autograd made; the optimizer reads the bucket directly
    }
#if TUTTI_TORCH_AT_LEAST(2, 4)
    if (!parts.empty()) at::_foreach_copy_(parts, gradients);
#else
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].copy_(gradients[i]);
#endif
  }

  ConfigError unused_error(const std::vector<std::size_t>& missing) const {
    std::vector<std::string> names;
    for (const std::size_t index : missing) names.push_back(parameters_[index].first);
    return unused_parameters_error(
        control_.rank(), names, parameters_.size(),
        "freeze them (requires_grad false), use them in the loss, or set "
        "trainer.strategy: ddp_find_unused_parameters_true");
  }

  // With find_unused: a parameter no rank used keeps no gradient, so that the optimizer leaves it
  // and its state alone, as in a single process.
  void clear_globally_unused(const std::vector<std::size_t>& unused) {
    const auto device = parameters_[0].second.device();
    auto used = at::ones({static_cast<std::int64_t>(parameters_.size())}, at::kLong);
    auto flags = used.accessor<std::int64_t, 1>();
    for (const std::size_t index : unused) flags[static_cast<std::int64_t>(index)] = 0;
    auto summed = used.to(device);
    wait(*collectives_.all_reduce(summed), control_, "comparing used parameters");
    summed = summed.to(at::kCPU);
    const auto counts = summed.accessor<std::int64_t, 1>();
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (counts[static_cast<std::int64_t>(i)] == 0) parameters_[i].second.mutable_grad().reset();
    if (!told_ && ++windows_ == 100 && unused.empty()) {
      told_ = true;
      log::info("no unused parameter in 100 steps; strategy: ddp would overlap better");
    }
  }

  // Once, after the first full step: rank 0's arrival order becomes everyone's bucket order. The
  // summed gradients still live in the old buckets, which their views keep alive.
  void rebuild_buckets(bool complete) {
    const auto n = static_cast<std::int64_t>(parameters_.size());
    // Last element: whether this rank's order is worth anything.
    auto order = at::zeros({n + 1}, at::kLong);
    auto values = order.accessor<std::int64_t, 1>();
    for (std::int64_t i = 0; i < n; ++i)
      values[i] = static_cast<std::int64_t>(arrival_[static_cast<std::size_t>(i)]);
    values[n] = complete ? 1 : 0;
    auto shared = order.to(parameters_[0].second.device());
    wait(*collectives_.broadcast(shared, 0), control_, "sharing the bucket order");
    shared = shared.to(at::kCPU);
    const auto agreed = shared.accessor<std::int64_t, 1>();
    if (agreed[n] == 0) return;  // rank 0 had no backward pass; the next step decides
    std::vector<std::size_t> by_arrival;
    for (std::int64_t i = 0; i < n; ++i) by_arrival.push_back(static_cast<std::size_t>(agreed[i]));
    build_buckets(by_arrival);
    rebuilt_ = true;
  }

  struct Place {
    std::size_t bucket = 0;
    std::int64_t offset = 0;
  };

  // Constant after construction.
  NamedTensors parameters_;
  Collectives& collectives_;
  Control& control_;
  ReducerOptions options_;

  std::mutex mutex_;  // hooks of several autograd threads
  std::vector<Bucket> buckets_;
  std::vector<Place> place_;  // by parameter
  std::vector<char> ready_;
  std::vector<std::size_t> arrival_;
  std::size_t next_to_launch_ = 0;
  bool armed_ = false;

  // Touched only by the loop thread.
  std::size_t used_bytes_ = 0;
  bool rebuilt_ = false;
  bool told_ = false;
  int windows_ = 0;
};

namespace {

// `Sink` is Reducer::State, which is private to the class.
template <class Sink>
class GradientHook final : public torch::autograd::FunctionPostHook {
 public:
  GradientHook(std::weak_ptr<Sink> sink, std::size_t index)
      : sink_(std::move(sink)), index_(index) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    if (const auto sink = sink_.lock()) sink->on_gradient(index_);
    return outputs;
  }

 private:
  std::weak_ptr<Sink> sink_;  // hooks outlive the reducer when the model does
  std::size_t index_;
};

}  // namespace

Reducer::Reducer(NamedTensors parameters, Collectives& collectives, Control& control,
                 ReducerOptions options) {
  const NamedTensors copy = parameters;
  state_ = std::make_shared<State>(std::move(parameters), collectives, control, options);
  for (std::size_t i = 0; i < copy.size(); ++i) {
    auto accumulator = torch::autograd::impl::grad_accumulator(copy[i].second);
    accumulator->add_post_hook(
        std::make_unique<GradientHook<State>>(std::weak_ptr<State>(state_), i));
    state_->accumulators.push_back(std::move(accumulator));
  }
}

Reducer::~Reducer() = default;
void Reducer::arm() { state_->arm(); }
void Reducer::finish(bool complete) { state_->finish(complete); }
std::vector<std::vector<std::size_t>> Reducer::buckets() const { return state_->buckets(); }

}  // namespace tutti::trainer
