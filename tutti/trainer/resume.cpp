// Seeds, and the way into and out of checkpoints.
#include <ATen/Context.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/random.h"
#include "tutti/core/status.h"
#include "tutti/trainer/checkpoint/lightning.h"
#include "tutti/trainer/run.h"

namespace tutti::trainer {
namespace {

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  return {static_cast<const char*>(flat.data_ptr()),
          static_cast<std::size_t>(flat.numel()) * flat.element_size()};
}

at::Tensor tensor_of(const std::string& bytes) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

// The model as this rank holds it: parameters or its parts of them, and buffers.
TensorMap model_tensors(Run& run) {
  TensorMap out;
  for (const auto& [name, tensor] : held_weights(run)) out[name] = tensor;
  for (const auto& [name, tensor] : unique_parameters(run.in.model.named_buffers()).tensors)
    out[name] = tensor;
  return out;
}

PartRanges part_ranges(const Placements& placements) {
  PartRanges out;
  for (const auto& [name, placement] : placements)
    out[name] = {placement.shape, placement.start, placement.part.numel()};
  return out;
}

// Notes which tensors of the checkpoint are parts, of what.
void mark_parts(const Placements& placements, Checkpoint& checkpoint) {
  const TensorMap* maps[] = {&checkpoint.model, &checkpoint.optimizer, &checkpoint.extra};
  for (std::size_t file = 0; file < kCheckpointFiles.size(); ++file)
    for (const auto& [name, tensor] : *maps[file]) {
      const auto found = placements.find(parameter_of(name));
      if (found != placements.end())
        checkpoint.parts[part_key(file, name)] = {found->second.shape, found->second.start,
                                                  tensor.numel()};
    }
}

// Copies nobody else writes to, on the CPU. Those of a GPU are queued into pinned memory; they are
// there when arrived() returns.
class Snapshot {
 public:
  // `used`: of a snapshot that nobody needs any more, by the same names. Tensors that still fit are
  // written over: the pages of new ones would have to be made first.
  TensorMap of(const TensorMap& tensors, const TensorMap& used) {
    TensorMap out;
    for (const auto& [name, tensor] : tensors) {
      const at::Tensor from = tensor.detach();
      const bool on_gpu = !from.device().is_cpu();
      if (on_gpu) device_ = from.device();
      const auto old = used.find(name);
      if (old != used.end() && fits(old->second, from))
        out[name] = old->second;
      else
        out[name] = at::empty(from.sizes(), from.options().device(at::kCPU).pinned_memory(on_gpu));
      out[name].copy_(from, /*non_blocking=*/true);
    }
    return out;
  }
  static bool fits(const at::Tensor& old, const at::Tensor& from) {
    // A callback may have put a tensor of its own there.
    const bool nobody_elses = old.use_count() == 1 && old.storage().use_count() == 1;
    return nobody_elses && old.device().is_cpu() && old.is_contiguous() &&
           old.sizes() == from.sizes() && old.scalar_type() == from.scalar_type();
  }
  void arrived() const {
    if (device_) SideStream::synchronize(SideStream(*device_).run([] {}));
  }

 private:
  std::optional<at::Device> device_;
};

// `fit.ckpt_path`: a checkpoint, a folder of checkpoints, an experiment with one, or a .ckpt.
std::filesystem::path named_checkpoint(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  if (fs::exists(path / "COMPLETE")) return fs::canonical(path);
  if (path.extension() == ".safetensors" && fs::is_regular_file(path))
    throw ConfigError(
        fmt::format("fit.ckpt_path: {} holds weights and no state of a training", path.string()),
        fmt::format("to begin with these weights: init_param: [{}]", path.string()));
  if (fs::is_regular_file(path)) return path;  // Lightning's
  for (const fs::path& folder : {path, path / "checkpoints"})
    if (const auto newest = CheckpointStore::newest_folder(folder)) return *newest;
  throw ConfigError("fit.ckpt_path: there is no whole checkpoint in " + path.string(),
                    "name a folder such as exp/asr/checkpoints or .../step-00001200");
}

// Where to go on from: this run's own newest checkpoint if it has one (a job that was requeued must
// not lose what it did), else the one that was asked for; or its own best. Empty: nowhere. Rank 0
// checks for all.
std::string choose_checkpoint(Run& run) {
  const LoopSettings& settings = run.settings;
  std::string chosen;
  if (run.is_main()) {
    const bool named = settings.resume != "auto" && settings.resume != "never";
    if (settings.resume == "best") {
      const auto& criteria = run.in.criteria;
      chosen = CheckpointStore::best_folder(
                   settings.checkpoint_folder,
                   criteria.empty() ? std::nullopt : std::optional(criteria.front()))
                   .string();
    } else if (const auto own = CheckpointStore::newest_folder(settings.checkpoint_folder)) {
      chosen = own->string();
      if (named) log::info("fit.ckpt_path is passed over: this run has checkpoints of its own");
    } else if (named) {
      chosen = named_checkpoint(settings.resume).string();
    }
  }
  return run.in.control.all_gather("checkpoint to resume", chosen)[0];
}

Checkpoint lightning_checkpoint(Run& run, const std::filesystem::path& path) {
  if (run.in.strategy.placements() || run.optimizers.size() > 1)
    throw ConfigError(
        "fit.ckpt_path: a .ckpt can be continued with one optimizer and whole weights",
        "begin with trainer.strategy: ddp, then go on with fsdp from tutti's own "
        "checkpoint");
  LightningFile file =
      read_lightning(path, unique_parameters(run.in.model.named_parameters()).tensors,
                     unique_parameters(run.in.model.named_buffers()).tensors);
  if (file.inside_epoch && run.is_main())
    log::warning("{} was made in the middle of an epoch, which begins anew", path.string());
  Json& t = file.checkpoint.trainer;
  t.update({{"batch", 0},
            {"window", t.at("step")},
            {"skipped", 0},
            {"world_size", run.in.control.world_size()},
            {"accumulate", run.accumulate()},
            {"scaler", Json::object()},
            {"optimizers", Json::object()},
            {"epoch_sums", Json::object()},
            {"callbacks", Json::object()}});
  return std::move(file.checkpoint);
}

// As far as this rank needs it.
std::optional<CheckpointStore::Found> find_checkpoint(Run& run) {
  const std::filesystem::path folder = choose_checkpoint(run);
  if (folder.empty()) return std::nullopt;
  if (std::filesystem::is_regular_file(folder))
    return CheckpointStore::Found{folder, lightning_checkpoint(run, folder)};
  if (!std::filesystem::exists(folder / "COMPLETE"))
    throw DataError(fmt::format("rank {} does not see {}, from which rank 0 resumes",
                                run.in.control.rank(), folder.string()),
                    "default_root_dir must be on a file system all nodes share");
  if (const Placements* placements = run.in.strategy.placements())
    return CheckpointStore::Found{folder, read_checkpoint_parts(folder, part_ranges(*placements))};
  return CheckpointStore::Found{folder, read_checkpoint(folder)};
}

// Where in the epoch the run goes on. Ranks of another number took batches of their own size: what
// they left is dealt out over today's.
void restore_position(Run& run, const Json& t) {
  const int old_world = t.at("world_size");
  const int world = run.in.control.world_size();
  for (const Json& part : t.value("taken", Json::array()))
    run.taken_before.push_back({part.at(0), part.at(1)});
  if (!t.contains("taken") && run.batch > 0) run.taken_before.push_back({old_world, run.batch});
  if (run.taken_before.empty()) return;
  if (old_world == world) {
    run.first_batch = t.value("first_batch", std::int64_t{0});
    if (run.batch > run.first_batch) run.taken_before.pop_back();  // our own
  } else {
    std::int64_t consumed = 0;
    for (const Taken& part : run.taken_before) consumed += part.world_size * part.batches;
    run.batch = run.first_batch = consumed / world;
  }
  if (!t.contains("plan") || run.in.train.first_plan_hash(run.position()) == t.at("plan")) return;
  if (run.is_main())
    log::warning(
        "epoch {}: its batches are not those of the checkpoint (other data, batch sizes or seed), "
        "so the place in it is lost; the epoch begins anew",
        run.epoch);
  run.batch = run.first_batch = 0;
  run.taken_before.clear();
}

// Log lines and epochs that were begun go on with what they had.
void restore_sums(Run& run, const Json& t) {
  run.epoch_sums = MetricSums::from_json(t.at("epoch_sums"));
  const Json intervals = t.value("log_sums", Json::array());
  const auto world = static_cast<std::size_t>(run.in.control.world_size());
  const auto rank = static_cast<std::size_t>(run.in.control.rank());
  for (std::size_t i = 0; i < intervals.size(); ++i)  // where ranks are fewer, some take several
    if (i % world == rank) run.interval.add(MetricSums::from_json(intervals[i]));
}

// Resuming with other numbers is allowed; what it means for the training must be said.
void tell_about_batch(const Run& run, int old_world, int old_accumulate) {
  const int world = run.in.control.world_size();
  const int accumulate = run.accumulate();
  if (old_world != world)
    log::info(
        "{} rank{} instead of {}: what is left of epoch {} is dealt out anew, each utterance "
        "once; dropout masks will differ",
        world, world == 1 ? "" : "s", old_world, run.epoch + 1);
  const double ratio = static_cast<double>(world) * accumulate / (old_world * old_accumulate);
  if (ratio == 1.0) return;
  const double same = accumulate / ratio;
  const std::string keep =
      same >= 1 && same == std::floor(same)
          ? fmt::format("To keep the batch, set trainer.accumulate_grad_batches: {:.0f}; or scale",
                        same)
          : std::string("You may scale");
  log::warning(
      "a step now takes {} x {} batches (ranks x accumulate_grad_batches), before {} x {}: {:.3g} "
      "times as many utterances per step, at the same learning rate. {} optimizer.lr by {:.3g} "
      "(linear "
      "rule)",
      world, accumulate, old_world, old_accumulate, ratio, keep, ratio);
}

bool is_nth(std::int64_t count, std::int64_t n) { return n > 0 && count > 0 && count % n == 0; }

// Goes by the place, not by who made the save: a signal may come where one was due anyway.
bool is_kept(const Run& run, SavedAt at, bool validated) {
  const auto& kept = run.settings.kept_saves;
  return std::any_of(kept.begin(), kept.end(), [&](const KeptSaves& asked) {
    return (at == SavedAt::kEpochEnd && is_nth(run.epoch + 1, asked.every_n_epochs)) ||
           is_nth(run.step, asked.every_n_steps) || (at == SavedAt::kClock && asked.timed) ||
           (validated && asked.validated);
  });
}

}  // namespace

NamedTensors held_weights(Run& run) {
  const Placements* placements = run.in.strategy.placements();
  if (!placements) return unique_parameters(run.in.model.named_parameters()).tensors;
  NamedTensors out;
  for (const auto& [name, placement] : *placements)
    if (placement.part.numel() > 0) out.emplace_back(name, placement.part);
  return out;
}

void seed_everything(Run& run) {
  // Weights were made (and sent by rank 0) before this; from here on every rank draws its own
  // dropout masks.
  const auto rank = static_cast<std::uint64_t>(run.in.control.rank());
  torch::manual_seed(static_cast<std::int64_t>(hash_combine({run.settings.seed, rank}) >> 1));
}

bool step_save_due(const Run& run) {
  const auto& kept = run.settings.kept_saves;
  return is_nth(run.step, run.settings.save_every_n_steps) ||
         std::any_of(kept.begin(), kept.end(),
                     [&](const KeptSaves& asked) { return is_nth(run.step, asked.every_n_steps); });
}

void save(Run& run, SavedAt at) {
  if (run.settings.checkpoint_folder.empty()) return;
  const bool epoch_over = at == SavedAt::kEpochEnd;
  const Metrics metrics = std::exchange(run.unsaved_validation, {});
  if (run.saved_step == run.step && metrics.empty() && !epoch_over &&
      run.saved_pending == run.validation_pending)
    return;
  run.in.control.set_phase(fmt::format("saving step {}", run.step));
  // One blob per rank, so that a run resumed with the same world size draws the same numbers.
  const auto random_states = run.in.control.all_gather("random state", random_state(run));
  // Train sums of other ranks would be lost with their processes.
  const auto intervals = run.interval.of_ranks(run.in.control, "metrics");
  run.saved_step = run.step;
  run.saved_pending = run.validation_pending;
  if (at == SavedAt::kClock) run.last_timed_save = std::chrono::steady_clock::now();
  if (!run.store) return;

  Checkpoint checkpoint;
  Snapshot snapshot;
  const Checkpoint used = run.store->take_back();
  checkpoint.model = snapshot.of(model_tensors(run), used.model);
  Json optimizers = Json::object();
  for (const OptimizerSlot& slot : run.optimizers) {
    const std::string name = slot.name.empty() ? "optimizer" : slot.name;
    TensorMap state;
    for (const auto& [key, tensor] : slot.optimizer->state()) state[name + "/" + key] = tensor;
    checkpoint.optimizer.merge(snapshot.of(state, used.optimizer));
    optimizers[name] = {{"schedule", slot.optimizer->schedule_state()}};
  }
  for (std::size_t rank = 0; rank < random_states.size(); ++rank)
    checkpoint.extra[fmt::format("random/{}", rank)] = tensor_of(random_states[rank]);
  const auto world = run.in.control.world_size();
  Json taken = Json::array();
  for (const Taken& part : run.taken_before) taken.push_back({part.world_size, part.batches});
  if (run.batch > run.first_batch) taken.push_back({world, run.batch - run.first_batch});
  Json log_sums = Json::array();  // one by one: added up in the same order they give the same bits
  for (const MetricSums& sums : intervals) log_sums.push_back(sums.to_json());
  checkpoint.trainer = {{"epoch", epoch_over ? run.epoch + 1 : run.epoch},
                        {"batch", epoch_over ? 0 : run.batch},
                        {"first_batch", epoch_over ? 0 : run.first_batch},
                        {"taken", epoch_over ? Json::array() : taken},
                        {"plan", run.plan},
                        {"validation_pending", run.validation_pending},
                        {"seconds", run.seconds()},
                        {"accumulate", run.accumulate()},
                        {"bad_in_a_row", run.bad_in_a_row},
                        {"world_size", world},
                        {"step", run.step},
                        {"window", run.window},
                        {"skipped", run.skipped},
                        {"scaler", run.scaler.state()},
                        {"optimizers", optimizers},
                        {"epoch_sums", run.epoch_sums.to_json()},
                        {"log_sums", log_sums},
                        {"callbacks", Json::object()}};
  for (const Callback* callback : run.in.callbacks) callback->save(checkpoint);
  snapshot.arrived();
  std::optional<SharedSave> shared;
  if (const Placements* placements = run.in.strategy.placements()) {
    mark_parts(*placements, checkpoint);
    shared = agree_on_save(checkpoint, run.in.control);
  }
  const bool keep = is_kept(run, at, /*validated=*/!metrics.empty());
  run.store->save(std::move(checkpoint), {run.epoch, run.step, metrics, keep}, std::move(shared));
}

bool restore(Run& run) {
  if (run.settings.resume == "never" || run.settings.checkpoint_folder.empty()) return false;
  const auto found = find_checkpoint(run);
  if (!found) return false;

  const Checkpoint& checkpoint = found->checkpoint;
  TensorMap model;  // nothing is read for parameters of which this rank holds no part
  const TensorMap held = model_tensors(run);
  const Placements* placements = run.in.strategy.placements();
  for (const auto& [name, tensor] : trained(checkpoint))
    if (held.count(name) || !placements || !placements->count(name)) model[name] = tensor;
  load_tensors(model, held, found->folder.string());
  for (OptimizerSlot& slot : run.optimizers) {
    const std::string name = slot.name.empty() ? "optimizer" : slot.name;
    std::map<std::string, at::Tensor> state;
    for (const auto& [key, tensor] : checkpoint.optimizer)
      if (key.rfind(name + "/", 0) == 0) state[key.substr(name.size() + 1)] = tensor;
    slot.optimizer->load_state(state);
    const Json& saved = checkpoint.trainer["optimizers"];
    if (saved.contains(name)) slot.optimizer->load_schedule(saved[name]["schedule"]);
  }
  const Json& t = checkpoint.trainer;
  run.epoch = t.at("epoch");
  run.batch = t.at("batch");
  run.step = t.at("step");
  std::error_code not_there;
  if (std::filesystem::equivalent(found->folder.parent_path(), run.settings.checkpoint_folder,
                                  not_there))
    run.resumed_save = save_info_of(t);
  run.window = t.at("window");
  run.skipped = t.at("skipped");
  run.saved_step = run.step;
  run.saved_pending = t.value("validation_pending", false);
  run.scaler.load(t.at("scaler"));
  restore_sums(run, t);
  run.validation_pending = run.saved_pending;
  run.seconds_before = t.value("seconds", 0.0);
  run.bad_in_a_row = t.value("bad_in_a_row", 0);
  const int old_world = t.at("world_size");
  const int world = run.in.control.world_size();
  restore_position(run, t);
  const auto random = checkpoint.extra.find(fmt::format("random/{}", run.in.control.rank()));
  if (old_world == world && random != checkpoint.extra.end())
    restore_random_state(run, bytes_of(random->second));
  for (Callback* callback : run.in.callbacks) callback->load(checkpoint);
  if (run.is_main()) {
    // Not before: what does not fit leaves everything as it was.
    if (run.settings.resume == "best")
      CheckpointStore::set_aside_after(run.settings.checkpoint_folder, run.step);
    log::info("resumed from {}: epoch {}, batch {}, step {}", shown_path(found->folder),
              run.epoch + 1, run.batch, run.step);  // people count epochs from 1
    tell_about_batch(run, old_world, t.value("accumulate", 1));
  }
  return true;
}

}  // namespace tutti::trainer
