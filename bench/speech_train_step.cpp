// A small recogniser on one CPU thread: the time of one training step, and of decoding; both with
// 32 utterances of 1.5 s.
//
//   build/bin/bench_speech_train_step --benchmark_min_time=3
//
// speech_train_step.py does the same with ESPnet's own modules.
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include "tutti/speech/decoding/asr_search.h"
#include "tutti/speech/decoding/ctc_search.h"
#include "tutti/speech/models/asr_model.h"
#include "tutti/trainer/cpu/processor.h"

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

Lengths num_samples() {
  Lengths samples;
  for (int b = 0; b < 32; ++b) samples.push_back(24000 - 100 * b);
  return samples;
}

void train_step(benchmark::State& state) {
  torch::manual_seed(1);
  AsrModel model(Build{}, demo_settings(state.range(0), state.range(1), state.range(2) != 0,
                                        state.range(3) == 0 ? "conv2d" : "conv1d3"));
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-3));
  const AsrBatch batch{torch::randn({32, 24000}) * 0.1, num_samples(),
                       torch::randint(1, 39, {32, 8}, torch::kInt64), Lengths(32, 8)};
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

// Eight at a time, as the recipe for digits decodes. beam:0 is the best token of CTC in each frame;
// else decoder and CTC search for 8 tokens (random weights would end anywhere).
void decode(benchmark::State& state) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(1);
  const std::int64_t beam = state.range(0), together = state.range(1);
  AsrModel model(Build{}, demo_settings(144, 4, /*with_decoder=*/true, "conv2d"));
  model->eval();
  for (auto& parameter : model->decoder->named_parameters())
    if (parameter.key() == "output_layer.bias") parameter.value()[model->settings().eos_id] -= 1e4;
  const BeamSearch search(search_model(model),
                          {.beam_size = std::max<std::int64_t>(1, beam), .maxlenratio = -8});
  const torch::Tensor speech = torch::randn({32, 24000}) * 0.1;
  const Lengths samples = num_samples();
  for (auto _ : state) {
    for (std::int64_t first = 0; first < 32; first += together) {
      const Lengths lengths(samples.begin() + first, samples.begin() + first + together);
      const Encoded encoded =
          model->encode(speech.narrow(0, first, together).narrow(1, 0, lengths[0]), lengths);
      if (beam > 0) {
        benchmark::DoNotOptimize(search.decode(encoded.out, encoded.lengths));
        continue;
      }
      const torch::Tensor log_probs_BTV = model->ctc->log_probs(encoded.out);
      for (std::int64_t b = 0; b < together; ++b)
        benchmark::DoNotOptimize(
            ctc_greedy({log_probs_BTV[b].data_ptr<float>(),
                        static_cast<std::size_t>(encoded.lengths[static_cast<std::size_t>(b)]),
                        static_cast<std::size_t>(log_probs_BTV.size(2))}));
    }
  }
}
BENCHMARK(decode)
    ->ArgNames({"beam", "together"})
    ->ArgsProduct({{0, 5}, {8, 1}})
    ->Unit(benchmark::kMillisecond);

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  tutti::trainer::choose_matrix_kernels();
  tutti::trainer::keep_freed_memory();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
