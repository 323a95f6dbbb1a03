#include "tutti/trainer/strategies/gradient_shards.h"

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <algorithm>
#include <set>

#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti::trainer {

constexpr std::size_t kSumsInFlight = 2;

// One unit's gradient on its way through the ranks.
struct Reduction {
  FlatUnit* unit = nullptr;
  at::Tensor whole;    // alive while the transport reads it
  at::Tensor reduced;  // this rank's part of the sum
  WorkPtr work;
  bool across_replicas = false;
};

class GradientShards::State {
 public:
  State(std::vector<FlatUnit*> units, Collectives& sharers, Collectives* replicas, Control& control,
        MemoryMeter& meter, at::Device device)
      : units_(std::move(units)),
        sharers_(sharers),
        replicas_(replicas),
        control_(control),
        meter_(meter),
        to_host_(device) {
    // Backward reaches the last registered units first.
    for (std::size_t i = units_.size(); i-- > 0;) launch_order_.push_back(i);
  }

  void begin(const Pass& pass) {
    std::lock_guard lock(mutex_);
    if (pass.first_of_window)
      for (FlatUnit* unit : units_) unit->forget_window();
    for (FlatUnit* unit : units_) unit->start_backward();
    arrival_.clear();
    launched_ = 0;
    active_ = true;
  }

  // Called by autograd right after a gradient was accumulated.
  void on_gradient(std::size_t unit, std::size_t index) {
    std::lock_guard lock(mutex_);
    if (!active_) return;
    if (units_[unit]->has_gradient(index))
      throw InternalError(fmt::format("parameter '{}' got its gradient twice in one backward pass",
                                      units_[unit]->parameters()[index].first),
                          "do not call backward inside a hook over shared parameters");
    if (!units_[unit]->take_gradient(index)) return;
    arrival_.push_back(unit);
    // In order only: every rank must start the same sequence whatever order hooks fire in.
    while (launched_ < launch_order_.size() &&
           units_[launch_order_[launched_]]->has_all_gradients())
      launch(/*with_gradient=*/true);
    // Bounds memory. Not by force: a rank that gets its gradients in another order may need this
    // one to go on before it can answer.
    while (running_.size() > kSumsInFlight)
      if (!poll_oldest(std::chrono::milliseconds(1000))) break;
  }

  void settle(bool complete) {
    {
      std::lock_guard lock(mutex_);
      if (!active_) return;
      active_ = false;
      if (complete && launched_ < launch_order_.size()) check_unused();
      while (launched_ < launch_order_.size()) launch(/*with_gradient=*/false);
      if (!complete)
        for (FlatUnit* unit : units_) unit->drop_gradients();
    }
    settled_complete_ = complete;
  }

  void drain() {
    while (!running_.empty()) finish_oldest();
    if (!ordered_ && control_.world_size() > 1) agree_on_order();
  }

  void hand_over(std::size_t optimizer) {
    for (FlatUnit* unit : units_)
      if (unit->optimizer() == optimizer) unit->hand_over();
  }

  const std::vector<FlatUnit*>& units() const { return units_; }
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators;  // weak in the tensor itself

 private:
  // REQUIRES: mutex_ held.
  void launch(bool with_gradient) {
    RECORD_USER_SCOPE("fsdp.reduce");
    FlatUnit* unit = units_[launch_order_[launched_]];
    const bool real = with_gradient || unit->has_all_gradients();
    Reduction next{.unit = unit};
    next.whole = real ? unit->take_flat_gradient() : unit->zero_gradient();
    if (!real) meter_.gradients(unit->flat_gradient_bytes());
    next.reduced = unit->empty_reduced();
    next.work = sharers_.reduce_scatter(next.reduced, next.whole);
    running_.push_back(std::move(next));
    ++launched_;
  }

  bool poll_oldest(std::chrono::milliseconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (!running_.front().work->wait_for(std::chrono::milliseconds(20))) {
      control_.check_peers(std::chrono::milliseconds(0));
      if (std::chrono::steady_clock::now() > deadline) return false;
    }
    finish_oldest();
    return true;
  }

  void finish_oldest() {
    Reduction& oldest = running_.front();
    wait(*oldest.work, control_, "summing gradients of " + oldest.unit->name());
    if (replicas_ && !oldest.across_replicas) {
      oldest.across_replicas = true;
      if (oldest.reduced.scalar_type() == at::kBFloat16)  // sums of sums keep their bits
        oldest.reduced = oldest.reduced.to(at::kFloat);
      oldest.work = replicas_->all_reduce(oldest.reduced);
      wait(*oldest.work, control_, "summing gradients of " + oldest.unit->name());
    }
    meter_.gradients(-oldest.unit->flat_gradient_bytes());
    oldest.unit->add_reduced(oldest.reduced, to_host_);
    running_.pop_front();
  }

  // An optimizer whose parameters have no gradient at all had no loss in this step.
  void check_unused() const {
    std::set<std::size_t> optimizers, at_work;
    for (const FlatUnit* unit : units_) {
      optimizers.insert(unit->optimizer());
      for (std::size_t i = 0; i < unit->parameters().size(); ++i)
        if (unit->has_gradient(i)) at_work.insert(unit->optimizer());
    }
    std::vector<std::string> missing;
    std::size_t total = 0;
    for (const FlatUnit* unit : units_) {
      if (optimizers.size() > 1 && !at_work.contains(unit->optimizer())) continue;
      total += unit->parameters().size();
      for (std::size_t i = 0; i < unit->parameters().size(); ++i)
        if (!unit->has_gradient(i)) missing.push_back(unit->parameters()[i].first);
    }
    if (missing.empty()) return;
    throw unused_parameters_error(control_.rank(), missing, total,
                                  "freeze them (requires_grad false) or use them in the loss");
  }

  // Once: rank 0's order of arrival becomes everyone's order.
  void agree_on_order() {
    std::vector<std::string> mine;
    if (settled_complete_)
      for (const std::size_t unit : arrival_) mine.push_back(std::to_string(unit));
    const auto all = control_.all_gather("order of gradients", join(mine, ","));
    if (all[0].empty()) return;  // rank 0 had no backward pass; the next step decides
    std::vector<std::size_t> order;
    for (const std::string& unit : split(all[0], ',')) order.push_back(std::stoul(unit));
    for (const std::size_t unit : launch_order_)  // of an optimizer that had no loss yet
      if (std::find(order.begin(), order.end(), unit) == order.end()) order.push_back(unit);
    launch_order_ = std::move(order);
    ordered_ = true;
  }

  // Constant after construction.
  std::vector<FlatUnit*> units_;
  Collectives& sharers_;
  Collectives* replicas_;
  Control& control_;
  MemoryMeter& meter_;
  SideStream to_host_;

  std::mutex mutex_;  // hooks of several autograd threads
  std::vector<std::size_t> launch_order_;
  std::vector<std::size_t> arrival_;
  std::size_t launched_ = 0;
  std::deque<Reduction> running_;
  bool active_ = false;

  // Touched only by the loop thread.
  bool ordered_ = false;
  bool settled_complete_ = false;
};

namespace {

// `Sink` is GradientShards::State, which is private to the class.
template <class Sink>
class ShardHook final : public torch::autograd::FunctionPostHook {
 public:
  ShardHook(std::weak_ptr<Sink> sink, std::size_t unit, std::size_t index)
      : sink_(std::move(sink)), unit_(unit), index_(index) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    if (const auto sink = sink_.lock()) sink->on_gradient(unit_, index_);
    return outputs;
  }

 private:
  std::weak_ptr<Sink> sink_;  // hooks outlive the strategy when the model does
  std::size_t unit_;
  std::size_t index_;
};

}  // namespace

GradientShards::GradientShards(std::vector<FlatUnit*> units, Collectives& sharers,
                               Collectives* replicas, Control& control, MemoryMeter& meter,
                               at::Device device)
    : state_(std::make_shared<State>(std::move(units), sharers, replicas, control, meter, device)) {
  for (std::size_t u = 0; u < state_->units().size(); ++u) {
    const NamedTensors& parameters = state_->units()[u]->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      auto accumulator = torch::autograd::impl::grad_accumulator(parameters[i].second);
      accumulator->add_post_hook(
          std::make_unique<ShardHook<State>>(std::weak_ptr<State>(state_), u, i));
      state_->accumulators.push_back(std::move(accumulator));
    }
  }
}

GradientShards::~GradientShards() = default;
void GradientShards::begin(const Pass& pass) { state_->begin(pass); }
void GradientShards::settle(bool complete) { state_->settle(complete); }
void GradientShards::drain() { state_->drain(); }
void GradientShards::finish(std::size_t optimizer) { state_->hand_over(optimizer); }

}  // namespace tutti::trainer
