#!/usr/bin/env bash
# Builds, tests and benches Tutti on a machine with a GPU, a pip torch with CUDA, cmake, ninja and g++, in one call.
# Debian's libraries come from .prefix/ (tools/gpu_prefix.sh). usage: tools/gpu_check.sh [build|test|bench]...
# The benches have parts; PARTS names those that are wanted, so that several short calls do all of it:
#   train   steps of training, in TURNS (5) turns: least, middle and most
#   peers   the same by ESPnet2 + Lightning, and ESPnet's search; needs ESPNET, a folder that holds espnet2/ and bench/
#   compile the same under torch.compile, which compiles for two minutes each; needs ESPNET
#   loop    the bare training loop beside Lightning's
#   kernels kernels of one step, one by one
#   decode  encoder and search alone, in batches; alone: one utterance at a time
#   owsm, librispeech  `tutti infer` from FLAC files beside the kernels, in TURNS turns, and ESPnet's own program if ESPNET is set
#   words   bf16 beside float32 with trained weights, if .words is there (bench/bf16_words.sh)
# PARTS="decode owsm words" TURNS=1 tools/gpu_check.sh bench
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
what=${*:-build test bench}
torch=$(python3 -c 'import torch, os; print(os.path.dirname(torch.__file__))')
prefix=$PWD/.prefix/usr
site=$(dirname "$torch")
export LD_LIBRARY_PATH=$prefix/lib/x86_64-linux-gnu:$PWD/.prefix/lib/x86_64-linux-gnu:$torch/lib:$site/nvidia/nccl/lib:${LD_LIBRARY_PATH:-}
export CMAKE_PREFIX_PATH=$prefix
status=0

if [[ $what == *build* ]]; then
  cmake -S . -B build-gpu -G Ninja -DCMAKE_BUILD_TYPE=Release -DTUTTI_TORCH_ROOT="$torch" -DTUTTI_TORCH_JOBS="$(nproc)" \
    -DCMAKE_EXE_LINKER_FLAGS="-Wl,-rpath-link,$prefix/lib/x86_64-linux-gnu -Wl,-rpath-link,$PWD/.prefix/lib/x86_64-linux-gnu" \
    -DCMAKE_LIBRARY_PATH="$prefix/lib/x86_64-linux-gnu" -DCMAKE_INCLUDE_PATH="$prefix/include" >build-gpu.log 2>&1 ||
    { cat build-gpu.log; exit 4; }
  cmake --build build-gpu -j "$(nproc)" -- -k 0 --quiet || status=1
  cmake --build build-gpu -j "$(nproc)" --target bench_decode bench_gpu_kernels bench_gpu_train bench_decode_folder bench_trainer_ddp \
    bench_trainer_step -- -k 0 --quiet || status=1
fi
if [[ $what == *test* ]]; then
  ctest --test-dir build-gpu --output-on-failure -j 8 -LE 'cluster|kube|e2e' >build-gpu/ctest.log 2>&1 || status=1
  grep -E 'Failed|Not Run|Timeout|tests passed|tests failed|FAILED' build-gpu/ctest.log
fi
[[ $what == *bench* ]] || exit $status

all='train peers compile loop kernels decode alone owsm librispeech words'
parts=" ${PARTS:-$all} "
for part in $parts; do
  [[ " $all " == *" $part "* ]] || { echo "PARTS: got $part, expected some of: $all" >&2; exit 2; }
done
bin=build-gpu/bin
export TURNS=${TURNS:-5}
begins() { [[ $parts == *" $1 "* ]] && echo "== $1, after $SECONDS s"; }
has_espnet() { [[ -n ${ESPNET:-} ]] || { echo "ESPNET is not set: left out"; false; }; }
decode() { $bin/bench_decode --device cuda --dtype bfloat16 "$@" || status=1; }

if begins train; then
  rm -f build-gpu/train.jsonl
  for ((turn = 0; turn < TURNS; ++turn)); do
    for case in '32 bf16-mixed highest' '128 bf16-mixed highest' '32 32 highest' '32 32 high'; do
      read -r batch precision matmul <<<"$case"
      $bin/bench_gpu_train --batch "$batch" --precision "$precision" --matmul "$matmul" >>build-gpu/train.jsonl || status=1
    done
  done
  python3 -c '
import json, sys
cases = {}
for line in sys.stdin:
    run = json.loads(line)
    cases.setdefault("%s x %s s, %s, %s" % tuple(run[k] for k in ("batch", "seconds", "precision", "matmul")), []).append(run)
for name, runs in cases.items():
    ms = sorted(run["ms_per_step"] for run in runs)
    print("%s: %.1f to %.1f ms a step, %.1f in the middle of %d turns, %.2f GiB" % (
        name, ms[0], ms[-1], ms[len(ms) // 2], len(ms), max(run["peak_gib"] for run in runs)))
sys.exit(not cases)' <build-gpu/train.jsonl || status=1
fi
if begins peers && has_espnet; then
  python3 "$ESPNET/bench/train_step.py"
  python3 "$ESPNET/bench/owsm_decode.py"
fi
if begins compile && has_espnet; then
  for batch in 32 128; do python3 bench/gpu_train_compiled.py "$batch" 2>/dev/null || echo "torch.compile: failed"; done
fi
if begins loop; then  # the same model, batches and optimizer by ours and by Lightning, in turns
  for case in 'transformer 512 32 bf16-mixed' 'transformer 512 32 32' 'transformer 256 8 bf16-mixed'; do
    read -r model hidden batch precision <<<"$case"
    echo "$case"
    for turn in 1 2 3; do
      words=(world=1 steps=200 "model=$model" "hidden=$hidden" "batch=$batch" "precision=$precision")
      $bin/bench_trainer_ddp "${words[@]}" device=cuda:0 "start=$(date +%s.%N)" || status=1
      python3 bench/trainer_lightning.py "${words[@]}" device=cuda "start=$(date +%s.%N)" 2>/dev/null || echo "lightning: failed"
    done
  done
  $bin/bench_trainer_step hidden=1024 batch=64 steps=100 || status=1
fi
if begins kernels; then $bin/bench_gpu_kernels || status=1; fi
if begins decode; then
  decode --size owsm --batch 256 --searches '1:0 5:0' --repeats 5
  decode --size owsm --batch 128 --searches '5:0 5:0.3 ctc' --repeats 5
  decode --size librispeech --batch 128 --searches '1:0 5:0 5:0.3 ctc' --tokens 0.125 --repeats 5
fi
if begins alone; then
  for size in owsm librispeech; do decode --size $size --batch 1 --searches '1:0 5:0 5:0.3 ctc' --repeats 15; done
fi
if begins owsm; then
  DATA=${DATA:-build-gpu/data}/owsm bench/decode_folder.sh $bin owsm 1000 local_gpu 1 || status=1
fi
if begins librispeech; then
  DATA=${DATA:-build-gpu/data}/librispeech bench/decode_folder.sh $bin librispeech 8000 local_gpu 1 || status=1
fi
if begins words; then
  if [[ -d .words ]]; then bench/bf16_words.sh $bin .words cuda || status=1; else echo ".words is not there: left out"; fi
fi
echo "== end, after $SECONDS s"
exit $status
