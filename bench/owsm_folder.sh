#!/usr/bin/env bash
# OWSM from a folder in ESPnet's layout to hyp.scp, model load included: seconds, and seconds of audio per second.
#   bench/owsm_folder.sh [folder with the programs] [tiny|medium] [files] [env] [workers]
# tiny is for a CPU (env local); medium (1.02 billion parameters) with 1,000 files and env local_gpu is the job of the guide to
# inference at scale. ESPnet's own program reads the same model and wav.scp.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=$(realpath "${1:-build/bin}") size=${2:-tiny} files=${3:-8} env=${4:-local} workers=${5:-1}
[[ -x $bin/bench_owsm_folder ]] || ninja -C "$bin/.." bench_owsm_folder
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$bin/bench_owsm_folder" "$out" --size "$size" --files "$files"
cat > "$out/inference.yaml" <<YAML
recipe_dir: $out
data_dir: $out
exp_dir: $out/exp
inference_dir: $out/hyp
dataset:
  test: [{name: test, data_src_args: {wav_scp: $out/wav.scp}}]
model:
  _target_: espnet2.bin.s2t_inference.Speech2Text
  s2t_train_config: $out/model/exp/s2t_train/config.yaml
  s2t_model_file: $out/model/exp/s2t_train/valid.acc.ave.pth
  lang_sym: <eng>
  task_sym: <asr>
  beam_size: 5
  maxlenratio: -32
  device: auto
batch_size: 16
parallel:
  env: $env
  n_workers: $workers
YAML
begin=$EPOCHREALTIME
"$bin/tutti" infer --config "$out/inference.yaml" --quiet
now=$EPOCHREALTIME
seconds=$(python3 - "$out/hyp/test/results.jsonl" <<'PY'
import json, sys
print(sum(json.loads(line)["result"].get("seconds", 0) for line in open(sys.argv[1])))
PY
)
[[ $(wc -l < "$out/hyp/test/hyp.scp") == "$files" ]]
awk -v a="$begin" -v b="$now" -v s="$seconds" -v n="$files" -v size="$size" -v env="$env" -v w="$workers" \
  'BEGIN {t = b - a; printf "OWSM %s, %d files, %.0f s of audio, %s x %d: %.1f s, %.1f s of audio per second\n", size, n, s, env, w, t, s / t}'
