// A recipe of a few short files and a TorchScript model of four numbers, trained in a second or two
// by the built program.
#pragma once

#include <torch/script.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/subprocess.h"
#include "tutti/data/io/audio.h"

namespace tutti::systems {

// Learns a number from the length of the audio; `work` makes it slower.
inline const char* kToyForward = R"(
def forward(self, speech, speech_lengths, text, text_lengths):
    n = speech_lengths.float().unsqueeze(1) / 10000.0
    y = n @ self.weight + self.bias
    b = self.busy
    i = 0
    while i < int(self.work):
        b = torch.tanh(b @ self.busy)
        i = i + 1
    loss = ((y - 1.0) ** 2).mean() + 0.0 * b.sum()
    return (loss, {"loss_toy": loss.detach(), "size": n.mean()}, torch.tensor(float(n.size(0))))
)";

// The beginning of a training config: where everything is.
inline constexpr const char* kToyPlaces = R"(recipe_dir: .
num_device: 1
exp_tag: toy
exp_dir: ./exp/
seed: 1
dataset:
  train: [{name: train, data_src_args: {manifest: data/train.jsonl}}]
  valid: [{name: valid, data_src_args: {manifest: data/valid.jsonl}}]
  preprocessor: {_target_: espnet2.train.preprocessor.CommonPreprocessor, token_type: word, token_list: data/tokens.txt}
)";

class ToyRecipe {
 public:
  explicit ToyRecipe(const std::string& forward = kToyForward, int work = 0) {
    std::filesystem::create_directories(path() / "data");
    std::string train, valid;
    for (int i = 0; i < 24; ++i) {
      const std::string id = "utt" + std::to_string(i);
      data::write_wav(
          path() / "data" / (id + ".wav"),
          {.samples = std::vector<float>(static_cast<std::size_t>(1600 + 160 * i), 0.1F),
           .sample_rate = 16000});
      const Json line = {{"id", id}, {"audio", id + ".wav"}, {"text", "a"}};
      (i < 16 ? train : valid) += line.dump() + "\n";
    }
    write_file_atomic(path() / "data/train.jsonl", train);
    write_file_atomic(path() / "data/valid.jsonl", valid);
    write_file_atomic(path() / "data/tokens.txt", "<blank>\n<unk>\na\n<sos/eos>\n");
    torch::manual_seed(1);
    torch::jit::Module module("Toy");
    module.register_parameter("weight", torch::randn({1, 2}).requires_grad_(), false);
    module.register_parameter("bias", torch::zeros({2}).requires_grad_(), false);
    module.register_buffer("busy", torch::randn({64, 64}) / 8);
    module.register_attribute("work", c10::IntType::get(), work);
    module.define(forward);
    module.save((path() / "model.pt").string());
    write_file_atomic(
        path() / "train.yaml",
        std::string(kToyPlaces) +
            R"(model: {_target_: torchscript, path: model.pt, inputs: [speech, speech_lengths, text, text_lengths], loss: output}
optimizer: {_target_: torch.optim.SGD, lr: 0.05}
best_model_criterion: [[valid/loss, 2, min]]
dataloader:
  train: {iter_factory: null, batch_size: 4, shuffle: true}
  valid: {iter_factory: null, batch_size: 4}
trainer: {accelerator: cpu, devices: "${num_device}", max_epochs: 3, log_every_n_steps: 1, logger: false}
)");
  }

  const std::filesystem::path& path() const { return folder_.path(); }
  std::string read(const std::string& file) const { return read_file(path() / file); }
  bool has(const std::string& file) const { return std::filesystem::exists(path() / file); }

  std::vector<std::string> words(const std::vector<std::string>& overrides) const {
    std::vector<std::string> all = {in_bin("tutti"), "train", "--config", "train.yaml"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return all;
  }
  // `key=value` overrides, or further files.
  CommandResult train(const std::vector<std::string>& overrides = {}) const {
    return run_command({.argv = words(overrides),
                        .env = {{"OMP_NUM_THREADS", "1"}},
                        .cwd = path(),
                        .timeout = std::chrono::minutes(3)});
  }
  // The lines of exp/metrics.jsonl.
  std::vector<Json> metrics() const {
    std::vector<Json> out;
    std::string line;
    for (const char c : read("exp/metrics.jsonl")) {
      if (c != '\n') {
        line += c;
        continue;
      }
      out.push_back(parse_json(line, "metrics.jsonl"));
      line.clear();
    }
    return out;
  }
  // A number of every line that has it.
  std::vector<double> series(const std::string& name) const {
    std::vector<double> out;
    for (const Json& line : metrics())
      if (line.contains(name)) out.push_back(line[name].get<double>());
    return out;
  }

 private:
  TempFolder folder_;
};

}  // namespace tutti::systems
