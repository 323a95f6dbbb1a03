#include "tutti/trainer/loop.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/torch.h>
#ifdef TUTTI_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <algorithm>
#include <cstdlib>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/status.h"
#include "tutti/core/text.h"
#include "tutti/trainer/limits.h"
#include "tutti/trainer/recompute.h"
#include "tutti/trainer/recording.h"
#include "tutti/trainer/run.h"
#include "tutti/trainer/strategies/norm_sync.h"

namespace tutti::trainer {
namespace {

// Batches per rank in the epoch, the same on every rank; empty for streams of unknown length.
std::optional<std::int64_t> agree_on_length(Run& run) {
  auto there = run.in.train.batches_left({run.data_epoch(), 0, run.taken_before});
  if (there) *there += run.first_batch;
  const LoopSettings& settings = run.settings;
  const char* key = settings.overfit_batches.value > 0 ? "overfit_batches" : "limit_train_batches";
  const auto mine = settings.limit_train_batches.of(there, key);
  if (there && *there == 0 && run.batch == 0)
    throw DataError(fmt::format("epoch {}: the training data has no batch", run.epoch),
                    "check dataset.train, and min_length and max_length of the batches");
  if (mine && *mine == 0)
    throw ConfigError(
        fmt::format("trainer.{}: got {}, which is less than one of {} batches per rank", key,
                    settings.limit_train_batches.value, *there),
        "give a number of batches, or a larger fraction");
  const auto all = run.in.control.all_gather("epoch length", mine ? std::to_string(*mine) : "?");
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      throw DataError(fmt::format("epoch {}: rank {} has {} batches, rank 0 has {}", run.epoch,
                                  rank, all[rank], all[0]),
                      "every rank must read the same manifest and batch plan");
  return mine;
}

// Why nothing is recorded; empty: it is.
std::string reason_not_to_record(const Run& run) {
  if (run.settings.deterministic.on) return "the run is deterministic";
  if (run.settings.detect_anomaly) return "detect_anomaly is on";
  const Strategy& strategy = run.in.strategy;
  // With ddp gradients are summed between two recordings; each rank records the shapes it meets.
  if (strategy.lockstep()) return "ranks meet in the middle of a pass (" + strategy.name() + ")";
  if (strategy.name() != "single" && strategy.name() != "ddp")
    return "strategy " + strategy.name() + " looks for parameters that a pass does not use";
  return "";
}

// All modules of the model that can, but not the parts of one that does. Returns whether there is one.
bool set_recording(TrainableModel& model, bool on) {
  auto* whole = dynamic_cast<ModuleModel*>(&model);
  if (!whole) return false;
  std::vector<std::string> found;
  for (const auto& item : whole->module()->named_modules("model")) {
    const bool is_part = std::any_of(found.begin(), found.end(), [&](const std::string& name) {
      return item.key().rfind(name + ".", 0) == 0;
    });
    if (auto* recordable = dynamic_cast<Recordable*>(item.value().get());
        recordable && !is_part && recordable->can_record()) {
      recordable->set_recording(on);
      found.push_back(item.key());
    }
  }
  return !found.empty();
}

void allow_recording(Run& run) {
  if (!run.device.is_cuda() || run.settings.cuda_graphs == "false") return;
  const std::string reason = reason_not_to_record(run);
  run.recording = set_recording(run.in.model, reason.empty()) && reason.empty();
  if (run.is_main() && !run.recording)
    log::info("cuda_graphs: off: {}",
              reason.empty() ? "the model has no layers that can be recorded" : reason);
}

// What lies in pieces of the wrong size may fit the next batch when asked for anew, and what
// recordings hold.
void return_device_memory(Run& run) {
  if (std::exchange(run.recording, false)) {
    set_recording(run.in.model, false);
    log::info("cuda_graphs: off from now on, as memory ran out");
  }
#ifdef TUTTI_WITH_CUDA
  if (run.device.is_cuda()) c10::cuda::CUDACachingAllocator::emptyCache();
#endif
}

// A step that is not taken leaves nothing behind but a count and a word in the log.
void undo_step(Run& run, const Window& window) {
  discard_gradients(run);
  restore_buffers(run, window.before);
  ++run.skipped;
}

// Skips, counts, and gives up after too many in a row; the same for losses and gradients, on every
// device and in every precision. `what`: "the loss of rank 1".
void count_bad_step(Run& run, const std::string& what, const std::string& blame) {
  ++run.bad_in_a_row;
  if (!blame.empty()) log::error("rank {}: {}", run.in.control.rank(), blame);
  if (run.bad_in_a_row >= run.settings.max_nonfinite_steps)
    throw DataError(fmt::format("{} was NaN or infinite in {} steps in a row (step {})", what,
                                run.bad_in_a_row, run.step),
                    "lower the learning rate, clip gradients, or look at the utterances above");
  log::warning("step {} dropped on all ranks: {} is not finite", run.step, what);
}

void drop_step(Run& run, const Verdict& verdict, const Window& window) {
  undo_step(run, window);
  if (verdict.out_of_memory_ranks.empty()) {
    const std::string blame =
        window.vote.bad_loss ? fmt::format("the loss is not finite at step {} with utterances {}",
                                           run.step, window.bad_ids)
                             : "";
    return count_bad_step(run, "the loss of " + describe_ranks(verdict.bad_loss_ranks), blame);
  }
  ++run.oom_in_a_row;
  return_device_memory(run);
  if (window.vote.out_of_memory)
    log::error("rank {}: out of memory at step {} with utterances {}", run.in.control.rank(),
               run.step, window.bad_ids);
  const std::string who = describe_ranks(verdict.out_of_memory_ranks);
  if (run.oom_in_a_row >= run.settings.max_out_of_memory_steps)
    throw DataError(fmt::format("{} ran out of memory in {} steps in a row (step {})", who,
                                run.oom_in_a_row, run.step),
                    "use smaller batches (batch_bins) or drop the longest utterances");
  log::warning("step {} dropped on all ranks: {} ran out of memory", run.step, who);
}

// Whether the step was taken.
bool update_or_drop(Run& run, const Verdict& verdict, const Window& window) {
  if (verdict.drop_step()) {
    drop_step(run, verdict, window);
    return false;
  }
  const Update update = apply_update(run, verdict);
  if (update == Update::kTaken) {
    run.bad_in_a_row = run.oom_in_a_row = 0;
    run.interval.add(window.sums);
    ++run.step;
    for (Callback* callback : run.in.callbacks) callback->on_step(run.moment());
    return true;
  }
  undo_step(run, window);
  if (update == Update::kOverflow) {
    ++run.bad_in_a_row;
    log::debug("step {} dropped on all ranks: overflow; loss scale {}", run.step,
               run.scaler.scale());
  } else if (update == Update::kNotFinite) {
    Batch all;
    all.utt_ids = window.ids;
    count_bad_step(run, "a gradient",
                   fmt::format("the gradients of step {} are not finite; it had utterances {}",
                               run.step, all.describe_ids()));
  }
  return false;
}

// Whether a callback's wish to end can be granted.
bool may_stop(const Run& run) {
  return !run.stop_reason.empty() && run.epoch >= run.settings.min_epochs &&
         run.step >= run.settings.min_steps;
}

// Nothing more in this epoch.
bool enough_steps(const Run& run) {
  return may_stop(run) || (run.settings.max_steps >= 0 && run.step >= run.settings.max_steps);
}

bool limits_reached(const Run& run) {
  return may_stop(run) ||
         !reached_limits(run.settings, {run.epoch, run.step, run.seconds_before}).empty();
}

// Why training is over.
std::string end_of(const Run& run, bool made_step) {
  if (!run.stop_reason.empty()) return run.stop_reason;
  const std::string limits =
      reached_limits(run.settings, {run.epoch, run.step, run.seconds_before});
  return made_step || limits.empty() ? "all done" : "nothing is left to train: " + limits;
}

FitResult finished(Run& run, FitEnd end, std::string reason) {
  if (run.store) {
    run.store->flush();
    if (run.is_main() && (end == FitEnd::kDone || end == FitEnd::kTimeUp))
      for (const auto& path : run.store->write_averages())
        log::debug("wrote {}", path.filename().string());
  }
  report_end(run, reason);
  for (Logger* logger : run.in.loggers) logger->flush();
  return {end,        run.epoch,          run.step, run.skipped, std::move(reason),
          run.signal, run.last_validation};
}

// All ranks agreed to.
FitResult stopped(Run& run) {
  save(run, SavedAt::kStep);
  return finished(run, run.signal == SIGINT ? FitEnd::kInterrupted : FitEnd::kPreempted,
                  fmt::format("stopped by {} after step {}{}", signal_name(run.signal), run.step,
                              run.settings.checkpoint_folder.empty()
                                  ? ""
                                  : "; checkpoint saved: the same command goes on"));
}

HeldMemory held_memory(const Run& run) {
  const auto bytes = [](const at::Tensor& t) {
    return t.numel() * static_cast<std::int64_t>(t.element_size());
  };
  HeldMemory held;
  for (const OptimizerSlot& slot : run.optimizers)
    for (const auto& [name, tensor] : slot.optimizer->state())
      if (name.rfind("step/", 0) != 0) held.optimizer += bytes(tensor);
  if (run.in.strategy.placements()) {
    const ShardMemory& memory = run.in.strategy.memory();
    held.parameters = memory.shards + memory.gathered_peak;
    held.gradients = memory.gradients_peak;
    held.peak = memory.peak + held.optimizer;
    return held;
  }
  for (const auto& [name, tensor] : run.weights) {
    held.parameters += bytes(tensor);
    if (tensor.requires_grad()) held.gradients += bytes(tensor);
  }
  held.peak = held.parameters + held.gradients + held.optimizer;
  return held;
}

void begin_epoch(Run& run, std::int64_t epoch) {
  run.epoch = epoch;
  run.batch = run.first_batch = 0;
  run.taken_before.clear();
}

FitResult train(Run& run) {
  Control& control = run.in.control;
  bool begun = false;
  // Afresh: even a checkpoint that is made before the first step belongs to this config.
  if (!run.resumed && run.in.begins) run.in.begins();
  if (!run.resumed && run.settings.num_sanity_val_steps != 0 && run.in.valid &&
      run.settings.limit_val_batches.value > 0) {
    const int n = run.settings.num_sanity_val_steps;
    if (!validate(run, n > 0 ? std::optional<std::int64_t>(n) : std::nullopt,
                  /*sanity_check=*/true))
      return stopped(run);
  }
  while (run.validation_pending || !limits_reached(run)) {
    const auto length = run.batches_in_epoch = agree_on_length(run);
    check_validation_interval(run, length);
    run.plan = run.in.train.first_plan_hash(run.position());
    DeviceFeed feed(run.in.train.open(run.position()), run.precision, run.device);
    const auto stop_here = [&] {
      feed.do_not_wait();
      return stopped(run);
    };
    bool told_dry = false;
    bool out_of_data = false;
    bool epoch_over = length && run.batch >= *length;
    std::int64_t validated_step = -1;
    if (run.validation_pending) {  // a signal came before it was done
      if (!validate(run, std::nullopt, false)) return stop_here();
      validated_step = run.step;
      if (!epoch_over) save(run, SavedAt::kStep);
    }
    while (!epoch_over && !enough_steps(run)) {
      control.set_phase(fmt::format("epoch {} step {}", run.epoch, run.step));
      if (!std::exchange(begun, true) && run.resumed && run.in.begins) run.in.begins();
      const auto window_start = std::chrono::steady_clock::now();
      const Window window = run_window(run, feed, length);
      const Verdict verdict = agree(control, window.vote);
      if (!verdict.any_data && !verdict.abandoned) {
        out_of_data = true;
        break;
      }
      if (!verdict.dry_ranks.empty() && !verdict.abandoned && !std::exchange(told_dry, true))
        log::warning("epoch {}: no data left on {} after {} batches; others go on without",
                     run.epoch, describe_ranks(verdict.dry_ranks), run.batch);
      for (std::size_t group = 0; group < run.optimizers.size(); ++group)
        if (verdict.groups >> group & 1)
          run.in.strategy.finish(group, (window.complete >> group & 1) != 0);
      run.signal = verdict.signal;
      if (verdict.abandoned) {  // as if it had not begun
        discard_gradients(run);
        restore_buffers(run, window.before);
        restore_random_state(run, window.before.random);
        return stop_here();
      }
      const std::int64_t batch_before = run.batch;
      run.batch +=
          length ? std::min<std::int64_t>(run.accumulate(), *length - run.batch) : run.accumulate();
      ++run.window;

      const bool stepped = update_or_drop(run, verdict, window);
      run.times.total +=
          std::chrono::duration<double>(std::chrono::steady_clock::now() - window_start).count();
      ++run.times.steps;
      const int log_every = run.settings.log_every_n_steps;
      if (stepped && log_every > 0 && run.step % log_every == 0) log_interval(run);
      show_progress(run);

      epoch_over = length && run.batch >= *length;
      run.validation_pending = validation_due(run, length, batch_before, epoch_over);
      if (verdict.stop) return stop_here();
      if (verdict.time_up) {
        save(run, SavedAt::kStep);
        return finished(run, FitEnd::kTimeUp, fmt::format("max_time after step {}", run.step));
      }
      if (run.validation_pending) {
        if (!validate(run, std::nullopt, false)) return stop_here();
        if (!epoch_over) save(run, verdict.save ? SavedAt::kClock : SavedAt::kStep);
      } else if (stepped && !epoch_over && (verdict.save || step_save_due(run))) {
        save(run, verdict.save ? SavedAt::kClock : SavedAt::kStep);
      }
    }
    const bool complete = epoch_over || out_of_data;
    if (out_of_data) run.batches_in_epoch = run.batch;  // known now
    if (out_of_data && validated_step != run.step && validation_due(run, length, run.batch, true)) {
      run.validation_pending = true;
      if (!validate(run, std::nullopt, false)) return stop_here();
    }
    summarise_epoch(run);
    save(run, complete ? SavedAt::kEpochEnd : SavedAt::kStep);
    if (complete) begin_epoch(run, run.epoch + 1);
  }
  return finished(run, FitEnd::kDone, end_of(run, begun));
}

std::string first_names(const NamedTensors& parameters) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parameters.size() && i < 5; ++i) names.push_back(parameters[i].first);
  return join(names, ", ");
}

// The group of each parameter that has one. Chosen before the strategy cuts parameters to pieces.
std::map<std::string, std::size_t> choose_groups(const OptimizerSpec& spec,
                                                 const NamedTensors& parameters) {
  std::map<std::string, std::size_t> chosen;
  std::vector<int> taken(spec.groups.size());
  for (const auto& [name, parameter] : parameters)
    for (std::size_t i = 0; i < spec.groups.size(); ++i)
      if (spec.groups[i].takes(name, parameter)) {
        chosen[name] = i;
        ++taken[i];
        break;
      }
  for (std::size_t i = 0; i < taken.size(); ++i)
    if (taken[i] == 0)
      throw ConfigError(
          fmt::format("param_groups: entry {} ({}) takes no parameter; the first are {}", i + 1,
                      spec.groups[i].match.empty() ? "dims" : join(spec.groups[i].match, ", "),
                      first_names(parameters)),
          "`*` stands for anything; a word without it is a part between dots; earlier entries take "
          "first");
  return chosen;
}

std::unique_ptr<OptimizerGroups> build_optimizer(const OptimizerSpec& spec,
                                                 const std::map<std::string, std::size_t>& chosen,
                                                 const NamedTensors& parameters) {
  const auto of_group = [&](std::optional<std::size_t> group) {
    NamedTensors out;
    for (const auto& item : parameters) {
      const auto found = chosen.find(item.first);
      if (group ? found != chosen.end() && found->second == *group : found == chosen.end())
        out.push_back(item);
    }
    return out;
  };
  std::vector<std::unique_ptr<Optimizer>> groups;
  const NamedTensors rest = of_group(std::nullopt);
  groups.push_back(spec.make ? spec.make(rest) : make_optimizer(spec.options, rest));
  for (std::size_t i = 0; i < spec.groups.size(); ++i)
    groups.push_back(spec.groups[i].make(of_group(i)));
  return std::make_unique<OptimizerGroups>(std::move(groups), spec.schedule);
}

std::vector<NamedTensors> group_parameters(const FitInputs& in) {
  NamedTensors trainable;
  for (const auto& item : unique_parameters(in.model.named_parameters()).tensors)
    if (item.second.requires_grad()) trainable.push_back(item);
  if (trainable.empty()) throw ConfigError("the model has no trainable parameter");
  if (in.optimizers.empty() || in.optimizers.size() > 64)
    throw ConfigError(fmt::format("got {} optimizers, expected 1 to 64", in.optimizers.size()));
  std::vector<NamedTensors> groups(in.optimizers.size());
  for (const auto& item : trainable) {
    std::vector<std::string> owners;
    for (std::size_t i = 0; i < in.optimizers.size(); ++i)
      if (takes_parameter(in.optimizers[i].params, item.first)) {
        owners.push_back(in.optimizers[i].name);
        groups[i].push_back(item);
      }
    if (owners.size() != 1)
      throw ConfigError(
          owners.empty()
              ? fmt::format("optimizers: nobody's `params` matches parameter '{}'", item.first)
              : fmt::format("optimizers: parameter '{}' belongs to {}", item.first,
                            join(owners, " and ")),
          "every trainable parameter must belong to exactly one optimizer");
  }
  for (std::size_t i = 0; i < groups.size(); ++i)
    if (groups[i].empty())
      throw ConfigError(fmt::format("optimizers.{}.params: '{}' matches no parameter",
                                    in.optimizers[i].name, join(in.optimizers[i].params, ", ")));
  return groups;
}

}  // namespace

static CheckpointStore::Options store_options(FitInputs& inputs) {
  return {.criteria = inputs.criteria,
          .average_best = inputs.settings.average_best,
          .rank = inputs.control.rank(),
          .give_up = [&inputs] {
            try {
              inputs.control.check_peers(std::chrono::milliseconds(0));
              return false;
            } catch (const CommError&) {
              return true;
            }
          }};
}

namespace {

// From here on the loop answers signals, to the end of the scope.
class LookedAt {
 public:
  explicit LookedAt(FitInputs& inputs) : signals_(inputs.signals) {
    if (!signals_) return;
    const bool saves = !inputs.settings.checkpoint_folder.empty();
    signals_->started([&control = inputs.control, signals = signals_, saves] {
      if (control.rank() == 0)  // at once, whatever is going on
        log::info("{}: stopping{}", signal_name(signals->received()),
                  saves ? "; one checkpoint is saved first" : "");
      control.request_stop();
    });
  }
  ~LookedAt() {
    if (signals_) signals_->ended();
  }
  LookedAt(const LookedAt&) = delete;
  LookedAt& operator=(const LookedAt&) = delete;

 private:
  StopSignals* signals_;
};

}  // namespace

Run::Run(FitInputs& inputs)
    : in(inputs),
      settings(validated(inputs.settings)),
      device(settings.device),
      precision(settings.precision, device),
      scaler(precision.needs_loss_scaling()) {}

FitResult fit(FitInputs& inputs) {
  struct StatusLine {
    ~StatusLine() { log::status(""); }
  } removed_at_the_end;
  try {
    Run run(inputs);
    if (run.settings.deterministic.on) {
      // cuBLAS reads it when it starts.
      if (run.device.is_cuda()) ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*replace=*/0);
      at::globalContext().setDeterministicAlgorithms(true, run.settings.deterministic.warn_only);
    }
    if (run.device.is_cuda())
      at::globalContext().setFloat32MatmulPrecision(run.settings.float32_matmul_precision);
    Strategy& strategy = inputs.strategy;
    inputs.model.to(strategy.moves_model() ? at::Device(at::kCPU) : run.device,
                    run.precision.weight_type());
    inputs.model.set_training(true);
    enable_recomputation(inputs.model, run.settings.recompute);
    if (run.settings.sync_batchnorm) batch_norms_of(inputs.model);  // refuses one without
    const auto parameters = group_parameters(inputs);
    std::vector<std::map<std::string, std::size_t>> chosen;
    for (std::size_t i = 0; i < parameters.size(); ++i)
      chosen.push_back(choose_groups(inputs.optimizers[i], parameters[i]));
    const auto groups = strategy.setup(inputs.model, parameters, run.device);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const OptimizerSpec& spec = inputs.optimizers[i];
      std::vector<at::Tensor> owned;
      for (const auto& [name, parameter] : parameters[i]) owned.push_back(parameter);
      run.optimizers.push_back(
          {spec.name, build_optimizer(spec, chosen[i], groups[i]), std::move(owned),
           spec.gradient_clip_val.value_or(run.settings.gradient_clip_val),
           spec.gradient_clip_algorithm.value_or(run.settings.gradient_clip_algorithm)});
    }
    if (run.settings.last_phase)
      for (OptimizerSlot& slot : run.optimizers)
        slot.optimizer->set_last_phase(*run.settings.last_phase);
    run.weights = held_weights(run);
    seed_everything(run);
    run.resumed = restore(run);
    if ((run.is_main() || strategy.placements()) && !run.settings.checkpoint_folder.empty())
      run.store =
          std::make_unique<CheckpointStore>(run.settings.checkpoint_folder, store_options(inputs));
    if (run.is_main() && run.resumed_save) run.store->finish(*run.resumed_save);
    for (Logger* logger : run.in.loggers)  // from the beginning: there was no step
      logger->rewind(run.resumed ? run.step : -1, run.validation_pending);
    allow_recording(run);
    report_start(run);
    run.started = run.last_timed_save = std::chrono::steady_clock::now();
    const LookedAt looked_at(inputs);
    std::optional<torch::autograd::DetectAnomalyGuard> watching;
    if (run.settings.detect_anomaly) watching.emplace();
    FitResult result = train(run);
    result.memory = held_memory(run);
    run.store.reset();
    inputs.control.set_phase("finished");
    return result;
  } catch (const c10::Error& error) {
    inputs.control.fail(error.what_without_backtrace());
    throw;
  } catch (const std::exception& error) {
    inputs.control.fail(error.what());
    throw;
  }
}

ExitCode conclude(const FitResult& result, int rank, CommandRunner& runner, int requeue_signal) {
  if (result.end == FitEnd::kInterrupted) return ExitCode::kInterrupted;
  if (result.end != FitEnd::kPreempted) return ExitCode::kDone;
  if (rank == 0) requeue_if_wanted(result.signal, requeue_signal, runner);
  return ExitCode::kStoppedResumable;
}

}  // namespace tutti::trainer
