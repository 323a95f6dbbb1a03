// Time per utterance of encoder + search with random weights: bench_decode --size owsm --device cuda ...
//
//   bench_decode --size owsm --device cuda --dtype bfloat16 --batch 64 --beam 5 --ctc 0.3 --tokens 32
//   bench_decode --size librispeech --device cuda --dtype bfloat16 --batch 32 --searches "1:0 5:0 5:0.3 ctc"
//   bench_decode --model FOLDER --lengths FILE --tokens 0.125 ...     // see decode_folder.sh
//
// Inputs are 30 s of noise; with --lengths (a file with the seconds of an utterance in each line) as many
// utterances as it has lines, longest first, --batch at a time, each batch as long as its longest.
// Random weights may end a hypothesis early, so <eos> is made unlikely: every utterance takes exactly
// --tokens steps, as the ESPnet baseline does; below 1 that is tokens per frame of the encoder.
// --searches are pairs beam:ctc_weight, or `ctc` for the best token of CTC in each frame, one after the other
// with one model. --model takes the sizes (and random weights of its own) of a folder in ESPnet's layout.
// Prints one JSON line per search: the median of --repeats passes after --warm ones, and their range; with --lengths also
// what each utterance took of them, in the file's order: an equal part of its batch (`ms_of_each`).
// --trace writes a profile of one more batch for a trace viewer.
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "bench/gpu_bench.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/text.h"
#include "tutti/speech/decoding/asr_search.h"
#include "tutti/speech/espnet/flat_config.h"
#include "tutti/speech/models/attention.h"
#include "tutti/speech/models/model_config.h"
#include "tutti/trainer/cpu/processor.h"

namespace {

using namespace tutti;
using namespace tutti::speech;
using Clock = std::chrono::steady_clock;

AsrSettings settings_of(const std::string& size) {
  AsrSettings s;
  const bool owsm = size == "owsm", librispeech = size == "librispeech";
  if (!owsm && !librispeech && size != "tiny")
    throw ConfigError(fmt::format("--size: got {}, expected owsm, librispeech or tiny", size));
  const std::int64_t width = owsm ? 1024 : librispeech ? 256 : 64, units = 4 * width;
  s.vocab_size = owsm ? 50002 : librispeech ? 5000 : 500;
  s.sos_id = s.eos_id = s.vocab_size - 1;
  s.frontend.win_length = 400;
  s.frontend.hop_length = 160;
  s.frontend.n_mels = s.encoder.input_size = librispeech ? 80 : 128;
  s.encoder.kind = EncoderKind::kEBranchformer;
  s.encoder.output_size = s.decoder.size = width;
  s.encoder.attention_heads = s.decoder.attention_heads = owsm ? 16 : 4;
  s.encoder.linear_units = s.encoder.cgmlp_linear_units = units;
  s.decoder.linear_units = librispeech ? 2048 : units;
  s.encoder.num_blocks = owsm ? 18 : librispeech ? 12 : 2;
  s.decoder.num_blocks = owsm ? 18 : librispeech ? 6 : 2;
  s.encoder.input_layer = librispeech ? "conv2d" : "conv2d8";
  s.encoder.positions = librispeech ? PositionKind::kRelative : PositionKind::kAbsolute;
  s.encoder.macaron = true;
  s.encoder.merge_conv_kernel = 31;
  s.decoder.vocab_size = s.vocab_size;
  return s;
}

AsrSettings settings_in(const std::string& folder) {
  config::Problems problems;
  const AsrSettings settings =
      read_asr_settings(read_training_config(open_model_folder(folder), problems), problems);
  problems.throw_if_any();
  return settings;
}

torch::ScalarType dtype_of(const std::string& name) {
  if (name == "float32") return torch::kFloat32;
  if (name == "bfloat16") return torch::kBFloat16;
  if (name == "float16") return torch::kFloat16;
  throw ConfigError(fmt::format("--dtype: got {}, expected float32, bfloat16 or float16", name));
}

struct Search {
  std::string name;
  std::optional<BeamSearch> beam;  // none: the best token of CTC in each frame
};

// "5:0.3": beam and weight of CTC; "ctc".
Search search_of(const std::string& name, AsrModel& model, double tokens) {
  if (name == "ctc") return {name, std::nullopt};
  const auto parts = split(name, ':');
  if (parts.size() != 2)
    throw ConfigError(fmt::format("--searches: got {}, expected BEAM:CTC_WEIGHT or ctc", name));
  return {name, BeamSearch(search_model(model), {.beam_size = std::stoll(parts[0]),
                                                 .ctc_weight = std::stod(parts[1]),
                                                 .maxlenratio = tokens < 1 ? tokens : -tokens})};
}

// Until the tokens of all utterances are on the host; how many those are.
std::size_t find_tokens(const Search& search, AsrModel& model, const Encoded& encoded) {
  std::size_t count = 0;
  if (search.beam) {
    for (const SearchResult& result : search.beam->decode(encoded.out, encoded.lengths))
      count += result.nbest.at(0).tokens.size();
    return count;
  }
  const torch::Tensor best_UT =
      model->ctc->log_probs(encoded.out).argmax(-1).to(torch::kCPU).contiguous();
  for (std::size_t u = 0; u < encoded.lengths.size(); ++u) {
    const std::int64_t* row =
        best_UT.data_ptr<std::int64_t>() + static_cast<std::int64_t>(u) * best_UT.size(1);
    for (std::int64_t t = 0; t < encoded.lengths[u]; ++t)
      count += row[t] != model->settings().blank_id && (t == 0 || row[t] != row[t - 1]);
  }
  return count;
}

struct Batch {
  std::vector<std::size_t> items;  // lines of --lengths
  Lengths lengths;                 // samples
};

std::vector<Batch> batches_of(std::vector<double> seconds, std::size_t size, int rate) {
  std::vector<std::size_t> order(seconds.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return seconds[a] > seconds[b]; });
  std::vector<Batch> batches;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i % size == 0) batches.emplace_back();
    batches.back().items.push_back(order[i]);
    batches.back().lengths.push_back(static_cast<std::int64_t>(seconds[order[i]] * rate));
  }
  return batches;
}

double middle_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.at(values.size() / 2);
}

int run(bench::Options args) {
  const torch::Device device(args["device"]);
  const torch::ScalarType dtype = dtype_of(args["dtype"]);
  const std::size_t batch_size = std::stoull(args["batch"]);
  const int repeats = std::stoi(args["repeats"]), warm = std::stoi(args["warm"]);
  if (batch_size < 1 || repeats < 1)
    throw ConfigError(
        fmt::format("--batch, --repeats: got {}, {}, expected at least 1", batch_size, repeats));
  std::vector<double> seconds(batch_size, 30.0);
  if (!args["lengths"].empty()) {
    seconds.clear();
    for (const std::string& line : split(read_file(args["lengths"]), '\n'))
      if (!line.empty()) seconds.push_back(std::stod(line));
    if (seconds.empty()) throw DataError(args["lengths"] + ": no lengths in it");
  }
  // As a recogniser does.
  if (device.is_cpu()) trainer::keep_freed_memory();
  attend_without_plans();
  const torch::NoGradGuard no_grad;
  torch::manual_seed(0);
  AsrModel model(Build{device},
                 args["model"].empty() ? settings_of(args["size"]) : settings_in(args["model"]));
  model->eval();
  for (auto& parameter : model->decoder->named_parameters())
    if (parameter.key() == "output_layer.bias") parameter.value()[model->settings().eos_id] -= 1e4;
  model->encoder->to(dtype);
  model->encoder->set_replaying(true);
  model->decoder->to(dtype);
  model->ctc->to(dtype);
  const std::vector<Batch> batches = batches_of(seconds, batch_size, model->settings().frontend.fs);
  const torch::Tensor noise =
      0.1 *
      torch::randn({static_cast<std::int64_t>(batches[0].items.size()), batches[0].lengths[0]},
                   torch::device(device));
  const auto wait = [&] {
    if (device.is_cuda()) torch::cuda::synchronize();
  };
  const auto speech_of = [&](const Batch& batch) {
    return noise.narrow(0, 0, static_cast<std::int64_t>(batch.items.size()))
        .narrow(1, 0, batch.lengths[0])
        .contiguous();
  };
  if (args["searches"].empty()) args["searches"] = args["beam"] + ":" + args["ctc"];
  for (const std::string& name : split(args.at("searches"), ' ')) {
    const Search search = search_of(name, model, std::stod(args["tokens"]));
    std::vector<double> totals, encoders;                     // ms per utterance, by pass
    std::vector<std::vector<double>> passes(seconds.size());  // ms, by utterance and pass
    std::size_t tokens = 0;
    for (int i = 0; i < warm + repeats; ++i) {
      double total = 0, encoder = 0;
      tokens = 0;
      for (const Batch& batch : batches) {
        const torch::Tensor speech = speech_of(batch);
        wait();
        const auto start = Clock::now();
        const Encoded encoded = model->encode(speech, batch.lengths);
        wait();
        const auto middle = Clock::now();
        tokens += find_tokens(search, model, encoded);
        const std::chrono::duration<double, std::milli> whole = Clock::now() - start,
                                                        before = middle - start;
        total += whole.count();
        encoder += before.count();
        if (i >= warm)
          for (const std::size_t item : batch.items)
            passes[item].push_back(whole.count() / static_cast<double>(batch.items.size()));
      }
      if (i < warm) continue;
      totals.push_back(total / static_cast<double>(seconds.size()));
      encoders.push_back(encoder / static_cast<double>(seconds.size()));
    }
    if (!args["trace"].empty()) {
      const torch::Tensor speech = speech_of(batches[0]);
      bench::start_profile();
      find_tokens(search, model, model->encode(speech, batches[0].lengths));
      wait();
      bench::save_profile(args["trace"]);
    }
    if (search.beam) {
      args["beam"] = split(name, ':')[0];
      args["ctc"] = split(name, ':')[1];
    } else {
      args["beam"] = args["ctc"] = "";
    }
    Json out;
    for (const auto& [key, value] : args)
      if (!value.empty() && key != "searches") out[key] = value;
    out["search"] = name;
    out["ms_per_utterance"] = middle_of(totals);
    out["ms_range"] = {*std::min_element(totals.begin(), totals.end()),
                       *std::max_element(totals.begin(), totals.end())};
    out["encoder_ms"] = middle_of(encoders);
    out["tokens_out"] = static_cast<double>(tokens) / static_cast<double>(seconds.size());
    if (!args["lengths"].empty()) {
      Json& each = out["ms_of_each"] = Json::array();
      for (const auto& of_passes : passes) each.push_back(middle_of(of_passes));
    }
    fmt::print("{}\n", to_json_line(out));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(bench::parse_options(argc, argv,
                                    {{"size", "tiny"},
                                     {"model", ""},
                                     {"device", "cpu"},
                                     {"dtype", "float32"},
                                     {"batch", "2"},
                                     {"lengths", ""},
                                     {"beam", "5"},
                                     {"ctc", "0.3"},
                                     {"searches", ""},
                                     {"tokens", "32"},
                                     {"warm", "2"},
                                     {"repeats", "3"},
                                     {"trace", ""}}));
  } catch (const std::exception&) {
    return report_and_exit_code();
  }
}
