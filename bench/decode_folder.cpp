// A model in ESPnet's own layout with random weights, and FLAC files to decode with it:
//
//   bench_decode_folder OUT --size owsm --files 1000
//
// OUT/model is what ESPnet's pack leaves (meta.yaml, config.yaml, weights): OWSM v4 medium's sizes, or those of
// LibriSpeech-100's E-Branchformer with words in the place of pieces. OUT/flac and OUT/wav.scp are made-up
// voices, as long as LibriSpeech's test utterances, OUT/seconds their lengths, a line each. See decode_folder.sh.
#include <fmt/format.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/babble.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/random.h"
#include "tutti/core/text.h"
#include "tutti/core/threads.h"
#include "tutti/data/io/audio.h"
#include "tutti/speech/espnet/flat_config.h"
#include "tutti/speech/loading/state_dict.h"
#include "tutti/speech/models/asr_model.h"
#include "tutti/speech/models/model_config.h"

namespace {

using namespace tutti;
using namespace tutti::speech;
namespace fs = std::filesystem;

struct Size {
  bool is_owsm = true;
  bool is_tiny = true;
  std::string task() const { return is_owsm ? "s2t" : "asr"; }
};

// OWSM's list: marks, 1,501 times, words in the place of its pieces, three marks of the decoder.
std::string owsm_tokens(int num_tokens) {
  std::string out;
  int count = 0;
  const auto add = [&](const std::string& token) {
    out += "- " + token + "\n";
    ++count;
  };
  for (const char* mark : {"<blank>", "<unk>", "<na>", "<nospeech>", "<deu>", "<eng>", "<zho>",
                           "<asr>", "<st_eng>", "<notimestamps>"})
    add(mark);
  for (int i = 0; i <= 1500; ++i) add(fmt::format("<{:.2f}>", i * 0.02));
  while (count < num_tokens - 3) add(fmt::format("word{}", count));
  for (const char* mark : {"<sos>", "<eos>", "<sop>"}) add(mark);
  return out;
}

std::string plain_tokens(int num_tokens) {
  std::string out = "- <blank>\n- <unk>\n";
  for (int i = 2; i < num_tokens - 1; ++i) out += fmt::format("- word{}\n", i);
  return out + "- <sos/eos>\n";
}

// config.yaml as S2TTask's training writes it, without the keys that trained the model.
std::string owsm_config(bool is_tiny) {
  const int width = is_tiny ? 32 : 1024, heads = is_tiny ? 2 : 16;
  const int blocks = is_tiny ? 1 : 18, units = 4 * width;
  return fmt::format(
      "init: null\ntoken_type: word\nbpemodel: null\ninput_size: null\nspecaug: null\nfrontend: "
      "default\n"
      "frontend_conf: {{n_fft: 512, win_length: 400, hop_length: 160, n_mels: 128, fs: 16k}}\n"
      "normalize: utterance_mvn\nnormalize_conf: {{}}\nmodel: espnet\n"
      "model_conf: {{ctc_weight: 0.3, lsm_weight: 0.1, length_normalized_loss: false, sym_na: "
      "<na>}}\nencoder: e_branchformer\nencoder_conf: {{output_size: {0}, attention_heads: {1}, "
      "attention_layer_type: selfattn, pos_enc_layer_type: abs_pos, rel_pos_type: latest, "
      "cgmlp_linear_units: {2}, cgmlp_conv_kernel: 31, use_ffn: true, macaron_ffn: true, "
      "merge_conv_kernel: 31, linear_units: {2}, num_blocks: {3}, input_layer: conv2d8}}\n"
      "decoder: transformer\ndecoder_conf: {{attention_heads: {1}, linear_units: {2}, num_blocks: "
      "{3}}}\nctc_conf: {{}}\npreprocessor: s2t\npreprocessor_conf: {{fs: 16000, speech_length: "
      "30, "
      "speech_resolution: 0.02, na_symbol: <na>, notime_symbol: <notimestamps>, first_time_symbol: "
      "<0.00>, last_time_symbol: <30.00>}}\ntoken_list:\n{4}",
      width, heads, units, blocks, owsm_tokens(is_tiny ? 2000 : 50002));
}

// The same of ASRTask, with the values of recipes/librispeech_100 but for the statistics of its features: these
// are the utterance's own, so that no file is needed.
std::string librispeech_config(bool is_tiny) {
  const int width = is_tiny ? 32 : 256, heads = is_tiny ? 2 : 4;
  return fmt::format(
      "init: null\ntoken_type: word\nbpemodel: null\ninput_size: null\nspecaug: null\nfrontend: "
      "default\n"
      "frontend_conf: {{n_fft: 512, win_length: 400, hop_length: 160, fs: 16k}}\n"
      "normalize: utterance_mvn\nnormalize_conf: {{}}\nmodel: espnet\n"
      "model_conf: {{ctc_weight: 0.3, lsm_weight: 0.1, length_normalized_loss: false}}\n"
      "encoder: e_branchformer\nencoder_conf: {{output_size: {0}, attention_heads: {1}, "
      "attention_layer_type: rel_selfattn, pos_enc_layer_type: rel_pos, rel_pos_type: latest, "
      "cgmlp_linear_units: {2}, cgmlp_conv_kernel: 31, use_linear_after_conv: false, "
      "gate_activation: identity, use_ffn: true, macaron_ffn: true, merge_conv_kernel: 31, "
      "linear_units: {2}, num_blocks: {3}, input_layer: conv2d}}\n"
      "decoder: transformer\ndecoder_conf: {{attention_heads: {1}, linear_units: {4}, num_blocks: "
      "{5}}}\nctc_conf: {{}}\npreprocessor: default\npreprocessor_conf: {{}}\ntoken_list:\n{6}",
      width, heads, 4 * width, is_tiny ? 1 : 12, 8 * width, is_tiny ? 1 : 6,
      plain_tokens(is_tiny ? 200 : 5000));
}

void write_model(const fs::path& folder, const Size& size) {
  const std::string task = size.task();
  const fs::path config = fmt::format("exp/{}_train/config.yaml", task),
                 weights = fmt::format("exp/{}_train/valid.acc.ave.pth", task);
  make_folders(folder / config.parent_path());
  write_file_atomic(folder / config,
                    size.is_owsm ? owsm_config(size.is_tiny) : librispeech_config(size.is_tiny));
  write_file_atomic(
      folder / "meta.yaml",
      fmt::format("files: {{{0}_model_file: {1}}}\nyaml_files: {{{0}_train_config: {2}}}\n", task,
                  weights.string(), config.string()));
  config::Problems problems;
  const config::Node training =
      read_training_config(model_folder_of(folder / config, folder / weights, task), problems);
  const AsrSettings settings = read_asr_settings(training, problems);
  problems.throw_if_any();
  torch::manual_seed(1);
  // A CPU takes ten seconds to draw a billion numbers.
  const AsrModel model(Build{torch::cuda::is_available() ? torch::kCUDA : torch::kCPU}, settings);
  torch::NoGradGuard no_grad;
  for (auto& item : model->named_parameters())  // or the first token would end every text
    if (item.key() == "decoder.output_layer.bias") item.value()[settings.eos_id] -= 20.0;
  write_state_dict(folder / weights, state_dict(*model));
}

// As long as LibriSpeech's test utterances: 7 s in the mean, most between 2 and 16, none over the model's window.
double length_of(Random& rng) { return std::clamp(6.2 * std::exp(0.6 * rng.normal()), 1.3, 29.9); }

void write_sounds(const fs::path& out, int files) {
  make_folders(out / "flac");
  std::vector<std::string> scp(static_cast<std::size_t>(files)), lengths(scp.size());
  in_threads(scp.size(), threads_at_most(64), [&](std::size_t i) {
    Random rng({7, i});
    const double seconds = length_of(rng);
    const std::string id = fmt::format("utt{:04}", i);
    const fs::path flac = fs::absolute(out / "flac" / (id + ".flac"));
    write_file_atomic(flac, data::encode_audio({.samples = bench::babble(rng, seconds),
                                                .sample_rate = bench::kBabbleRate},
                                               "flac"));
    scp[i] = id + " " + flac.string();
    lengths[i] = fmt::format("{:.4f}", seconds);
  });
  write_file_atomic(out / "seconds", join(lengths, "\n") + "\n");
  write_file_atomic(out / "wav.scp", join(scp, "\n") + "\n");  // last: all is there
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Makes a model in ESPnet's layout with random weights, and FLAC files.");
  std::string out, size = "tiny_owsm";
  int files = 8;
  app.add_option("OUT", out, "folder")->required();
  app.add_option("--size", size,
                 "OWSM v4 medium (1.02 billion parameters), LibriSpeech-100 (38.5 million)")
      ->check(CLI::IsMember({"owsm", "librispeech", "tiny_owsm", "tiny_librispeech"}));
  app.add_option("--files", files, "FLAC files")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    write_model(fs::path(out) / "model",
                {.is_owsm = size.ends_with("owsm"), .is_tiny = size.starts_with("tiny")});
    write_sounds(out, files);
  } catch (...) {
    return report_and_exit_code();
  }
  return 0;
}
