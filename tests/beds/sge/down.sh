#!/bin/bash
# Stops the Grid Engine bed in $BED, its jobs first, and removes its network, its lines in /etc/hosts and the folder. Idempotent.
set -uo pipefail
. "$(dirname "$0")/../common.sh"
R=$BED/root
[ -e "$BED/env.sh" ] && . "$BED/env.sh"
if pid_of "$R/spool/qmaster/qmaster.pid" sge_qmaster >/dev/null; then  # jobs first: shepherds outlive their execd
  ids=$(timeout 5 qstat -u '*' 2>/dev/null | awk 'NR>2{print $1}' | sort -u | tr '\n' ' ')
  [ -n "${ids// /}" ] && timeout 10 qdel -f $ids >/dev/null 2>&1
  for _ in $(seq 50); do [ -z "$(timeout 5 qstat -u '*' 2>/dev/null)" ] && break; sleep 0.2; done
fi
for d in /proc/[0-9]*; do  # shepherds of this bed that are still there, and the process groups under them
  [[ $(readlink "$d/exe" 2>/dev/null) == */sge_shepherd && $(readlink "$d/cwd" 2>/dev/null) == "$R"/* ]] || continue
  for c in $(cat "$d"/task/*/children 2>/dev/null); do kill -9 -- "-$c" 2>/dev/null || kill -9 "$c" 2>/dev/null; done
  kill -9 "${d#/proc/}" 2>/dev/null
done
for f in "$R"/spool/execd/*/execd.pid; do p=$(pid_of "$f" sge_execd) && kill "$p" 2>/dev/null; done  # all at once
for f in "$R"/spool/execd/*/execd.pid; do [ -e "$f" ] && stop "$f" sge_execd; done
stop "$R/spool/qmaster/qmaster.pid" sge_qmaster
for n in $(ip netns list 2>/dev/null | awk '/^tutg[0-9]+/{print $1}'); do
  ip link del "tutgv${n#tutg}" 2>/dev/null
  ip netns del "$n"
done
ip link show tutgbr0 >/dev/null 2>&1 && ip link del tutgbr0
if grep -q '# tutti-sge-bed$' /etc/hosts; then rest=$(grep -v '# tutti-sge-bed$' /etc/hosts); printf '%s\n' "$rest" >/etc/hosts; fi
remove_bed
echo "sge bed down"
