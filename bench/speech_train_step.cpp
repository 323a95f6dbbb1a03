// Time of one training step of a small recogniser on one CPU thread: 32 utterances of 1.5 s.
//
//   build/bin/bench_speech_train_step --benchmark_min_time=3
//
// speech_train_step.py does the same steps with ESPnet's own modules.
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include "tutti/speech/models/asr_model.h"

namespace {

using namespace tutti::speech;

AsrSettings demo_settings(std::int64_t size, std::int64_t blocks, bool with_decoder,
                          const std::string& input_layer) {
  AsrSettings settings;
  settings.vocab_size = 40;
  settings.sos_id = settings.eos_id = 39;
  settings.frontend.win_length = 400;
  settings.frontend.hop_length = 160;
  settings.specaug = SpecAugmentSettings{.time_mask_width_ratio_range = std::pair{0.0, 0.05}};
  settings.encoder = {.output_size = size,
                      .attention_heads = 4,
                      .linear_units = 4 * size,
                      .num_blocks = blocks,
                      .macaron = true,
                      .conv_kernel = 15};
  settings.encoder.input_layer = input_layer;
  settings.decoder = {.attention_heads = 4, .linear_units = 4 * size, .num_blocks = 2};
  settings.decoder_kind = with_decoder ? AsrDecoderKind::kAttention : AsrDecoderKind::kNone;
  settings.ctc_weight = with_decoder ? 0.3 : 1.0;
  return settings;
}

void train_step(benchmark::State& state) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  AsrModel model(Build{}, demo_settings(state.range(0), state.range(1), state.range(2) != 0,
                                        state.range(3) == 0 ? "conv2d" : "conv1d3"));
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-3));
  Lengths samples, tokens;
  for (int b = 0; b < 32; ++b) {
    samples.push_back(24000 - 100 * b);
    tokens.push_back(8);
  }
  const AsrBatch batch{torch::randn({32, 24000}) * 0.1, samples,
                       torch::randint(1, 39, {32, 8}, torch::kInt64), tokens};
  model->train();
  for (auto _ : state) {
    optimizer.zero_grad();
    model->forward(batch).loss.backward();
    optimizer.step();
  }
  state.counters["audio_s_per_s"] =
      benchmark::Counter(48.0, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(train_step)
    ->ArgNames({"size", "blocks", "decoder", "conv1d3"})
    ->Args({96, 2, 0, 0})
    ->Args({96, 2, 0, 1})
    ->Args({144, 4, 0, 0})
    ->Args({144, 4, 0, 1})
    ->Args({144, 4, 1, 0})
    ->Args({144, 4, 1, 1})
    ->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
