#!/bin/bash
# Stops the HTCondor bed in $BED and removes it and its user; the chroot stays in the cache. Idempotent.
set -uo pipefail
. "$(dirname "$0")/../common.sh"
p=$(pid_of "$BED/run/init.pid" condor_master) && kill -QUIT "$p" &&  # QUIT: a fast end, jobs included
  for _ in $(seq 80); do [ -z "$(readlink "/proc/$p/exe")" ] && break; sleep 0.1; done
p=$(pid_of "$BED/run/unshare.pid" unshare) && kill -9 "$p" &&  # whatever is left in its PID namespace; its mounts go too
  for _ in $(seq 50); do [ -z "$(readlink "/proc/$p/exe")" ] && break; sleep 0.1; done
userdel tutticondor 2>/dev/null
remove_bed
echo "htcondor bed down"
