// One rank of a small training run, for tests that start, kill and stop real processes.
//
//   trainer_rank dir=/tmp/x steps=20 batch=4 accum=1 precision=64-true fault=kill fault_rank=1 ...
//
// RANK, WORLD_SIZE and RUN_ID come from the environment, or with launched=1 all that `tutti launch`
// tells; faults happen in its first life only. Writes DIR/final-<rank>.safetensors and
// prints "done steps=N" at the end. strategy=config trainer='{...}' reads YAML.
#include <fmt/format.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

#ifdef TUTTI_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#endif

#include "tests/trainer/toy.h"
#include "tutti/config/load.h"
#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/launch/rank.h"
#include "tutti/trainer/collectives/trial.h"
#include "tutti/trainer/from_config.h"
#include "tutti/trainer/loop.h"
#include "tutti/trainer/world.h"

namespace tutti::trainer {
namespace {

class Options {
 public:
  Options(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      const std::size_t equals = word.find('=');
      values_[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }
  std::string text(const std::string& key, const std::string& fallback) const {
    const auto found = values_.find(key);
    return found == values_.end() ? fallback : found->second;
  }
  int number(const std::string& key, int fallback) const {
    return std::stoi(text(key, std::to_string(fallback)));
  }

 private:
  std::map<std::string, std::string> values_;
};

std::shared_ptr<toy::NetBase> make_net(const Options& options) {
  const double dropout = std::stod(options.text("dropout", "0"));
  torch::manual_seed(7);
  if (options.number("norm", 0)) return std::make_shared<toy::NormNetImpl>();
  if (const int depth = options.number("depth", 0))
    return std::make_shared<toy::DeepNetImpl>(options.number("width", 16), depth, dropout);
  return std::make_shared<toy::NetImpl>(dropout);
}

// Misbehaves on one rank in one training step (or from it on).
class FaultyModel final : public toy::Model {
 public:
  FaultyModel(const Options& options, const launch::RankContext& rank)
      : toy::Model(make_net(options)),
        fault_(rank.rank == options.number("fault_rank", -1) && rank.restart_count == 0
                   ? options.text("fault", "")
                   : ""),
        step_(options.number("fault_step", 5)),
        rare_(options.number("rare", 0) != 0) {}

  StepOutput training_step(const Batch& batch) override {
    const int call = calls_++;
    if (call >= step_ && !fault_.empty()) {
      if (fault_ == "kill") ::raise(SIGKILL);
      if (fault_ == "stop") ::raise(SIGSTOP);
      while (fault_ == "hang") ::pause();  // alive, and beating
      if (fault_ == "oom") torch::empty({1ll << 60});
      if (fault_ == "throw") throw DataError("utt_13: the transcript is empty");
      if (fault_ == "sigterm" && call == step_) ::raise(SIGTERM);
    }
    StepOutput out = toy::Model::training_step(batch);
    if (call >= step_ && fault_ == "nan") out.loss = out.loss * std::nan("");
    if (call == step_ && fault_ == "inf") {  // a finite loss with one infinite gradient
      const auto w = module()->named_parameters()["first.weight"].flatten()[0];
      out.loss = out.loss + torch::sqrt(w - w.detach());
    }
    // Two batches of four use one parameter only.
    const bool rare = rare_ && std::stoi(batch.utt_ids.at(0).substr(4)) / 2 % 2 == 1;
    if (rare || (call >= step_ && fault_ == "unused")) {
      const auto w = module()->named_parameters()["second.bias"];
      out.loss = torch::mse_loss(batch["x"].sum(), batch["x"].sum() + w.sum());
    }
    return out;
  }
  StepOutput validation_step(const Batch& batch) override {
    if (fault_ == "sigterm_valid" && calls_ >= step_ && !std::exchange(raised_, true))
      ::raise(SIGTERM);
    return toy::Model::training_step(batch);
  }

 private:
  std::string fault_;
  int step_;
  bool rare_;
  int calls_ = 0;
  bool raised_ = false;
};

// Each batch in two: `cut` examples, and the rest.
std::vector<Batch> cut_in_two(const std::vector<Batch>& whole, int cut) {
  std::vector<Batch> out;
  for (const Batch& batch : whole) {
    const int size = static_cast<int>(batch.utt_ids.size());
    for (const auto& [from, to] : {std::pair{0, cut}, std::pair{cut, size}}) {
      Batch part;
      part.utt_ids.assign(batch.utt_ids.begin() + from, batch.utt_ids.begin() + to);
      if (to > from)
        for (const auto& [name, tensor] : batch.tensors)
          part.tensors[name] = tensor.narrow(0, from, to - from).clone();
      out.push_back(std::move(part));
    }
  }
  return out;
}

FsdpOptions fsdp_options(const Options& options) {
  FsdpOptions out;
  out.units.min_params = options.number("unit_min", 50);
  if (const std::string name = options.text("unit_class", ""); !name.empty())
    out.units.classes = {name};
  const std::string sharding = options.text("sharding", "full");
  if (sharding == "grad_op") out.sharding = Sharding::kGradOp;
  if (sharding == "hybrid") out.sharding = Sharding::kHybrid;
  out.cpu_offload = options.number("offload", 0) != 0;
  out.gathers_in_flight = options.number("in_flight", 2);
  if (options.text("gather", "") == "bf16") out.gather_type = at::kBFloat16;
  if (options.text("reduce", "") == "bf16") out.reduce_type = at::kBFloat16;
  return out;
}

// GPUs only: an artificial limit to the device's memory, and a trace of the last steps.
class DeviceTools {
 public:
  explicit DeviceTools(const Options& options) : trace_(options.text("trace", "")) {
#ifdef TUTTI_WITH_CUDA
    const int megabytes = options.number("memory_cap_mb", 0);
    if (megabytes > 0) {
      at::empty({1}, at::TensorOptions().device(options.text("device", "cuda:0")));  // starts CUDA
      // What the whole device has; the cap is given to the allocator as a part of it.
      std::size_t free = 0, total = 0;
      cudaMemGetInfo(&free, &total);
      c10::cuda::CUDACachingAllocator::setMemoryFraction(
          megabytes * 1048576.0 / static_cast<double>(total), 0);
    }
#else
    if (options.number("memory_cap_mb", 0) > 0 || !trace_.empty())
      throw ConfigError("memory_cap_mb and trace need a build with CUDA");
#endif
  }
#ifdef TUTTI_WITH_CUDA
  void start_trace() const {
    if (trace_.empty()) return;
    namespace profiler = torch::autograd::profiler;
    profiler::prepareProfiler(config(), activities());
    profiler::enableProfiler(config(), activities());
  }
  void stop_trace() const {
    if (!trace_.empty()) torch::autograd::profiler::disableProfiler()->save(trace_);
  }

 private:
  static torch::profiler::impl::ProfilerConfig config() {
    return torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::KINETO);
  }
  static std::set<torch::profiler::impl::ActivityType> activities() {
    return {torch::profiler::impl::ActivityType::CPU, torch::profiler::impl::ActivityType::CUDA};
  }
#else
  void start_trace() const {}
  void stop_trace() const {}

 private:
#endif
  std::string trace_;
};

launch::RankContext own_rank(const Options& options) {
  if (options.number("launched", 0))
    return launch::detect(launch::current_environment(), {.accelerator = "cpu"}).rank;
  launch::RankContext rank;
  rank.rank = rank.local_rank = std::stoi(std::getenv("RANK"));
  rank.world_size = std::stoi(std::getenv("WORLD_SIZE"));
  rank.local_world_size = options.number("local_world", rank.world_size);
  rank.run_id = std::getenv("RUN_ID");
  return rank;
}

int run(const Options& options) {
  const launch::RankContext rank = own_rank(options);
  const std::string device = options.text("device", "cpu");
  log::configure({.rank = rank.rank});
  at::set_num_threads(1);
  const std::filesystem::path dir = options.text("dir", "");
  const DeviceTools tools(options);
  const TrainingPlan plan =
      plan_training(config::parse_yaml("optimizer: {_target_: torch.optim.Adam}\ntrainer: " +
                                           options.text("trainer", "{max_epochs: 1}"),
                                       "the test's config"),
                    {.exp_dir = dir, .device = device, .rank = 1});
  WorldOptions meeting = plan.world_options(device);
  meeting.run_folder = dir;
  meeting.backend = options.text("backend", "auto");
  meeting.heartbeat_timeout = std::stod(options.text("heartbeat_timeout", "4"));
  World world = join_world(rank, meeting);
  if (options.number("trial", 0)) check_collectives(world, at::Device(device));
  const std::string fault = options.text("fault", "");
  const bool odd = rank.rank == options.number("fault_rank", -1);

  StopSignals signals;
  FaultyModel faulty(options, rank);
  torch::manual_seed(7);
  toy::Adversaries adversaries(options.number("critic_every", 0));
  const bool two = adversaries.critic_every > 0;
  ModuleModel& model = two ? static_cast<ModuleModel&>(adversaries) : faulty;
  if (fault == "shape" && odd)
    model.module()->as<toy::NetImpl>()->register_parameter("extra", torch::zeros({3, 2}));
  auto data = toy::batches(options.number("batches", 40), options.number("batch", 4));
  auto valid_data = toy::batches(4, 4);
  if (options.text("precision", "64-true") != "64-true")
    for (auto* batches : {&data, &valid_data})
      for (Batch& batch : *batches)
        for (auto& [name, tensor] : batch.tensors) tensor = tensor.to(torch::kFloat);
  if (const int cut = options.number("cut", 0)) data = cut_in_two(data, cut);
  if (fault == "plan" && odd) data.resize(data.size() - 2);
  if (options.number("pad", 0))  // as a plan does with a last group smaller than the world
    while (data.size() % static_cast<std::size_t>(rank.world_size) != 0) data.emplace_back();
  MemorySource train(data, rank.rank, rank.world_size);
  // A stream of unknown length that ends early on one rank.
  struct Stream final : DataSource {
    DataSource& inner;
    bool shorter;
    Stream(DataSource& source, bool is_shorter) : inner(source), shorter(is_shorter) {}
    std::unique_ptr<BatchStream> open(const Position& p) override {
      return inner.open(shorter ? Position{p.epoch, p.batch + 3, p.before} : p);
    }
    std::optional<std::int64_t> num_batches(std::int64_t) const override { return std::nullopt; }
    std::uint64_t plan_hash(std::int64_t) const override { return 0; }
  } stream(train, odd);
  MemorySource valid(valid_data, rank.rank, rank.world_size);
  const std::string chosen = options.text("strategy", "auto");
  const auto strategy = chosen == "config" ? plan.make_strategy(world)
                                           : make_strategy(chosen, world, fsdp_options(options), 25,
                                                           options.number("sync", 0) != 0);

  LoopSettings settings;
  settings.device = device;
  settings.precision = parse_precision(options.text("precision", "64-true"));
  settings.max_epochs = options.number("epochs", -1);
  settings.max_steps = options.number("steps", 20);
  settings.accumulate_grad_batches = options.number("accum", 1);
  if (const std::string name = options.text("recompute", ""); !name.empty())
    settings.recompute = {name};
  settings.gradient_clip_val = std::stod(options.text("clip", "0"));
  settings.max_nonfinite_steps = options.number("max_nonfinite", 100);
  settings.max_out_of_memory_steps = options.number("max_oom", 3);
  settings.save_every_n_steps = options.number("save_every", 0);
  settings.log_every_n_steps = options.number("log_every", 5);
  if (options.number("checkpoints", 0)) settings.checkpoint_folder = dir / "checkpoints";
  OptimizerSpec spec;
  spec.options.lr = 0.01;
  spec.schedule = schedule_spec(config::WarmupLrSettings{.warmup_steps = 10});
  std::vector<OptimizerSpec> optimizers = {spec};
  if (two) {
    optimizers.push_back(spec);
    optimizers[0].name = "maker";
    optimizers[1].name = "critic";
    for (OptimizerSpec& each : optimizers) each.params = {each.name};
    optimizers[1].gradient_clip_val = 0.1;
  }
  FitInputs inputs{.model = model,
                   .train = fault == "exhausted" ? static_cast<DataSource&>(stream) : train,
                   .valid = options.number("no_valid", 0) ? nullptr : &valid,
                   .strategy = *strategy,
                   .control = *world.control,
                   .settings = settings,
                   .optimizers = optimizers,
                   .criteria = {{"valid/loss", Better::kLower, 2}},
                   .signals = &signals};
  const auto ema = make_ema({.decay = 0.9});
  if (options.number("ema", 0)) inputs.callbacks.push_back(ema.get());
  std::unique_ptr<Logger> metrics;
  if (rank.rank == 0 && options.number("metrics", 0)) {
    metrics = make_jsonl_logger(dir / "metrics.jsonl");
    inputs.loggers.push_back(metrics.get());
  }
  tools.start_trace();
  const FitResult result = fit(inputs);
  tools.stop_trace();

  TensorMap final_weights;  // or this rank's parts of them
  if (const Placements* parts = strategy->placements())
    for (const auto& [name, placement] : *parts)
      final_weights[name] = placement.part.detach().to(at::kCPU);
  else
    for (const auto& tensors : {model.named_parameters(), model.named_buffers()})
      for (const auto& [name, p] : tensors) final_weights[name] = p.detach().to(at::kCPU);
  write_safetensors(dir / fmt::format("final-{}.safetensors", rank.rank), final_weights);
  world.control->finish();
  const HeldMemory& held = result.memory;
  std::printf("memory parameters=%lld gradients=%lld optimizer=%lld peak=%lld\n",
              static_cast<long long>(held.parameters), static_cast<long long>(held.gradients),
              static_cast<long long>(held.optimizer), static_cast<long long>(held.peak));
  std::printf("done steps=%d skipped=%d\n", static_cast<int>(result.steps),
              static_cast<int>(result.skipped_steps));
  return static_cast<int>(conclude(result, rank.rank, CommandRunner::system()));
}

}  // namespace
}  // namespace tutti::trainer

int main(int argc, char** argv) {
  int code = 0;
  try {
    code = tutti::trainer::run(tutti::trainer::Options(argc, argv));
  } catch (...) {  // every error becomes text and an exit code here, as in any main
    code = tutti::report_and_exit_code();
  }
  std::fflush(nullptr);
  // A transport thread may still be blocked in a collective with a dead peer.
  std::_Exit(code);
}
