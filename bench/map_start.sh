#!/usr/bin/env bash
# How fast commands start: N items of `true` with `tutti map -j P` beside `xargs -P P -n 1`, without start-up (the time of one item is
# taken off). Best of three.  Usage: bench/map_start.sh [folder with the programs] [N]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tutti=$(realpath "${1:-build/bin}")/tutti
n=${2:-2000}
printf '%s, %s CPUs, load %s\n\n' "$(grep -m 1 'model name' /proc/cpuinfo | cut -d: -f2- | xargs)" "$(nproc)" "$(cut -d' ' -f1 /proc/loadavg)"
best() {  # COMMAND...
  local least=999999 begin now k
  for k in 1 2 3; do
    begin=$EPOCHREALTIME
    "$@" >/dev/null
    now=$(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN {print b - a}')
    least=$(awk -v a="$least" -v b="$now" 'BEGIN {print a < b ? a : b}')
  done
  echo "$least"
}
with_xargs() { seq "$2" | xargs -P "$1" -n 1 true; }
with_tutti() { "$tutti" map -j "$1" --items "$2" -- true; }
echo '| workers | xargs (commands/s) | tutti map (commands/s) | time of tutti / xargs |'
echo '|---|---|---|---|'
for p in 1 2; do
  x=$(awk -v a="$(best with_xargs $p "$n")" -v b="$(best with_xargs $p 1)" 'BEGIN {print a - b}')
  t=$(awk -v a="$(best with_tutti $p "$n")" -v b="$(best with_tutti $p 1)" 'BEGIN {print a - b}')
  awk -v p="$p" -v n="$n" -v x="$x" -v t="$t" 'BEGIN {printf "| %d | %.0f | %.0f | %.2f |\n", p, (n - 1) / x, (n - 1) / t, t / x}'
done
