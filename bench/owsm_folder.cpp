// An OWSM folder in ESPnet's own layout with random weights, and FLAC files to decode with it:
//
//   bench_owsm_folder OUT --size medium --files 1000
//
// OUT/model is what ESPnet's pack leaves (meta.yaml, config.yaml, weights); OUT/flac and OUT/wav.scp are
// made-up voices, as long as LibriSpeech's test utterances. See owsm_folder.sh.
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
#include "tutti/data/io/audio.h"
#include "tutti/speech/espnet/flat_config.h"
#include "tutti/speech/loading/state_dict.h"
#include "tutti/speech/models/asr_model.h"
#include "tutti/speech/models/model_config.h"

namespace {

using namespace tutti;
using namespace tutti::speech;
namespace fs = std::filesystem;

// OWSM's list: marks, 1,501 times, words in the place of its pieces, three marks of the decoder.
std::string token_list(int num_tokens) {
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

// config.yaml as S2TTask's training writes it, without the keys that trained the model.
std::string config_of(bool is_medium) {
  const int width = is_medium ? 1024 : 32, heads = is_medium ? 16 : 2;
  const int blocks = is_medium ? 18 : 1, units = 4 * width;
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
      width, heads, units, blocks, token_list(is_medium ? 50002 : 2000));
}

void write_model(const fs::path& folder, bool is_medium) {
  const fs::path config = "exp/s2t_train/config.yaml", weights = "exp/s2t_train/valid.acc.ave.pth";
  make_folders(folder / config.parent_path());
  write_file_atomic(folder / config, config_of(is_medium));
  write_file_atomic(
      folder / "meta.yaml",
      fmt::format("files: {{s2t_model_file: {}}}\nyaml_files: {{s2t_train_config: {}}}\n",
                  weights.string(), config.string()));
  config::Problems problems;
  const config::Node training =
      read_training_config(model_folder_of(folder / config, folder / weights, "s2t"), problems);
  const AsrSettings settings = read_asr_settings(training, problems);
  problems.throw_if_any();
  torch::manual_seed(1);
  const AsrModel model(Build{}, settings);
  torch::NoGradGuard no_grad;
  for (auto& item : model->named_parameters())  // or the first token would end every text
    if (item.key() == "decoder.output_layer.bias") item.value()[settings.eos_id] -= 20.0;
  write_state_dict(folder / weights, state_dict(*model));
}

// As long as LibriSpeech's test utterances: 7 s in the mean, most between 2 and 16, none over the model's window.
double length_of(Random& rng) { return std::clamp(6.2 * std::exp(0.6 * rng.normal()), 1.3, 29.9); }

void write_sounds(const fs::path& out, int files) {
  make_folders(out / "flac");
  std::string scp;
  for (int i = 0; i < files; ++i) {
    Random rng({7, static_cast<std::uint64_t>(i)});
    const double seconds = length_of(rng);
    const std::string id = fmt::format("utt{:04}", i);
    const fs::path flac = fs::absolute(out / "flac" / (id + ".flac"));
    write_file_atomic(flac, data::encode_audio({.samples = bench::babble(rng, seconds),
                                                .sample_rate = bench::kBabbleRate},
                                               "flac"));
    scp += id + " " + flac.string() + "\n";
  }
  write_file_atomic(out / "wav.scp", scp);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Makes an OWSM folder with random weights, and FLAC files.");
  std::string out, size = "tiny";
  int files = 8;
  app.add_option("OUT", out, "folder")->required();
  app.add_option("--size", size, "tiny, or medium (OWSM v4 medium, 1.02 billion parameters)")
      ->check(CLI::IsMember({"tiny", "medium"}));
  app.add_option("--files", files, "FLAC files");
  CLI11_PARSE(app, argc, argv);
  try {
    write_model(fs::path(out) / "model", size == "medium");
    write_sounds(out, files);
  } catch (...) {
    return report_and_exit_code();
  }
  return 0;
}
