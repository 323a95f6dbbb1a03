// Data-parallel training of one model by several processes (or one, on a GPU), through the
// trainer's own loop. The twins bench/trainer_ddp.py (torch's DistributedDataParallel) and
// bench/trainer_lightning.py do the same work.
//
//   bench_trainer_ddp [world=2] [steps=100] [model=mlp|transformer] [hidden=1024] [batch=32]
//                     [device=cpu] [precision=32] [start=SECONDS]
//
// Prints one JSON line: the mean step after ten, peak memory of rank 0, and with `start` (the
// clock, in seconds since 1970, when the command was given) the time to the first step.
#include <fmt/format.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <map>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/log.h"
#include "tutti/core/subprocess.h"
#include "tutti/trainer/loop.h"
#include "tutti/trainer/torch_version.h"
#include "tutti/trainer/world.h"

namespace tutti::trainer {
namespace {

using Options = std::map<std::string, std::string>;
using Clock = std::chrono::steady_clock;
constexpr std::int64_t kWarmUp = 10, kFrames = 200, kFeatures = 80;

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(int hidden)
      : net(register_module(
            "net", torch::nn::Sequential(torch::nn::Linear(kFeatures, hidden), torch::nn::ReLU(),
                                         torch::nn::Linear(hidden, hidden), torch::nn::ReLU(),
                                         torch::nn::Linear(hidden, hidden), torch::nn::ReLU(),
                                         torch::nn::Linear(hidden, kFeatures)))) {}
  torch::Tensor forward(const torch::Tensor& x) { return net->forward(x); }
  torch::nn::Sequential net;
};

// Attention by torch's own kernel where it has one, so that all twins compute with the same.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int width)
      : norm1(register_module("norm1", torch::nn::LayerNorm(std::vector<std::int64_t>{width}))),
        qkv(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        proj(register_module("proj", torch::nn::Linear(width, width))),
        norm2(register_module("norm2", torch::nn::LayerNorm(std::vector<std::int64_t>{width}))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))) {}
  torch::Tensor forward(const torch::Tensor& x_BTD) {
    const auto b = x_BTD.size(0), t = x_BTD.size(1), d = x_BTD.size(2);
    const auto parts = qkv->forward(norm1->forward(x_BTD)).view({b, t, 3, kHeads, d / kHeads});
    const auto part = [&](int i) { return parts.select(2, i).transpose(1, 2); };
#if TUTTI_TORCH_AT_LEAST(2, 0)
    const auto mixed = at::scaled_dot_product_attention(part(0), part(1), part(2));
#else
    const auto scores = part(0).matmul(part(1).transpose(-2, -1)) / std::sqrt(d / kHeads);
    const auto mixed = scores.softmax(-1).matmul(part(2));
#endif
    const auto y = x_BTD + proj->forward(mixed.transpose(1, 2).reshape({b, t, d}));
    return y + down->forward(torch::relu(up->forward(norm2->forward(y))));
  }
  static constexpr std::int64_t kHeads = 4;
  torch::nn::LayerNorm norm1;
  torch::nn::Linear qkv, proj;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

// Twelve layers, no dropout.
struct TransformerImpl : torch::nn::Module {
  explicit TransformerImpl(int width)
      : in(register_module("in", torch::nn::Linear(kFeatures, width))),
        layers(register_module("layers", torch::nn::ModuleList())),
        out(register_module("out", torch::nn::Linear(width, kFeatures))) {
    for (int i = 0; i < 12; ++i) layers->push_back(Block(width));
  }
  torch::Tensor forward(const torch::Tensor& x_BTF) {
    auto x = in->forward(x_BTF);
    for (const auto& layer : *layers) x = layer->as<BlockImpl>()->forward(x);
    return out->forward(x);
  }
  torch::nn::Linear in;
  torch::nn::ModuleList layers;
  torch::nn::Linear out;
};

template <class Net>
class BenchModel final : public ModuleModel {
 public:
  explicit BenchModel(int hidden) : ModuleModel(std::make_shared<Net>(hidden)) {}
  StepOutput training_step(const Batch& batch) override {
    const auto y = module()->template as<Net>()->forward(batch["x"]);
    StepOutput out;
    out.loss = torch::mse_loss(y.to(torch::kFloat), batch["y"]);
    out.weight = static_cast<double>(y.size(0));
    return out;
  }
};

std::vector<Batch> make_batches(const Options& options, int count) {
  const std::int64_t size = std::stoll(options.at("batch"));
  const bool frames = options.at("model") == "transformer";
  std::vector<Batch> batches(static_cast<std::size_t>(count));
  for (Batch& batch : batches)
    for (const char* name : {"x", "y"}) {
      at::Tensor tensor =
          frames ? torch::randn({size, kFrames, kFeatures}) : torch::randn({size, kFeatures});
      batch.tensors[name] = options.at("device") == "cpu" ? tensor : tensor.pin_memory();
    }
  return batches;
}

class Timer final : public Callback {
 public:
  Timer(std::int64_t steps, bool on_gpu) : last_(kWarmUp + steps), on_gpu_(on_gpu) {}
  void on_step(const Moment& moment) override {
    if (moment.step == 1) first_step = seconds_since_1970();
    if (moment.step != kWarmUp && moment.step != last_) return;
    if (on_gpu_) torch::cuda::synchronize();
    (moment.step == kWarmUp ? from_ : to_) = Clock::now();
  }
  double ms_per_step() const {
    return std::chrono::duration<double, std::milli>(to_ - from_).count() /
           static_cast<double>(last_ - kWarmUp);
  }
  static double seconds_since_1970() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
  double first_step = 0;

 private:
  std::int64_t last_;
  bool on_gpu_;
  Clock::time_point from_, to_;
};

int run_rank(const Options& options) {
  const std::string device = options.at("device");
  launch::RankContext rank;
  rank.rank = rank.local_rank = std::stoi(options.at("rank"));
  rank.world_size = rank.local_world_size = std::stoi(options.at("world"));
  rank.run_id = "bench";
  at::set_num_threads(1);
  log::configure({.level = log::Level::kError, .rank = rank.rank});
  World world = join_world(rank, {.run_folder = options.at("dir"), .device = device});
  torch::manual_seed(1);
  const int hidden = std::stoi(options.at("hidden"));
  std::unique_ptr<TrainableModel> model;
  if (options.at("model") == "mlp")
    model = std::make_unique<BenchModel<MlpImpl>>(hidden);
  else
    model = std::make_unique<BenchModel<TransformerImpl>>(hidden);
  MemorySource source(make_batches(options, 8 * rank.world_size), rank.rank, rank.world_size);
  const auto strategy = make_strategy("auto", world);
  const std::int64_t steps = std::stoll(options.at("steps"));
  Timer timer(steps, device != "cpu");
  LoopSettings settings;
  settings.device = device;
  settings.precision = parse_precision(options.at("precision"));
  settings.max_steps = kWarmUp + steps;
  settings.gradient_clip_val = 5;
  settings.show_progress = false;
  FitInputs inputs{.model = *model,
                   .train = source,
                   .strategy = *strategy,
                   .control = *world.control,
                   .settings = settings,
                   .optimizers = {{.options = default_options(OptimizerKind::kAdamW)}},
                   .callbacks = {&timer}};
  fit(inputs);
  world.control->finish();
  if (rank.rank == 0) {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    Json out = {{"who", "tutti"},
                {"ms_per_step", timer.ms_per_step()},
                {"peak_mb", static_cast<double>(usage.ru_maxrss) / 1024}};
    const double start = std::stod(options.at("start"));
    if (start > 0) out["first_step_s"] = timer.first_step - start;
    fmt::print("{}\n", to_json_line(out));
  }
  return 0;
}

int start_ranks(const Options& options) {
  const TempFolder folder;
  std::vector<Process> processes;
  for (int rank = 0; rank < std::stoi(options.at("world")); ++rank) {
    std::vector<std::string> words = {"/proc/self/exe"};
    for (const auto& [key, value] : options)
      if (key != "rank" && key != "dir") words.push_back(key + "=" + value);
    words.push_back("rank=" + std::to_string(rank));
    words.push_back("dir=" + folder.path().string());
    processes.push_back(Process::start({.argv = words, .env = {{"OMP_NUM_THREADS", "1"}}}));
  }
  bool ok = true;
  for (Process& process : processes) ok &= process.wait().ok();
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace tutti::trainer

int main(int argc, char** argv) {
  int code = 0;
  try {
    tutti::trainer::Options options{{"world", "2"},      {"steps", "100"}, {"model", "mlp"},
                                    {"hidden", "1024"},  {"batch", "32"},  {"device", "cpu"},
                                    {"precision", "32"}, {"start", "0"},   {"rank", ""},
                                    {"dir", ""}};
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      const std::size_t equals = word.find('=');
      if (equals == std::string::npos || options.count(word.substr(0, equals)) == 0)
        throw tutti::ConfigError("unknown option " + word);
      options[word.substr(0, equals)] = word.substr(equals + 1);
    }
    code = options["rank"].empty() ? tutti::trainer::start_ranks(options)
                                   : tutti::trainer::run_rank(options);
  } catch (const std::exception&) {
    code = tutti::report_and_exit_code();
  }
  std::fflush(nullptr);
  std::_Exit(code);  // a transport thread may still be blocked when a peer has died
}
