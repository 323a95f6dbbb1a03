// Forward and backward over the micro-batches of one optimizer step.
//
// Losses are means; their sum is loss x weight. What is differentiated is loss x weight /
// reference, where the reference is a power of two near the last step's global weight: dividing by
// a power of two changes no bits, and keeps 16-bit gradients in range. The true global weight is
// known after the vote and divides the summed gradients in update.cpp.
#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>

#include "tutti/core/error.h"
#include "tutti/core/users_code.h"
#include "tutti/trainer/out_of_memory.h"
#include "tutti/trainer/run.h"
#include "tutti/trainer/strategies/side_stream.h"

namespace tutti::trainer {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The optimizer that moves by a loss of this name; empty: by one without a name all of them do.
std::optional<std::size_t> optimizer_of(const Run& run, const std::string& name) {
  if (name.empty()) return std::nullopt;
  for (std::size_t i = 0; i < run.optimizers.size(); ++i)
    if (run.optimizers[i].name == name) return i;
  throw ConfigError("the model names optimizer '" + name + "', which the config does not have");
}

std::uint64_t bits_of(const Run& run, std::optional<std::size_t> optimizer) {
  return optimizer ? 1ull << *optimizer : ~0ull >> (64 - run.optimizers.size());
}

// Whether losses are numbers. From a GPU they are copied as soon as the forward pass has made them,
// so that asking before the backward pass has ended does not wait for it.
class LossCheck {
 public:
  LossCheck(const std::vector<std::pair<std::string, at::Tensor>>& losses, double weight)
      : weight_(weight) {
    const at::Device device = losses.front().second.device();
    values_ = at::empty({static_cast<std::int64_t>(losses.size())},
                        at::TensorOptions(at::kFloat).pinned_memory(device.is_cuda()));
    for (std::size_t i = 0; i < losses.size(); ++i)
      values_[static_cast<std::int64_t>(i)].copy_(losses[i].second.detach(),
                                                  /*non_blocking=*/true);
    if (device.is_cpu()) return;
    copied_ = std::make_shared<c10::Event>(device.type());
    copied_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  bool all_finite() const {
    SideStream::synchronize(copied_);
    return std::isfinite(weight_) && values_.isfinite().all().item<bool>();
  }

 private:
  double weight_;
  at::Tensor values_;
  Mark copied_;
};

// One micro-batch. `last`: gradients are summed over ranks while its backward runs. Returns whether
// the backward pass ran.
bool compute(Run& run, const Batch& batch, bool last, Window& window) {
  const auto forward_start = Clock::now();
  StepOutput output;
  {
    const auto autocast = run.precision.forward_scope();
    output = run.in.model.training_step(batch);
  }
  run.times.forward += seconds_since(forward_start);

  std::vector<std::pair<std::string, at::Tensor>> losses{{output.optimizer, output.loss}};
  losses.insert(losses.end(), output.more_losses.begin(), output.more_losses.end());
  std::vector<std::optional<std::size_t>> owners;
  for (const auto& [name, loss] : losses) {
    owners.push_back(optimizer_of(run, name));
    window.vote.groups |= bits_of(run, owners.back());
  }
  // A GPU is not waited for before its backward pass is queued; a NaN then reaches gradients, which
  // the vote throws away on all ranks.
  const bool on_cpu = output.loss.device().is_cpu();
  const LossCheck check(losses, output.weight);
  if (on_cpu && !check.all_finite()) {
    window.vote.bad_loss = true;
    window.bad_ids = batch.describe_ids();
    return false;
  }

  const auto backward_start = Clock::now();
  const double factor =
      run.scaler.scale() * (run.weighs_losses() ? output.weight / run.reference_weight : 1.0);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const at::Tensor scaled = factor == 1.0 ? losses[i].second : losses[i].second * factor;
    const bool more = i + 1 < losses.size();
    // With several optimizers a loss must not leave gradients in another one's parameters.
    if (owners[i] && run.optimizers.size() > 1)
      scaled.backward({}, more, false, at::TensorList(run.optimizers[*owners[i]].owned));
    else
      scaled.backward({}, more);
    if (last) window.complete |= bits_of(run, owners[i]);
  }
  run.times.backward += seconds_since(backward_start);
  if (!on_cpu && !check.all_finite()) {
    window.vote.bad_loss = true;
    window.bad_ids = batch.describe_ids();
    return true;
  }
  window.vote.weight += output.weight;
  window.sums.add("train/", output);
  return true;
}

// Out of memory is for the vote.
bool try_compute(Run& run, Batch& batch, bool last, Window& window) {
  try {
    run.precision.prepare(batch);
    return compute(run, batch, last, window);
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) rethrow_model_error(run, batch);
    window.vote.out_of_memory = true;
    window.bad_ids = batch.describe_ids();
    window.complete = 0;
    return false;
  } catch (...) {  // `throw 5`
    rethrow_model_error(run, batch);
  }
}

}  // namespace

void rethrow_model_error(const Run& run, const Batch& batch) {
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (...) {  // told below
  }
  const std::string text = words_of_exception();
  // detect_anomaly's finding is about the numbers, whoever wrote the model.
  const bool anomaly = text.find("returned nan values") != std::string::npos;
  const std::string& name = run.in.users_model;
  if (name.empty() && !anomaly) throw;
  throw DataError(
      fmt::format("model{}{}: {} (step {}, utterances {})", name.empty() ? "" : " ", name, text,
                  run.step, batch.describe_ids()),
      anomaly ? "look at these utterances, and at what comes before that operation"
      // TorchScript shows the line, others do not.
      : text.find("<--- HERE") != text.npos
          ? "the line above is in the model's own code"
          : "the mistake is in the model's own code, or in what it is given (model.inputs)");
}

Window run_window(Run& run, DeviceFeed& feed, std::optional<std::int64_t> batches_in_epoch) {
  Window window;
  window.before = rollback_point(run);
  window.vote.step = run.window;
  window.vote.plan_hash = run.in.train.plan_hash(run.data_epoch());
  window.vote.time_up = run.settings.max_time.seconds && run.is_main() &&
                        run.seconds() >= *run.settings.max_time.seconds;
  window.vote.save = run.settings.save_every_seconds > 0 && run.is_main() &&
                     seconds_since(run.last_timed_save) >= run.settings.save_every_seconds;

  const int wanted = run.accumulate();
  Strategy& strategy = run.in.strategy;
  bool going_on = true;
  for (int i = 0; i < wanted; ++i) {
    const std::int64_t index = run.batch + i;
    if (batches_in_epoch && index >= *batches_in_epoch) break;
    std::optional<Batch> batch;
    if (going_on) {
      const auto data_start = Clock::now();
      batch = feed.next([&run] { return run.stop_wanted(); });
      window.data_seconds += seconds_since(data_start);
      // What is not begun is not waited for.
      window.vote.abandoned = feed.given_up() || run.stop_wanted();
      if (window.vote.abandoned) batch.reset();
    }
    // Where ranks meet in every pass, one that has nothing to compute still goes through it.
    if (!batch && !strategy.lockstep()) break;
    // Gradients are summed over ranks only once per window, while the last backward runs.
    const bool last = i + 1 == wanted || (batches_in_epoch && index + 1 == *batches_in_epoch);
    strategy.begin({.training = true, .first_of_window = i == 0, .last_of_window = last});
    bool complete = false;
    if (batch) window.vote.has_data = true;
    // A batch of nothing: the epoch's last group had fewer utterances than ranks. It has no weight.
    if (batch && !batch->tensors.empty()) {
      window.ids.insert(window.ids.end(), batch->utt_ids.begin(), batch->utt_ids.end());
      run.times.audio_seconds += batch->audio_seconds;
      run.times.items += static_cast<double>(batch->utt_ids.size());
      ++run.times.batches;
      complete = try_compute(run, *batch, last, window);
    }
    going_on = going_on && batch && !window.vote.out_of_memory;
    strategy.settle(complete);
    if (!going_on && !strategy.lockstep()) break;
    ++window.micro_batches;
  }
  // Without a whole armed backward (nothing to compute, NaN, out of memory) this rank still takes
  // part in the sums: with what it has, or zeros.
  run.times.data += window.data_seconds;
  window.vote.stop = run.stop_wanted();
  window.vote.signal = run.own_signal();
  return window;
}

}  // namespace tutti::trainer
