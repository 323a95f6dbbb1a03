#!/usr/bin/env bash
# How `tutti map` scales: 1,000 items of 20 ms (sleep) on 1 and 2 local workers and on 1, 2 and 4 Slurm workers, synchronous and
# asynchronous. Wall time from the command to the last byte of results.jsonl, start-up, queueing and merge included. Slurm is the test bed
# of tests/beds/slurm (root; skipped elsewhere).  Usage: bench/backend_scaling.sh [folder with the programs]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tutti=$(realpath "${1:-build/bin}")/tutti
work=$(mktemp -d "${TMPDIR:-/tmp}/tutti-scaling.XXXXXX")
export BED=$work-bed
trap 'tests/beds/slurm/down.sh >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
printf '%s, %s CPUs, load %s\n\n' "$(grep -m 1 'model name' /proc/cpuinfo | cut -d: -f2- | xargs)" "$(nproc)" "$(cut -d' ' -f1 /proc/loadavg)"
echo '| backend | workers | wall (s) | speed-up |'
echo '|---|---|---|---|'

once() {  # NAME BLOCK [--async]
  rm -rf "$work/out"
  echo "parallel: $2" >"$work/conf.yaml"
  "$tutti" map --quiet --config "$work/conf.yaml" --items 1000 --output_dir "$work/out" ${3:-} -- sleep 0.02
  [[ -z ${3:-} ]] || "$tutti" wait --quiet "$work/out"
  [[ $(wc -l <"$work/out/results.jsonl") == 1000 ]]
}
row() {  # NAME WORKERS BLOCK [--async]
  local best=999999 begin end k
  for k in 1 2 3; do  # the best of three: others share the machine
    begin=$(date +%s%N); once "$1" "$3" "${4:-}"; end=$(date +%s%N)
    ((end - begin < best * 1000000)) && best=$(((end - begin) / 1000000))
  done
  [[ $2 != 1 ]] || one=$best
  awk -v n="$1" -v w="$2" -v t="$best" -v o="$one" 'BEGIN {printf "| %s | %d | %.2f | %.2fx |\n", n, w, t / 1000, o / t}'
}
for n in 1 2; do row local $n "{env: local, n_workers: $n}"; done
if ! up=$(tests/beds/slurm/up.sh); then echo "$up" >&2; exit 0; fi
. "$BED/env.sh"
for mode in '' --async; do
  for n in 1 2 4; do
    row "slurm $([[ -n $mode ]] && echo async || echo sync)" $n "{env: slurm, n_workers: $n, options: {cores: 1, processes: 1, memory: 200MB, walltime: 10m}}" $mode
  done
done
