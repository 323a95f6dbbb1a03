// Time per utterance of encoder + beam search with random weights: bench_decode --size owsm
// --device cuda ...
//
//   bench_decode --size owsm --device cuda --dtype bfloat16 --batch 64 --beam 5 --ctc 0.3 --tokens
//   32
//
// Inputs are 30 s of noise. Random weights may end a hypothesis early, so <eos> is made unlikely:
// every utterance takes exactly --tokens steps, as the ESPnet baseline does. Prints one JSON line;
// the median of --repeats runs. --trace writes a profile of one more run for a trace viewer.
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>

#include "bench/gpu_bench.h"
#include "tutti/core/json.h"
#include "tutti/speech/decoding/asr_search.h"

namespace {

using namespace tutti;
using namespace tutti::speech;
using Clock = std::chrono::steady_clock;

AsrSettings settings_of(const std::string& size) {
  AsrSettings s;
  const bool owsm = size == "owsm";
  if (!owsm && size != "tiny")
    throw ConfigError(fmt::format("--size: got {}, expected owsm or tiny", size));
  const std::int64_t width = owsm ? 1024 : 64, units = 4 * width, blocks = owsm ? 18 : 2,
                     heads = owsm ? 16 : 4;
  s.vocab_size = owsm ? 50002 : 500;
  s.sos_id = s.eos_id = s.vocab_size - 1;
  s.frontend.win_length = 400;
  s.frontend.hop_length = 160;
  s.frontend.n_mels = 128;
  s.encoder.kind = EncoderKind::kEBranchformer;
  s.encoder.input_size = 128;
  s.encoder.output_size = s.decoder.size = width;
  s.encoder.attention_heads = s.decoder.attention_heads = heads;
  s.encoder.linear_units = s.encoder.cgmlp_linear_units = s.decoder.linear_units = units;
  s.encoder.num_blocks = s.decoder.num_blocks = blocks;
  s.encoder.input_layer = "conv2d8";
  s.encoder.positions = PositionKind::kAbsolute;
  s.encoder.macaron = true;
  s.encoder.merge_conv_kernel = 31;
  s.decoder.vocab_size = s.vocab_size;
  return s;
}

torch::ScalarType dtype_of(const std::string& name) {
  if (name == "float32") return torch::kFloat32;
  if (name == "bfloat16") return torch::kBFloat16;
  if (name == "float16") return torch::kFloat16;
  throw ConfigError(fmt::format("--dtype: got {}, expected float32, bfloat16 or float16", name));
}

int run(bench::Options args) {
  const torch::Device device(args["device"]);
  const torch::ScalarType dtype = dtype_of(args["dtype"]);
  const std::int64_t batch = std::stoll(args["batch"]), beam = std::stoll(args["beam"]),
                     tokens = std::stoll(args["tokens"]);
  const double ctc = std::stod(args["ctc"]);
  const int repeats = std::stoi(args["repeats"]);
  const torch::NoGradGuard no_grad;
  torch::manual_seed(0);
  AsrModel model(Build{device}, settings_of(args["size"]));
  model->eval();
  for (auto& parameter : model->decoder->named_parameters())
    if (parameter.key() == "output_layer.bias") parameter.value()[model->settings().eos_id] -= 1e4;
  model->encoder->to(dtype);
  model->encoder->set_replaying(true);
  model->decoder->to(dtype);
  model->ctc->to(dtype);
  const BeamSearch search(
      search_model(model),
      {.beam_size = beam, .ctc_weight = ctc, .maxlenratio = -static_cast<double>(tokens)});
  const torch::Tensor speech = 0.1 * torch::randn({batch, 480000}, torch::device(device));
  const Lengths lengths(static_cast<std::size_t>(batch), 480000);
  const auto wait = [&] {
    if (device.is_cuda()) torch::cuda::synchronize();
  };
  std::vector<double> totals, encoders;
  std::size_t length = 0;
  for (int i = 0; i < repeats + 2; ++i) {
    wait();
    const auto start = Clock::now();
    const Encoded encoded = model->encode(speech, lengths);
    wait();
    const auto middle = Clock::now();
    length = search.decode(encoded.out, encoded.lengths)[0].nbest.at(0).tokens.size();
    const auto end = Clock::now();
    if (i < 2) continue;  // warm-up
    const std::chrono::duration<double, std::milli> total = end - start, encoder = middle - start;
    totals.push_back(total.count() / static_cast<double>(batch));
    encoders.push_back(encoder.count() / static_cast<double>(batch));
  }
  if (!args["trace"].empty()) {
    bench::start_profile();
    const Encoded encoded = model->encode(speech, lengths);
    search.decode(encoded.out, encoded.lengths);
    wait();
    bench::save_profile(args["trace"]);
  }
  std::sort(totals.begin(), totals.end());
  std::sort(encoders.begin(), encoders.end());
  Json out;
  for (const auto& [key, value] : args) out[key] = value;
  out["ms_per_utterance"] = totals[totals.size() / 2];
  out["encoder_ms"] = encoders[encoders.size() / 2];
  out["tokens_out"] = length;
  fmt::print("{}\n", to_json_line(out));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(bench::parse_options(argc, argv,
                                    {{"size", "tiny"},
                                     {"device", "cpu"},
                                     {"dtype", "float32"},
                                     {"batch", "2"},
                                     {"beam", "5"},
                                     {"ctc", "0.3"},
                                     {"tokens", "32"},
                                     {"repeats", "3"},
                                     {"trace", ""}}));
  } catch (const std::exception&) {
    return report_and_exit_code();
  }
}
