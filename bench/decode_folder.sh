#!/usr/bin/env bash
# `tutti infer` from FLAC files to hyp.scp, beside the kernels alone: four searches, one after the other, on one model and one set of files.
#   bench/decode_folder.sh [folder with the programs] [owsm|librispeech|tiny_owsm|tiny_librispeech] [files] [env] [workers] [key: value of the model...]
# owsm is OWSM v4 medium's shape (1.02 billion parameters), librispeech LibriSpeech-100's (38.5 million); the tiny ones are for a CPU:
#   bench/decode_folder.sh build/bin owsm 1000 local_gpu 1
#   BATCH=4 bench/decode_folder.sh build/bin tiny_librispeech 12 local 1
# A line per search: the whole command; the files after the first batch; the same files by the kernels alone; how busy the GPU was.
#
# How they are reckoned. "After the first batch" is from the moment its results are in the journal to the moment the last ones are: without
# start, loading, what a first batch does once, and without writing .scp files at the end. The kernels are `bench_decode` in the same call: same
# sizes, number format, batch and search, sound on the GPU, a pass before the one that counts. OWSM hears 30 s windows whatever the file's
# length, and every text has 32 tokens, so a file costs what one of a full batch costs. LibriSpeech's model hears the file: bench_decode is
# given the files' lengths and takes them longest first, so that little is padded; a file costs its part of its batch, and texts have an
# eighth of a token per frame (3.1 a second, as people read). Then "times as long" compares sums over the same files.
#
# SEARCHES: pairs of beam and CTC's weight, and ctc for the best token in each frame; "1:0 5:0 5:0.3 ctc". BATCH: utterances together; without it
# what `tutti infer` takes by itself: 32 on a GPU (an eighth of the files where they are few), 1 on a CPU. DTYPE: bfloat16 on a GPU, else float32. DATA names a folder to keep
# model and sounds in, for the next call. TURNS (1): how often all of it is done; then the least, middle and most of each search follow. With ESPNET, a folder that holds espnet2/, ESPnet's own program then decodes every 25th of the files
# (EVERY) from the same folder by 5:0 (PEER): decode_folder_espnet.py. PYTHON: one that has torch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=${1:-build/bin} size=${2:-tiny_owsm} files=${3:-8} env=${4:-local} workers=${5:-1}
keys=("${@:6}")
[[ -x $bin/tutti ]] || { echo "decode_folder.sh: $bin/tutti: no such program; build it, or name the folder with the programs" >&2; exit 2; }
bin=$(realpath "$bin")
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
data=$(realpath -m "${DATA:-$out/data}")
for program in bench_decode bench_decode_folder; do
  [[ -x $bin/$program ]] || ninja -C "$bin/.." "$program"
done
if [[ ! -e $data/made ]]; then
  "$bin/bench_decode_folder" "$data" --size "$size" --files "$files"
  echo "$size $files" > "$data/made"
elif [[ $(< "$data/made") != "$size $files" ]]; then
  echo "decode_folder.sh: DATA: $data holds $(< "$data/made") and not $size $files; name another folder" >&2
  exit 2
fi
device=cpu dtype=${DTYPE:-float32} batch=1
[[ $env != local_gpu ]] || device=cuda dtype=${DTYPE:-bfloat16} batch=$((files >= 256 ? 32 : files >= 8 ? files / 8 : 1))
batch=${BATCH:-$batch}
task=asr tokens=0.125 lengths=(--lengths "$data/seconds" --warm 1 --repeats 1)
[[ $size == *owsm ]] && task=s2t tokens=-32 lengths=()
"$bin/bench_decode" --model "$data/model" --device "$device" --dtype "$dtype" --batch "$batch" --tokens "${tokens#-}" \
  --searches "${SEARCHES:=1:0 5:0 5:0.3 ctc}" "${lengths[@]}" > "$out/kernels"

for ((turn = 0; turn < ${TURNS:-1}; ++turn)); do for search in $SEARCHES; do
  cat > "$out/inference.yaml" <<YAML
recipe_dir: $out
data_dir: $out
exp_dir: $out/exp
inference_dir: $out/hyp
dataset:
  test: [{name: test, data_src_args: {wav_scp: $data/wav.scp}}]
model:
  _target_: espnet2.bin.${task}_inference.Speech2Text
  ${task}_train_config: $data/model/exp/${task}_train/config.yaml
  ${task}_model_file: $data/model/exp/${task}_train/valid.acc.ave.pth
  device: auto
  dtype: $dtype
$([[ $task == asr ]] || printf '  lang_sym: <eng>\n  task_sym: <asr>\n')
$([[ -z ${BATCH:-} ]] || echo "  batch_size: $BATCH")
$(if [[ $search == ctc ]]; then echo '  ctc_greedy: true'
  else printf '  beam_size: %s\n  ctc_weight: %s\n  maxlenratio: %s\n' "${search%:*}" "${search#*:}" "$tokens"; fi)
$([[ ${#keys[@]} == 0 ]] || printf '  %s\n' "${keys[@]}")
parallel:
  env: $env
  n_workers: $workers
YAML
  python3 bench/decode_folder.py "$bin/tutti" "$out" "$search" "$size, $files files, $env x $workers, $dtype"
  [[ -z ${ESPNET:-} || $turn -gt 0 || $search != "${PEER:-5:0}" ]] ||
    "${PYTHON:-python3}" bench/decode_folder_espnet.py "$out/inference.yaml" "$data/wav.scp" "$out/hyp/test/hyp.scp" "$(< "$out/seconds")" "${EVERY:-25}"
  rm -rf "$out/hyp"
done; done
[[ ${TURNS:-1} == 1 ]] || python3 bench/decode_folder.py "$out/turns"
