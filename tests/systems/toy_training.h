// A training of seconds by command line: a TorchScript model of two weights that says which
// utterances it saw and takes as long as it is told, on 96 utterances of silence.
#pragma once

#include <signal.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"

namespace tutti::systems {

inline bool python_has_torch() {
  return run_command({.argv = {TUTTI_PYTHON, "-c", "import torch"}}).ok();
}

class ToyTraining {
 public:
  using Words = std::vector<std::string>;

  // `valid`: utterances of the validation set. `train_work`, `valid_work`: products of matrices per
  // batch. `ballast`: MB of numbers that only make checkpoints large.
  explicit ToyTraining(int valid = 4, int train_work = 1, int valid_work = 1, int ballast = 0) {
    write_file_atomic(path() / "make.py", kScript);
    const auto made = run_command(
        {.argv = {TUTTI_PYTHON, "make.py", std::to_string(valid), std::to_string(train_work),
                  std::to_string(valid_work), std::to_string(ballast)},
         .cwd = path()});
    if (!made.ok()) throw std::runtime_error(made.describe());
    write_file_atomic(path() / "training.yaml", replaced(kConfig));
  }
  const std::filesystem::path& path() const { return folder_.path(); }
  std::filesystem::path exp() const { return path() / "exp" / "toy"; }
  std::filesystem::path checkpoints() const { return exp() / "checkpoints"; }

  CommandResult train(const Words& words = {},
                      const std::map<std::string, std::string>& env = {}) const {
    return run_command({.argv = command(words),
                        .env = with(env),
                        .unset_env = kUnset,
                        .cwd = path(),
                        .timeout = std::chrono::minutes(3)});
  }
  Process start(const Words& words = {}, const std::map<std::string, std::string>& env = {}) const {
    return Process::start({.argv = command(words),
                           .env = with(env),
                           .unset_env = kUnset,
                           .cwd = path(),
                           .stdout_path = path() / "started.log"});
  }
  // With as many threads as it takes by itself.
  Process start_unlimited() const {
    return Process::start({.argv = command({}),
                           .unset_env = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "OMP_NUM_THREADS"},
                           .cwd = path(),
                           .stdout_path = path() / "started.log"});
  }
  std::string log() const { return read_file(path() / "started.log"); }

  // Until `reached`, or the process has ended, or two minutes are over. Whether it was reached.
  static bool wait_until(Process& process, const std::function<bool()>& reached) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (std::chrono::steady_clock::now() < deadline) {
      if (reached()) return true;
      if (process.poll()) return reached();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  // Lines of metrics.jsonl that have a key.
  std::vector<Json> metrics(const std::string& key) const {
    std::vector<Json> rows;
    if (!std::filesystem::exists(exp() / "metrics.jsonl")) return rows;
    for (const std::string& line : split(read_file(exp() / "metrics.jsonl"), '\n')) {
      const Json row = Json::parse(line, nullptr, false);
      if (row.is_object() && row.contains(key)) rows.push_back(row);
    }
    return rows;
  }
  std::size_t steps() const { return metrics("train/seen").size(); }

 private:
  static inline const std::vector<std::string> kUnset = {"RANK", "WORLD_SIZE", "LOCAL_RANK"};

  std::vector<std::string> command(const Words& words) const {
    Words all = {in_bin("tutti"), "train", "--config", "training.yaml"};
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }
  static std::map<std::string, std::string> with(std::map<std::string, std::string> env) {
    env.insert({"OMP_NUM_THREADS", "1"});
    return env;
  }
  std::string replaced(std::string text) const {
    for (std::size_t at = text.find("HERE"); at != std::string::npos; at = text.find("HERE"))
      text.replace(at, 4, path().string());
    return text;
  }

  static constexpr const char* kScript = R"(
import json, os, sys, wave
from typing import Dict, Tuple
import torch
from torch import Tensor, nn
valid, train_work, valid_work, ballast = map(int, sys.argv[1:])
class Seen(nn.Module):
    def __init__(self, train: int, valid: int, ballast: int):
        super().__init__()
        if ballast: self.register_buffer('ballast', torch.zeros(ballast * 250000))
        self.w = nn.Linear(1, 2)
        self.register_buffer('busy', torch.randn(256, 256) / 16)
        self.train_work: int = train
        self.valid_work: int = valid
    def forward(self, speech: Tensor, speech_lengths: Tensor, text: Tensor,
                text_lengths: Tensor) -> Tuple[Tensor, Dict[str, Tensor], Tensor]:
        b = self.busy
        for _ in range(self.train_work if self.training else self.valid_work):
            b = torch.tanh(b @ self.busy)
        n = speech_lengths.to(torch.float32)
        y = self.w((n / 10000).unsqueeze(1).to(self.w.weight.dtype)).to(torch.float32)
        k = (n - 1600) / 16
        loss = nn.functional.cross_entropy(y, torch.zeros(n.size(0), dtype=torch.int64))
        stats = {"seen": torch.ones_like(n).sum(), "seen_id": k.sum(), "seen_sq": (k * k).sum()}
        return loss + 0 * b.sum(), stats, torch.tensor(1.0)
torch.manual_seed(0)
torch.jit.script(Seen(train_work, valid_work, ballast)).save('model.pt')
os.makedirs('data')
def wav(path, n):
    w = wave.open(path, 'wb'); w.setnchannels(1); w.setsampwidth(2); w.setframerate(16000)
    w.writeframes(b'\1\0' * n); w.close()
def line(i, path): return json.dumps(dict(id=i, audio=os.getcwd() + '/' + path, text='a')) + '\n'
for i in range(96): wav(f'data/t{i:02d}.wav', 1600 + 16 * i)
open('data/train.jsonl', 'w').writelines(line(f't{i:02d}', f'data/t{i:02d}.wav') for i in range(96))
open('data/valid.jsonl', 'w').writelines(line(f'v{i:03d}', 'data/t00.wav') for i in range(valid))
open('data/tokens.txt', 'w').write('<blank>\n<unk>\na\n<sos/eos>\n')
)";

  static constexpr const char* kConfig = R"(
recipe_dir: HERE
exp_tag: toy
exp_dir: HERE/exp/toy
seed: 1
dataset:
  train: [{name: train, data_src_args: {manifest: HERE/data/train.jsonl}}]
  valid: [{name: valid, data_src_args: {manifest: HERE/data/valid.jsonl}}]
  preprocessor:
    _target_: espnet2.train.preprocessor.CommonPreprocessor
    token_type: word
    token_list: HERE/data/tokens.txt
model:
  _target_: torchscript
  path: HERE/model.pt
  sample_rate: 16000
  inputs: [speech, speech_lengths, text, text_lengths]
  loss: output
  token_list: HERE/data/tokens.txt
optimizer: {lr: 0.01}
scheduler: {_target_: constant}
best_model_criterion: [[valid/loss, 3, min]]
dataloader:
  train: {iter_factory: null, batch_size: 4, shuffle: true}
  valid: {iter_factory: null, batch_size: 1}
trainer:
  accelerator: cpu
  devices: 1
  max_epochs: 2
  num_sanity_val_steps: 0
  log_every_n_steps: 1
  logger: false
)";

  TempFolder folder_;
};

}  // namespace tutti::systems
