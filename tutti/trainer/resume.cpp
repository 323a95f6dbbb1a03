// Seeds, and the way into and out of checkpoints.
#include <ATen/Context.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <cstring>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/random.h"
#include "tutti/trainer/run.h"

namespace tutti::trainer {
namespace {

at::Tensor generator_state(at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(at::Device device, const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

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
  TensorMap of(const TensorMap& tensors) {
    TensorMap out;
    for (const auto& [name, tensor] : tensors) {
      const at::Tensor from = tensor.detach();
      if (from.device().is_cpu()) {
        out[name] = from.clone(at::MemoryFormat::Contiguous);
        continue;
      }
      device_ = from.device();
      out[name] = at::empty(from.sizes(), from.options().device(at::kCPU).pinned_memory(true));
      out[name].copy_(from, /*non_blocking=*/true);
    }
    return out;
  }
  void arrived() const {
    if (device_) SideStream::synchronize(SideStream(*device_).run([] {}));
  }

 private:
  std::optional<at::Device> device_;
};

// One blob per rank, so that a run resumed with the same world size draws the same numbers.
std::vector<std::string> gather_random_states(Run& run) {
  std::string mine = bytes_of(generator_state(at::kCPU));
  const auto cpu_bytes = static_cast<std::uint32_t>(mine.size());
  mine.insert(0, reinterpret_cast<const char*>(&cpu_bytes), sizeof(cpu_bytes));
  if (run.device.is_cuda()) mine += bytes_of(generator_state(run.device));
  return run.in.control.all_gather("random state", mine);
}

void restore_random_state(Run& run, const std::string& blob) {
  std::uint32_t cpu_bytes = 0;
  if (blob.size() < sizeof(cpu_bytes)) throw DataError("the checkpoint's random state is damaged");
  std::memcpy(&cpu_bytes, blob.data(), sizeof(cpu_bytes));
  if (cpu_bytes > blob.size() - sizeof(cpu_bytes))
    throw DataError("the checkpoint's random state is damaged");
  set_generator_state(at::kCPU, tensor_of(blob.substr(sizeof(cpu_bytes), cpu_bytes)));
  const std::string rest = blob.substr(sizeof(cpu_bytes) + cpu_bytes);
  if (run.device.is_cuda() && !rest.empty()) set_generator_state(run.device, tensor_of(rest));
}

// The newest checkpoint, or the one asked for, as far as this rank needs it.
std::optional<CheckpointStore::Found> find_checkpoint(Run& run) {
  const LoopSettings& settings = run.settings;
  const bool newest = settings.resume == "auto";
  const Placements* placements = run.in.strategy.placements();
  if (!placements) {
    std::optional<CheckpointStore::Found> found;
    if (newest)
      found = CheckpointStore::newest(settings.checkpoint_folder);
    else
      found = CheckpointStore::Found{settings.resume, read_checkpoint(settings.resume)};
    // Ranks read the folder by themselves; a file system that shows them different things is named.
    const std::string seen = found ? found->folder.filename().string() : "none";
    const auto all = run.in.control.all_gather("checkpoint to resume", seen);
    for (std::size_t rank = 1; rank < all.size(); ++rank)
      if (all[rank] != all[0])
        throw DataError(fmt::format("rank {} would resume from '{}', rank 0 from '{}'", rank,
                                    all[rank], all[0]),
                        "default_root_dir must be on a file system all nodes share");
    return found;
  }
  // Rank 0 checks the files for all; then each reads only its parts.
  std::string chosen;
  if (run.is_main() && newest) {
    if (const auto folder = CheckpointStore::newest_folder(settings.checkpoint_folder))
      chosen = folder->filename().string();
  } else if (run.is_main()) {
    check_checkpoint(settings.resume);
    chosen = settings.resume;
  }
  chosen = run.in.control.all_gather("checkpoint to resume", chosen)[0];
  if (chosen.empty()) return std::nullopt;
  const std::filesystem::path folder =
      newest ? settings.checkpoint_folder / chosen : std::filesystem::path(chosen);
  return CheckpointStore::Found{folder, read_checkpoint_parts(folder, part_ranges(*placements))};
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

void save(Run& run, bool epoch_over) {
  if (run.settings.checkpoint_folder.empty()) return;
  const Metrics metrics = std::exchange(run.unsaved_validation, {});
  if (run.saved_step == run.step && metrics.empty() && !epoch_over) return;
  run.in.control.set_phase(fmt::format("saving step {}", run.step));
  const auto random_states = gather_random_states(run);
  // Train sums of other ranks would be lost with their processes.
  MetricSums total = run.epoch_sums;
  total.add(run.interval.merged(run.in.control, "metrics"));
  run.saved_step = run.step;
  run.last_save = std::chrono::steady_clock::now();
  if (!run.store) return;

  Checkpoint checkpoint;
  Snapshot snapshot;
  checkpoint.model = snapshot.of(model_tensors(run));
  Json optimizers = Json::object();
  for (const OptimizerSlot& slot : run.optimizers) {
    const std::string name = slot.name.empty() ? "optimizer" : slot.name;
    for (const auto& [key, tensor] : snapshot.of(slot.optimizer->state()))
      checkpoint.optimizer[name + "/" + key] = tensor;
    optimizers[name] = {{"schedule", slot.schedule.state()}};
  }
  for (std::size_t rank = 0; rank < random_states.size(); ++rank)
    checkpoint.extra[fmt::format("random/{}", rank)] = tensor_of(random_states[rank]);
  const auto world = run.in.control.world_size();
  checkpoint.trainer = {{"epoch", epoch_over ? run.epoch + 1 : run.epoch},
                        {"batch", epoch_over ? 0 : run.batch},
                        {"world_size", world},
                        {"step", run.step},
                        {"window", run.window},
                        {"skipped", run.skipped},
                        {"scaler", run.scaler.state()},
                        {"optimizers", optimizers},
                        {"epoch_sums", epoch_over ? Json::object() : total.to_json()},
                        {"callbacks", Json::object()}};
  for (const Callback* callback : run.in.callbacks) callback->save(checkpoint);
  snapshot.arrived();
  std::optional<SharedSave> shared;
  if (const Placements* placements = run.in.strategy.placements()) {
    mark_parts(*placements, checkpoint);
    shared = agree_on_save(checkpoint, run.in.control);
  }
  const bool keep = run.settings.keep_saves &&
                    (!epoch_over || (run.epoch + 1) % run.settings.keep_every_n_epochs == 0);
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
  for (const auto& [name, tensor] : checkpoint.model)
    if (held.count(name) || !placements || !placements->count(name)) model[name] = tensor;
  load_tensors(model, held, found->folder.string());
  for (OptimizerSlot& slot : run.optimizers) {
    const std::string name = slot.name.empty() ? "optimizer" : slot.name;
    std::map<std::string, at::Tensor> state;
    for (const auto& [key, tensor] : checkpoint.optimizer)
      if (key.rfind(name + "/", 0) == 0) state[key.substr(name.size() + 1)] = tensor;
    slot.optimizer->load_state(state);
    const Json& saved = checkpoint.trainer["optimizers"];
    if (saved.contains(name)) slot.schedule.load(saved[name]["schedule"]);
  }
  const Json& t = checkpoint.trainer;
  run.epoch = t.at("epoch");
  run.batch = t.at("batch");
  run.step = t.at("step");
  run.window = t.at("window");
  run.skipped = t.at("skipped");
  run.saved_step = run.step;
  run.scaler.load(t.at("scaler"));
  run.epoch_sums = MetricSums::from_json(t.at("epoch_sums"));
  const int old_world = t.at("world_size");
  const int world = run.in.control.world_size();
  // The epoch's global list is consumed up to batch x old_world; up to world - 1 batches are left
  // out so that all ranks start at the same place.
  run.batch = (run.batch * old_world + world - 1) / world;
  const auto random = checkpoint.extra.find(fmt::format("random/{}", run.in.control.rank()));
  if (old_world == world && random != checkpoint.extra.end())
    restore_random_state(run, bytes_of(random->second));
  for (Callback* callback : run.in.callbacks) callback->load(checkpoint);
  if (run.is_main()) {
    log::info("resumed from {}: epoch {}, batch {}, step {}", found->folder.string(), run.epoch,
              run.batch, run.step);
    if (old_world != world)
      log::info("the world size changed from {} to {}: dropout masks will differ", old_world,
                world);
  }
  return true;
}

}  // namespace tutti::trainer
