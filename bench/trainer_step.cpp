// What the loop costs: fit() against a bare libtorch loop on the same model and data, and against
// itself with a checkpoint every few steps. One process, one thread, in turns, so that drift hits
// all alike. Prints one JSON line, medians over all steps of all rounds: processor time of the
// training thread, which other programs disturb least; for the stall of a save, by how much the
// step after it comes later by the clock.
//
//   bench_trainer_step [rounds=7] [steps=200] [hidden=512] [batch=64] [saves=5]
#include <fmt/format.h>
#include <time.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/log.h"
#include "tutti/trainer/loop.h"

namespace tutti::trainer {
namespace {

using Clock = std::chrono::steady_clock;

// Seconds, by the clock and of this thread on a processor.
struct Moments {
  double wall = 0, cpu = 0;
  static Moments now() {
    timespec cpu{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    return {std::chrono::duration<double>(Clock::now().time_since_epoch()).count(),
            static_cast<double>(cpu.tv_sec) + 1e-9 * static_cast<double>(cpu.tv_nsec)};
  }
  Moments operator-(const Moments& other) const { return {wall - other.wall, cpu - other.cpu}; }
  Moments operator*(double factor) const { return {wall * factor, cpu * factor}; }
};
using Sizes = std::map<std::string, int>;

torch::nn::Sequential make_net(int hidden) {
  torch::manual_seed(1);
  return torch::nn::Sequential(
      torch::nn::Linear(80, hidden), torch::nn::ReLU(), torch::nn::Linear(hidden, hidden),
      torch::nn::ReLU(), torch::nn::Linear(hidden, hidden), torch::nn::ReLU(),
      torch::nn::Linear(hidden, hidden), torch::nn::ReLU(), torch::nn::Linear(hidden, 80));
}

class BenchModel final : public ModuleModel {
 public:
  explicit BenchModel(torch::nn::Sequential net) : ModuleModel(net.ptr()), net_(std::move(net)) {}
  StepOutput training_step(const Batch& batch) override {
    const auto loss = torch::mse_loss(net_->forward(batch["x"]), batch["y"]);
    StepOutput out;
    out.loss = loss;
    out.weight = static_cast<double>(batch["x"].size(0));
    out.stats["loss"] = loss.detach();
    return out;
  }

 private:
  torch::nn::Sequential net_;
};

std::vector<Batch> make_batches(const Sizes& sizes) {
  std::vector<Batch> out(static_cast<std::size_t>(sizes.at("steps")));
  for (Batch& batch : out) {
    batch.tensors["x"] = torch::randn({sizes.at("batch"), 80});
    batch.tensors["y"] = torch::randn({sizes.at("batch"), 80});
  }
  return out;
}

using Steps = std::vector<Moments>;  // what each took

// What a careful hand-written loop does: it too looks whether the loss is a number.
template <class Update>
void bare_loop(torch::nn::Sequential& net, const std::vector<Batch>& batches, Steps& steps,
               Update&& update) {
  Moments before = Moments::now();
  for (const Batch& batch : batches) {
    const auto loss = torch::mse_loss(net->forward(batch["x"]), batch["y"]);
    if (!std::isfinite(loss.item<double>())) continue;
    loss.backward();
    update();
    const Moments after = Moments::now();
    steps.push_back(after - before);
    before = after;
  }
}

class StepTimer final : public Callback {
 public:
  StepTimer(int save_every, Steps& plain, Steps& after_save)
      : save_every_(save_every), plain_(plain), after_save_(after_save) {}
  void on_step(const Moment& moment) override {
    const Moments now = Moments::now();
    const std::int64_t before = moment.step - 1;
    const bool saved = save_every_ > 0 && before % save_every_ == 0;
    if (before > 0) (saved ? after_save_ : plain_).push_back(now - last_);
    last_ = now;
  }

 private:
  int save_every_;
  Steps& plain_;
  Steps& after_save_;
  Moments last_;
};

void our_loop(TrainableModel& model, const std::vector<Batch>& batches,
              const std::filesystem::path& folder, int save_every, Steps& plain,
              Steps& after_save) {
  MemorySource source(batches, 0, 1);
  const auto control = make_local_control();
  const auto strategy = make_single_strategy();
  StepTimer timer(save_every, plain, after_save);
  LoopSettings settings;
  settings.max_epochs = 1;
  settings.show_progress = false;
  settings.save_every_n_steps = save_every;
  if (save_every > 0) settings.checkpoint_folder = folder;
  FitInputs inputs{.model = model,
                   .train = source,
                   .strategy = *strategy,
                   .control = *control,
                   .settings = settings,
                   .optimizers = {{.options = default_options(OptimizerKind::kAdamW)}},
                   .callbacks = {&timer}};
  fit(inputs);
}

double median(const Steps& steps, double Moments::*which) {
  std::vector<double> values;
  for (const Moments& m : steps) values.push_back(m.*which);
  std::sort(values.begin(), values.end());
  return values.at(values.size() / 2);
}

NamedTensors parameters_of(const torch::nn::Sequential& net) {
  NamedTensors named;
  for (const auto& item : net->named_parameters()) named.emplace_back(item.key(), item.value());
  return named;
}

void run(const Sizes& sizes) {
  const auto batches = make_batches(sizes);
  const int hidden = sizes.at("hidden"), saves = sizes.at("saves");
  std::int64_t parameters = 0;
  for (const auto& [name, p] : parameters_of(make_net(hidden))) parameters += p.numel();
  Steps bare, with_torch, loop, saving, after_save, unused;
  for (int round = 0; round < sizes.at("rounds"); ++round) {
    {
      auto net = make_net(hidden);
      const auto ours = make_optimizer(default_options(OptimizerKind::kAdamW), parameters_of(net));
      bare_loop(net, batches, bare, [&] {
        ours->step(1e-3, 1);
        ours->zero_grad();
      });
    }
    {
      auto net = make_net(hidden);
      torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3));
      bare_loop(net, batches, with_torch, [&] {
        adamw.step();
        adamw.zero_grad();
      });
    }
    BenchModel model(make_net(hidden));
    our_loop(model, batches, {}, 0, loop, unused);
    if (saves == 0) continue;
    const TempFolder folder;
    BenchModel again(make_net(hidden));
    our_loop(again, batches, folder.path(), sizes.at("steps") / saves, saving, after_save);
  }
  const auto cpu = [](const Steps& steps) { return median(steps, &Moments::cpu); };
  const auto wall = [](const Steps& steps) { return median(steps, &Moments::wall); };
  Json out = {{"parameters", parameters},
              {"bare_us", cpu(bare) * 1e6},
              {"bare_torch_adamw_us", cpu(with_torch) * 1e6},
              {"fit_us", cpu(loop) * 1e6},
              {"fit_wall_us", wall(loop) * 1e6},
              {"overhead", cpu(loop) / cpu(bare) - 1},
              {"overhead_over_torch_adamw", cpu(loop) / cpu(with_torch) - 1}};
  if (saves > 0) out["stall_ms_per_save"] = (wall(after_save) - wall(saving)) * 1e3;
  fmt::print("{}\n", to_json_line(out));
}

}  // namespace
}  // namespace tutti::trainer

int main(int argc, char** argv) {
  try {
    tutti::trainer::Sizes sizes{
        {"rounds", 7}, {"steps", 200}, {"hidden", 512}, {"batch", 64}, {"saves", 5}};
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      const std::size_t equals = word.find('=');
      if (equals == std::string::npos || sizes.count(word.substr(0, equals)) == 0)
        throw tutti::ConfigError("unknown option " + word);
      sizes[word.substr(0, equals)] = std::stoi(word.substr(equals + 1));
    }
    at::set_num_threads(1);
    tutti::log::configure({.level = tutti::log::Level::kError});
    tutti::trainer::run(sizes);
    return 0;
  } catch (const std::exception&) {
    return tutti::report_and_exit_code();
  }
}
