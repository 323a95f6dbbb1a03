// Time and memory of one training step through the trainer's own loop, on a GPU: the
// LibriSpeech-100 E-Branchformer (38.5 M parameters) with random speech, as the ESPnet2 + Lightning
// baseline does it.
//
//   bench_gpu_train --batch 32 --precision bf16-mixed --steps 60 [--graphs false] [--trace step.json]
//   bench_gpu_train --precision 32 --matmul high                            // TF32
//   bench_gpu_train --batch 8 --seconds 15.39 --tokens 47 --steps 210 --losses true   // nothing to pad
//   tutti launch --nproc_per_node 8 -- bench_gpu_train --batch 32             // DDP, a GPU for each
//   bench_gpu_train --strategy ddp                                  // a world of one: what DDP adds
//
// More ranks than GPUs share them over tests/trainer/nccl_standin: to see that it works, not how fast.
// Prints one JSON line: the median step, with the device waited for after each step as the baseline
// does. --trace writes a profile of three steps for a trace viewer. --losses adds the mean losses of
// every ten steps: how far runs drift apart.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>

#include "bench/gpu_bench.h"
#include "tutti/core/json.h"
#include "tutti/core/log.h"
#include "tutti/launch/rank.h"
#include "tutti/speech/models/asr_trainable.h"
#include "tutti/speech/models/model_config.h"
#include "tutti/trainer/loop.h"
#include "tutti/trainer/world.h"

namespace {

using namespace tutti;
using namespace tutti::speech;
using Clock = std::chrono::steady_clock;

AsrSettings recipe_settings() {
  AsrSettings s;
  s.vocab_size = 5000;
  s.sos_id = s.eos_id = 4999;
  s.frontend.win_length = 400;
  s.frontend.hop_length = 160;
  s.specaug = SpecAugmentSettings{};
  s.specaug->freq_mask_width_range = {0, 27};
  s.specaug->time_mask_width_ratio_range = std::pair{0.0, 0.05};
  s.specaug->num_time_mask = 5;
  s.encoder.kind = EncoderKind::kEBranchformer;
  s.encoder.positions = PositionKind::kRelative;
  s.encoder.output_size = 256;
  s.encoder.attention_heads = 4;
  s.encoder.linear_units = s.encoder.cgmlp_linear_units = 1024;
  s.encoder.num_blocks = 12;
  s.encoder.macaron = true;
  s.encoder.merge_conv_kernel = 31;
  s.encoder.attention_dropout_rate = 0.1;
  s.decoder = {.attention_heads = 4,
               .linear_units = 2048,
               .num_blocks = 6,
               .self_attention_dropout_rate = 0.1,
               .src_attention_dropout_rate = 0.1};
  s.ctc_weight = 0.3;
  s.lsm_weight = 0.1;
  return s;
}

trainer::Batch random_batch(std::int64_t size, double seconds, std::int64_t tokens,
                            std::int64_t vocabulary) {
  const auto samples = static_cast<std::int64_t>(16000 * seconds);
  trainer::Batch batch;
  batch.tensors["speech"] = (0.1 * torch::randn({size, samples})).pin_memory();
  batch.tensors["speech_lengths"] = torch::full({size}, samples, torch::kInt64);
  batch.tensors["text"] =
      torch::randint(1, vocabulary - 1, {size, tokens}, torch::kInt64).pin_memory();
  batch.tensors["text_lengths"] = torch::full({size}, tokens, torch::kInt64);
  batch.audio_seconds = static_cast<double>(size) * seconds;
  batch.utt_ids.assign(static_cast<std::size_t>(size), "random");
  return batch;
}

class Losses final : public trainer::Logger {
 public:
  void log(const trainer::LogPoint&, const trainer::Metrics& metrics) override {
    if (const auto loss = metrics.find("train/loss"); loss != metrics.end())
      all.push_back(loss->second);
  }
  void flush() override {}
  std::vector<double> all;
};

// Waits for the device after every step and notes the time; records a profile of some steps.
class StepClock final : public trainer::Callback {
 public:
  StepClock(std::int64_t trace_from, std::string trace_file)
      : trace_from_(trace_from), trace_file_(std::move(trace_file)) {}
  void on_step(const trainer::Moment& moment) override {
    torch::cuda::synchronize();
    times.push_back(Clock::now());
    if (trace_file_.empty()) return;
    if (moment.step == trace_from_)
      bench::start_profile();
    else if (moment.step == trace_from_ + 3)
      bench::save_profile(trace_file_);
  }
  std::vector<Clock::time_point> times;

 private:
  std::int64_t trace_from_;
  std::string trace_file_;
};

int run(bench::Options args) {
  const launch::RankContext rank =
      launch::detect(launch::current_environment(), {.accelerator = "cpu"}).rank;
  log::configure({.rank = rank.rank});
  const std::string device = fmt::format("cuda:{}", rank.local_rank % c10::cuda::device_count());
  trainer::World world = trainer::join_world(rank, {.device = device});
  torch::manual_seed(0);
  const std::int64_t steps = std::stoll(args["steps"]), size = std::stoll(args["batch"]);
  const AsrSettings settings = recipe_settings();
  const AsrModel recipe(Build{torch::Device(device)}, settings);
  AsrTrainable model(recipe);
  std::vector<trainer::Batch> batches;
  for (std::int64_t i = 0; i < 8 * rank.world_size; ++i)
    batches.push_back(random_batch(size, std::stod(args["seconds"]), std::stoll(args["tokens"]),
                                   settings.vocab_size));
  trainer::MemorySource source(std::move(batches), rank.rank, rank.world_size);
  const auto strategy =
      args["strategy"] == "ddp"  // also in a world of one, where users get `single`
          ? trainer::make_ddp_strategy(*world.collectives, *world.control, {})
          : trainer::make_strategy(args["strategy"], world);
  StepClock clock(steps - 5, args["trace"]);
  trainer::LoopSettings loop;
  loop.max_steps = steps;
  loop.precision = trainer::parse_precision(args["precision"]);
  loop.gradient_clip_val = 5;
  loop.cuda_graphs = args["graphs"];
  loop.float32_matmul_precision = args["matmul"];
  loop.device = device;
  loop.show_progress = false;
  Losses losses;
  loop.log_every_n_steps = args["losses"] == "true" ? 10 : 0;
  trainer::OptimizerSpec adam;
  adam.options.lr = 2e-4;
  adam.options.weight_decay = 1e-6;
  trainer::FitInputs inputs{.model = model,
                            .train = source,
                            .strategy = *strategy,
                            .control = *world.control,
                            .settings = loop,
                            .optimizers = {adam},
                            .callbacks = {&clock},
                            .loggers = {&losses}};
  trainer::fit(inputs);
  world.control->finish();
  if (rank.rank != 0) return 0;

  std::vector<double> milliseconds;  // without those at the start, and those of the profile
  for (std::size_t i = std::min<std::size_t>(21, clock.times.size() / 2);
       i + 5 < clock.times.size(); ++i)
    milliseconds.push_back(
        std::chrono::duration<double, std::milli>(clock.times[i] - clock.times[i - 1]).count());
  if (milliseconds.empty())
    throw ConfigError(fmt::format("--steps: got {}, expected at least 11", steps));
  std::sort(milliseconds.begin(), milliseconds.end());
  const double median = milliseconds.at(milliseconds.size() / 2);
  const auto memory = c10::cuda::CUDACachingAllocator::getDeviceStats(at::Device(device).index());
  Json out;
  for (const auto& [key, value] : args) out[key] = value;
  out["parameters"] = count_parameters(settings);
  out["ms_per_step"] = median;
  out["audio_seconds_per_second"] =
      static_cast<double>(size) * std::stod(args["seconds"]) / median * 1e3;
  out["ranks"] = rank.world_size;
  out["recorded_passes"] = recipe->num_recorded_passes();
  out["peak_gib"] = static_cast<double>(memory.allocated_bytes[0].peak) / (1LL << 30);
  out["reserved_gib"] = static_cast<double>(memory.reserved_bytes[0].current) / (1LL << 30);
  if (args["losses"] == "true") out["loss"] = losses.all;
  fmt::print("{}\n", to_json_line(out));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(bench::parse_options(argc, argv,
                                    {{"batch", "32"},
                                     {"seconds", "14.8"},
                                     {"tokens", "45"},
                                     {"steps", "70"},
                                     {"precision", "bf16-mixed"},
                                     {"graphs", "auto"},
                                     {"matmul", "highest"},
                                     {"strategy", "auto"},
                                     {"losses", "false"},
                                     {"trace", ""}}));
  } catch (const std::exception&) {
    return report_and_exit_code();
  }
}
