#!/bin/bash
# Powers the hosts of the ssh bed off, removes their network and $BED. Idempotent.
set -uo pipefail
. "$(dirname "$0")/../common.sh"
for f in "$BED"/run/*.pid; do
  [ -e "$f" ] && p=$(pid_of "$f" unshare) && kill -9 "$p"  # unshare --fork ignores TERM
done
for n in $(ip netns list 2>/dev/null | awk '/^tuth[0-9]+/{print $1}'); do
  ip link del "tutv${n#tuth}" 2>/dev/null
  for _ in $(seq 50); do [ -z "$(ip netns pids "$n" 2>/dev/null)" ] && break; sleep 0.1; done
  ip netns del "$n"
done
ip link show tutbr0 >/dev/null 2>&1 && ip link del tutbr0
remove_bed
echo "ssh bed down"
