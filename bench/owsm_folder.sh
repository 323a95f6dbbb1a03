#!/usr/bin/env bash
# OWSM from a folder in ESPnet's layout to hyp.scp, model load included: seconds, and seconds of audio per second.
#   bench/owsm_folder.sh [folder with the programs] [tiny|medium] [files] [env] [workers] [key: value of the model...]
# tiny is for a CPU (env local); medium (1.02 billion parameters) with 1,000 files and env local_gpu is the job of the guide to
# inference at scale:
#   bench/owsm_folder.sh build/bin medium 1000 local_gpu 1 'dtype: bfloat16' 'beam_size: 5'
# Without further keys: beam_size: 5.
# DATA names a folder to keep model and sounds in, for the next call. With ESPNET, a folder that holds espnet2/, ESPnet's own program
# then decodes every 25th of the files (EVERY) from the same folder: owsm_folder_espnet.py. PYTHON: one that has torch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=$(realpath "${1:-build/bin}") size=${2:-tiny} files=${3:-8} env=${4:-local} workers=${5:-1}
keys=("${@:6}")
[[ ${#keys[@]} -gt 0 ]] || keys=('beam_size: 5')
out=$(mktemp -d) data=${DATA:-}
trap 'rm -rf "$out"' EXIT
[[ -n $data ]] || data=$out/data
if [[ ! -e $data/wav.scp ]]; then
  [[ -x $bin/bench_owsm_folder ]] || ninja -C "$bin/.." bench_owsm_folder
  "$bin/bench_owsm_folder" "$data" --size "$size" --files "$files"
fi
cat > "$out/inference.yaml" <<YAML
recipe_dir: $out
data_dir: $out
exp_dir: $out/exp
inference_dir: $out/hyp
dataset:
  test: [{name: test, data_src_args: {wav_scp: $data/wav.scp}}]
model:
  _target_: espnet2.bin.s2t_inference.Speech2Text
  s2t_train_config: $data/model/exp/s2t_train/config.yaml
  s2t_model_file: $data/model/exp/s2t_train/valid.acc.ave.pth
  lang_sym: <eng>
  task_sym: <asr>
  ctc_weight: 0.0
  maxlenratio: -32
  device: auto
$(printf '  %s\n' "${keys[@]}")
parallel:
  env: $env
  n_workers: $workers
YAML
sampler=
if command -v nvidia-smi > /dev/null; then
  nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits -lms 100 > "$out/busy" & sampler=$!
fi
begin=$EPOCHREALTIME
"$bin/tutti" infer --config "$out/inference.yaml" --quiet
now=$EPOCHREALTIME
[[ -z $sampler ]] || kill "$sampler"
[[ $(wc -l < "$out/hyp/test/hyp.scp") == "$files" ]]
python3 - "$begin" "$now" "$out" "$size, $files files, $env x $workers, ${keys[*]}" <<'PY'
import json, os, sys
begin, end, out, what = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4]
audio = sum(json.loads(line)["result"].get("seconds", 0) for line in open(out + "/hyp/test/results.jsonl"))
busy = [float(line) for line in open(out + "/busy")] if os.path.exists(out + "/busy") else []
share = ", GPU busy %.0f %% of the time" % (sum(busy) / len(busy)) if busy else ""
print("OWSM %s: %.0f s of audio in %.1f s, %.1f s of audio per second%s" % (what, audio, end - begin, audio / (end - begin), share))
PY
[[ -z ${ESPNET:-} ]] || "${PYTHON:-python3}" bench/owsm_folder_espnet.py "$out/inference.yaml" "$data/wav.scp" "$out/hyp/test/hyp.scp" \
  "$(awk "BEGIN {print $now - $begin}")" "${EVERY:-25}"
