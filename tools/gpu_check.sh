#!/usr/bin/env bash
# Builds, tests and benches Tutti on a machine with a GPU, a pip torch with CUDA, cmake, ninja and g++, in one call.
# Debian's libraries come from .prefix/ (tools/gpu_prefix.sh). usage: tools/gpu_check.sh [build|test|bench]...
# With ESPNET=<folder that holds espnet2/ and bench/> the benches run ESPnet's own beside ours.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
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
  cmake --build build-gpu -j "$(nproc)" --target bench_decode bench_gpu_kernels bench_gpu_train bench_owsm_folder bench_trainer_ddp \
    bench_trainer_step -- -k 0 --quiet || status=1
fi
if [[ $what == *test* ]]; then
  ctest --test-dir build-gpu --output-on-failure -j 8 -LE 'cluster|kube|e2e' >build-gpu/ctest.log 2>&1 || status=1
  grep -E 'Failed|Not Run|Timeout|tests passed|tests failed|FAILED' build-gpu/ctest.log
fi
if [[ $what == *bench* ]]; then
  for case in '32 bf16-mixed' '32 32' '128 bf16-mixed'; do
    read -r batch precision <<<"$case"
    build-gpu/bin/bench_gpu_train --batch "$batch" --precision "$precision" || status=1
  done
  build-gpu/bin/bench_gpu_train --precision 32 --matmul high || status=1
  if [[ -n ${ESPNET:-} ]]; then
    python3 "$ESPNET/bench/train_step.py"
    for batch in 32 128; do python3 bench/gpu_train_compiled.py "$batch" 2>/dev/null || echo "torch.compile: failed"; done
  fi
  # The same model, batches and optimizer by ours and by Lightning, in turns.
  for case in 'transformer 512 32 bf16-mixed' 'transformer 512 32 32' 'transformer 256 8 bf16-mixed'; do
    read -r model hidden batch precision <<<"$case"
    echo "$case"
    for turn in 1 2 3; do
      words=(world=1 steps=200 "model=$model" "hidden=$hidden" "batch=$batch" "precision=$precision")
      build-gpu/bin/bench_trainer_ddp "${words[@]}" device=cuda:0 "start=$(date +%s.%N)" || status=1
      python3 bench/trainer_lightning.py "${words[@]}" device=cuda "start=$(date +%s.%N)" 2>/dev/null || echo "lightning: failed"
    done
  done
  build-gpu/bin/bench_gpu_kernels || status=1
  build-gpu/bin/bench_trainer_step hidden=1024 batch=64 steps=100 || status=1
  for case in '1 0 256' '5 0 128' '5 0 256' '5 0.3 128' '1 0 1' '5 0 1'; do
    read -r beam ctc batch <<<"$case"
    build-gpu/bin/bench_decode --size owsm --device cuda --dtype bfloat16 --batch "$batch" --beam "$beam" --ctc "$ctc" \
      --tokens 32 || status=1
  done
  bench/owsm_folder.sh build-gpu/bin medium 1000 local_gpu 1 'dtype: bfloat16' 'beam_size: 5' || status=1
  [[ -z ${ESPNET:-} ]] || python3 "$ESPNET/bench/owsm_decode.py"
fi
exit $status
