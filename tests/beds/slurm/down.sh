#!/bin/bash
# Stops the Slurm bed in $BED, its jobs first, and removes the folder. Idempotent.
set -uo pipefail
. "$(dirname "$0")/../common.sh"
export SLURM_CONF="$BED/etc/slurm.conf"
if pid_of "$BED/run/slurmctld.pid" slurmctld >/dev/null; then  # slurmd leaves running jobs alive when it ends
  ids=$(timeout 5 squeue -h -r -o %A 2>/dev/null | sort -u | tr '\n' ' ')
  [ -n "${ids// /}" ] && timeout 10 scancel --quiet $ids 2>/dev/null
  for _ in $(seq 60); do [ -z "$(timeout 5 squeue -h 2>/dev/null)" ] && break; sleep 0.2; done
fi
for f in "$BED"/run/slurmd.*.pid; do p=$(pid_of "$f" slurmd) && kill "$p" 2>/dev/null; done  # all at once: each takes seconds
for f in "$BED"/run/slurmd.*.pid; do [ -e "$f" ] && stop "$f" slurmd; done
stop "$BED/run/slurmctld.pid" slurmctld
for d in /proc/[0-9]*; do  # steps of this bed that are still there: their working folder is the bed's log folder
  [[ $(readlink "$d/exe" 2>/dev/null) == */slurmstepd* && $(readlink "$d/cwd" 2>/dev/null) == "$BED/log" ]] || continue
  for c in $(cat "$d"/task/*/children 2>/dev/null); do kill -9 "$c" 2>/dev/null; done
  kill -9 "${d#/proc/}" 2>/dev/null
done
stop "$BED/munge/munged.pid" munged
remove_bed
echo "slurm bed down"
