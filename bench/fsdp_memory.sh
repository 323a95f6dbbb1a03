#!/usr/bin/env bash
# Peak bytes per rank for parameters, gradients and optimizer state, by the trainer's own counters:
# one process, DDP and FSDP over Gloo on this machine. Prints a Markdown table.
#
#   bench/fsdp_memory.sh [BIN_FOLDER] [key=value of trainer_rank...]
set -euo pipefail
bin=${1:-build/bin}
shift || true
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
model=(depth=48 width=72 unit_class=Block steps=6 batches=64 batch=2 precision=32 clip=1 no_valid=1)

# run NAME STRATEGY WORLD_SIZE [key=value...]: one row of the table.
run() {
  local name=$1 strategy=$2 world=$3 dir="$work/$2-$3-$RANDOM" id="bench-$RANDOM" rank pids=()
  shift 3
  mkdir -p "$dir"
  for ((rank = 0; rank < world; ++rank)); do
    RANK=$rank WORLD_SIZE=$world RUN_ID="$id" OMP_NUM_THREADS=1 \
      "$bin/trainer_rank" "dir=$dir" "strategy=$strategy" "${model[@]}" "$@" >"$dir/log-$rank" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || { cat "$dir"/log-*; exit 1; }; done
  # The rank that holds most.
  awk -v name="$name" -v world="$world" -v base="${base:-0}" '
    /^memory/ { for (i = 2; i <= NF; ++i) { split($i, kv, "="); if (kv[2] > most[kv[1]]) most[kv[1]] = kv[2] } }
    END {
      if (base == 0) base = most["peak"]
      printf "| %s | %d | %.2f | %.2f | %.2f | %.2f | %.3f |\n", name, world, most["parameters"] / 1e6,
             most["gradients"] / 1e6, most["optimizer"] / 1e6, most["peak"] / 1e6, most["peak"] / base
      print most["peak"] > "/dev/stderr"
    }' "$dir"/log-* 2>"$work/peak"
}

echo "| strategy | W | parameters MB | gradients MB | optimizer MB | peak MB | of one process |"
echo "|---|---|---|---|---|---|---|"
base=0
run single single 1 "$@"
base=$(cat "$work/peak")
run ddp ddp 2 "$@"
run fsdp fsdp 2 in_flight=1 "$@"
run fsdp fsdp 4 in_flight=1 "$@"
run "fsdp, shard_grad_op" fsdp 4 sharding=grad_op "$@"
