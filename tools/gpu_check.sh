#!/usr/bin/env bash
# Builds, tests and benches Tutti on a machine with a GPU, a pip torch with CUDA, cmake, ninja and g++, in one call.
# Debian's libraries come from .prefix/ (tools/gpu_prefix.sh). usage: tools/gpu_check.sh [build|test|bench]...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
what=${*:-build test bench}
torch=$(python3 -c 'import torch, os; print(os.path.dirname(torch.__file__))')
prefix=$PWD/.prefix/usr
site=$(dirname "$torch")
export LD_LIBRARY_PATH=$prefix/lib/x86_64-linux-gnu:$PWD/.prefix/lib/x86_64-linux-gnu:$torch/lib:$site/nvidia/nccl/lib:${LD_LIBRARY_PATH:-}
export CMAKE_PREFIX_PATH=$prefix

if [[ $what == *build* ]]; then
  cmake -S . -B build-gpu -G Ninja -DCMAKE_BUILD_TYPE=Release -DTUTTI_TORCH_ROOT="$torch" \
    -DCMAKE_EXE_LINKER_FLAGS="-Wl,-rpath-link,$prefix/lib/x86_64-linux-gnu -Wl,-rpath-link,$PWD/.prefix/lib/x86_64-linux-gnu" \
    -DCMAKE_LIBRARY_PATH="$prefix/lib/x86_64-linux-gnu" -DCMAKE_INCLUDE_PATH="$prefix/include"
  cmake --build build-gpu -j "$(nproc)"
fi
if [[ $what == *test* ]]; then
  ctest --test-dir build-gpu --output-on-failure -j 4 -LE 'cluster|kube|e2e'
fi
if [[ $what == *bench* ]]; then
  for program in build-gpu/bin/gpu_bench_*; do
    [[ -x $program ]] && "$program"
  done
fi
