#!/usr/bin/env bash
# usage: plugin_test.sh SOURCE BUILD WORK CXX PYTHON: does what docs/extending.md says, with an installed Tutti.
set -euo pipefail
source=$1 build=$2 work=$3 python=$5
export CXX=$4
rm -rf "$work" && mkdir -p "$work/recipe"
cmake --install "$build" --prefix "$work/prefix" >"$work/install.log"

# The blocks of the page by their marks.
block() { awk -v mark="\`\`\`$1" '$0 == mark { on = 1; next } /^```/ { on = 0 } on' "$source/docs/extending.md"; }
cd "$work/recipe"
block 'cmake package' >CMakeLists.txt
block 'cpp plugin model' >my_recipe.cpp
[[ -s CMakeLists.txt && -s my_recipe.cpp ]] || { echo "docs/extending.md has lost its blocks" >&2; exit 1; }
block 'sh package' | sed "s|PREFIX |'$work/prefix' |" >build.sh
bash -e build.sh >build.log 2>&1 || { cat build.log; exit 1; }
[[ -f build/libmy_recipe.so ]]

# Two seconds of noise with a text each.
"$python" - <<'PY'
import json, random, struct, wave
random.seed(1)
with open("all.jsonl", "w") as manifest:
    for i in range(4):
        with wave.open(f"u{i}.wav", "wb") as w:
            w.setnchannels(1); w.setsampwidth(2); w.setframerate(16000)
            w.writeframes(b"".join(struct.pack("<h", random.randint(-9000, 9000)) for _ in range(16000 + 4000 * i)))
        manifest.write(json.dumps({"id": f"u{i}", "audio": f"u{i}.wav", "text": "A B" + " C" * i}) + "\n")
open("tokens.txt", "w").write("<blank>\n<unk>\nA\nB\nC\n<sos/eos>\n")
PY
cat >training.yaml <<'YAML'
plugins: [build/libmy_recipe.so]
recipe_dir: .
num_device: 1
model: {_target_: my_model, width: 8}
dataset:
  train: [{name: train, data_src_args: {manifest: all.jsonl}}]
  valid: [{name: valid, data_src_args: {manifest: all.jsonl}}]
  preprocessor: {_target_: espnet2.train.preprocessor.CommonPreprocessor, token_type: word, token_list: tokens.txt}
best_model_criterion: [[valid/loss, 1, min]]
dataloader:
  train: {iter_factory: null, batch_size: 2}
  valid: {iter_factory: null, batch_size: 2}
optimizer: {_target_: torch.optim.Adam, lr: 0.01}
trainer: {accelerator: cpu, max_epochs: 2, logger: false}
YAML
tutti=$work/prefix/bin/tutti
env -u LD_LIBRARY_PATH "$tutti" config check training.yaml
"$tutti" train --config training.yaml >train.log 2>&1 || { cat train.log; exit 1; }
ls exp/training/checkpoints/last/model.safetensors
if "$tutti" config check training.yaml model.widht=3 2>slip.log; then echo "a misspelt key was taken" >&2; exit 1; fi
grep -q "did you mean 'width'" slip.log || { cat slip.log; exit 1; }
