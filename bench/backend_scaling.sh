#!/usr/bin/env bash
# How the parallel layer scales: 1,000 items of 20 ms (sleep) on 1 and 2 local workers and on 1, 2 and 4 Slurm workers, synchronous and
# asynchronous. Wall time of the whole call, start-up, queueing, merge and (synchronous) closing of the pool included; best of three. Slurm is
# the test bed of tests/beds/slurm (root; left out elsewhere).  Usage: bench/backend_scaling.sh [folder with the programs]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
program=$(realpath "${1:-build/bin}")/bench_backend_scaling
work=$(mktemp -d "${TMPDIR:-/tmp}/tutti-scaling.XXXXXX")
export BED=$work-bed
trap 'tests/beds/slurm/down.sh >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
printf '%s, %s CPUs, load %s\n\n' "$(grep -m 1 'model name' /proc/cpuinfo | cut -d: -f2- | xargs)" "$(nproc)" "$(cut -d' ' -f1 /proc/loadavg)"
echo '| backend | workers | wall (s) | speed-up |'
echo '|---|---|---|---|'
row() {  # NAME WORKERS MODE BLOCK
  local best=999999 now k
  for k in 1 2 3; do
    now=$("$program" "$work/${1// /-}-$2-$k" "$3" "$4")
    best=$(awk -v a="$best" -v b="$now" 'BEGIN {print a < b ? a : b}')
  done
  [[ $2 != 1 ]] || one=$best
  awk -v n="$1" -v w="$2" -v t="$best" -v o="$one" 'BEGIN {printf "| %s | %d | %.2f | %.2fx |\n", n, w, t, o / t}'
}
for n in 1 2; do row local $n sync "{env: local, n_workers: $n}"; done
if ! up=$(tests/beds/slurm/up.sh); then echo "$up" >&2; exit 0; fi
. "$BED/env.sh"
for mode in sync async; do
  for n in 1 2 4; do
    row "slurm $mode" $n $mode "{env: slurm, n_workers: $n, options: {cores: 1, processes: 1, memory: 200MB, walltime: 10m}}"
  done
done
