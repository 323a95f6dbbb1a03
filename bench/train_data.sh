#!/usr/bin/env bash
# LibriSpeech-100's recipe from FLAC files on, with made-up voices and words for tokens (so that no sentencepiece is needed):
# manifests, statistics and training; seconds of audio per second, what a step's time goes into, and how busy the GPU is.
#   bench/train_data.sh [folder with the programs] [utterances] [epochs] [key=value of the recipe...]
# On one GPU: bench/train_data.sh build/bin 4000 10
# On a CPU, to see that it works: bench/train_data.sh build/bin 40 1 model.encoder_conf.num_blocks=1
# DATA names a folder to keep corpus, tokens and statistics in, for the next call.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=$(realpath "${1:-build/bin}") utterances=${2:-4000} epochs=${3:-10}
keys=("${@:4}")
out=$(mktemp -d)
sampler=
trap '[[ -z $sampler ]] || kill "$sampler" 2> /dev/null || true; rm -rf "$out"' EXIT
data=${DATA:-$out/data}
config=recipes/librispeech_100/conf/tuning/training_e_branchformer.yaml
places=(data_dir="$data/data" stats_dir="$data/stats" exp_dir="$out/exp" create_dataset.source_dir="$data"
  tokenizer.model_type=word dataset.preprocessor.token_type=word dataset.preprocessor.bpemodel=null dataset.preprocessor.token_list="$data/tokens.txt"
  model.token_list="$data/tokens.txt")
seconds() { awk "BEGIN {printf \"%.1f\", $EPOCHREALTIME - $1}"; }
if [[ ! -d $data/LibriSpeech ]]; then
  [[ -x $bin/bench_train_corpus ]] || ninja -C "$bin/.." bench_train_corpus
  "$bin/bench_train_corpus" "$data" --utterances "$utterances"
fi
for stage in create_dataset collect_stats; do
  begin=$EPOCHREALTIME
  "$bin/tutti" run --stages "$stage" --training_config "$config" --quiet "${places[@]}" "${keys[@]}"
  echo "$stage: $(seconds "$begin") s"
done
if command -v nvidia-smi > /dev/null; then
  nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits -lms 100 > "$out/busy" & sampler=$!
fi
begin=$EPOCHREALTIME
"$bin/tutti" train --config "$config" --quiet "${places[@]}" trainer.max_epochs="$epochs" trainer.log_every_n_steps=10 "${keys[@]}"
echo "train: $(seconds "$begin") s, $epochs epochs"
[[ -z $sampler ]] || { kill "$sampler" || true; sampler=; }
python3 - "$out" <<'PY'
import glob, json, os, sys
lines = [json.loads(line) for file in glob.glob(sys.argv[1] + "/exp/**/metrics.jsonl", recursive=True) for line in open(file)]
steps = [l for l in lines if "throughput/audio_seconds_per_second" in l]
middle = lambda v: sorted(v)[len(v) // 2] if v else float("nan")
def tell(name, some):
    audio = [l["throughput/audio_seconds_per_second"] for l in some]
    print("%s, %d log lines: %.0f s of audio per second (%.0f to %.0f), %.1f ms a step (data %.1f, forward %.1f, backward %.1f, optimizer %.1f)" % (
        name, len(some), middle(audio), min(audio), max(audio),
        *(1e3 * middle([l["time/" + n] for l in some]) for n in ("step", "data", "forward", "backward", "optimizer"))))
if steps:
    tell("first quarter (shapes are new)", steps[:max(1, len(steps) // 4)])
    tell("second half", steps[len(steps) // 2:])
if os.path.exists(sys.argv[1] + "/busy"):
    busy = [float(line) for line in open(sys.argv[1] + "/busy")]
    late = busy[len(busy) // 2:int(len(busy) * 0.95)] or busy
    print("GPU busy %.0f %% of the whole command, %.0f %% of its second half" % (sum(busy) / len(busy), sum(late) / len(late)))
PY
