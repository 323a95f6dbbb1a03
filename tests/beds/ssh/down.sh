#!/bin/bash
# Powers the hosts of the ssh bed off, removes their network and $BED. Idempotent.
set -uo pipefail
. "$(dirname "$0")/../common.sh"
NAME=$(cat "$BED/name" 2>/dev/null || echo "${NAME:-tut}")
for f in "$BED"/run/*.pid; do
  [ -e "$f" ] && p=$(pid_of "$f" unshare) && kill -9 "$p"  # unshare --fork ignores TERM
done
for n in $(ip netns list 2>/dev/null | awk -v name="^${NAME}h[0-9]+" '$1 ~ name {print $1}'); do
  ip link del "${NAME}v${n#"${NAME}h"}" 2>/dev/null
  for _ in $(seq 50); do [ -z "$(ip netns pids "$n" 2>/dev/null)" ] && break; sleep 0.1; done
  ip netns del "$n"
done
ip link show "${NAME}br0" >/dev/null 2>&1 && ip link del "${NAME}br0"
remove_bed
echo "ssh bed down"
