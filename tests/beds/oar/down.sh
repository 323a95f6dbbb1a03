#!/bin/bash
# Stops the OAR bed in $BED, its jobs first; puts the package's oar.conf back, removes the user and the folder. Idempotent.
set -uo pipefail
. "$(dirname "$0")/../common.sh"
is() { [ -n "$1" ] && { tr '\0' ' ' <"/proc/$1/cmdline"; } 2>/dev/null | grep -q "$2"; }
children() { local t; for t in /proc/"$1"/task/*/children; do cat "$t" 2>/dev/null; done; }
end() {  # PIDFILE WORD [SIGNAL]: the processes are scripts, so they are known by their command line
  local p; p=$(head -n 1 "$1" 2>/dev/null)
  is "${p:-}" "$2" && kill "${3:--TERM}" "$p" && for _ in $(seq 100); do [ -z "$(readlink "/proc/$p/exe")" ] && break; sleep 0.1; done
  is "${p:-}" "$2" && kill -9 "$p"
  rm -f "$1"
}
orig=/etc/oar/oar.conf.tutti-bed-orig
p=$(cat /var/run/oar-server.pid 2>/dev/null)
if [ -e "$orig" ] && is "${p:-}" Almighty; then
  ids=$(timeout 20 oarstat 2>/dev/null | awk '$1 ~ /^[0-9]+$/ {print $1}' | tr '\n' ' ')
  if [ -n "${ids// /}" ]; then
    timeout 20 oardel $ids >/dev/null 2>&1
    for _ in $(seq 40); do [ -z "$(timeout 20 oarstat 2>/dev/null | awk '$1 ~ /^[0-9]+$/')" ] && break; sleep 0.3; done
  fi
  kids=$(children "$p"); for k in $kids; do kids="$kids $(children "$k")"; done
  end /var/run/oar-server.pid Almighty
  for k in $kids; do is "$k" Almighty && kill "$k" 2>/dev/null; done
fi
end "$BED/run/sshd.pid" sshd
end "$BED/pg/data/postmaster.pid" postgres -INT
[ -e "$orig" ] && mv "$orig" /etc/oar/oar.conf
if id tuttioar >/dev/null 2>&1; then
  for d in /proc/[0-9]*; do [ "$(stat -c %U "$d" 2>/dev/null)" = tuttioar ] && kill -9 "${d#/proc/}" 2>/dev/null; done
  userdel tuttioar 2>/dev/null
fi
remove_bed
echo "oar bed down"
