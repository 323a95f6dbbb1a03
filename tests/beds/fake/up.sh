#!/bin/bash
# A strict stand-in for a scheduler that Debian does not have: BED=/tmp/bed up.sh COMMAND...  (see scheduler.py)
# `. $BED/env.sh` and the commands are in PATH; $BED/conduct.json makes it misbehave.
set -euo pipefail
. "$(dirname "$0")/../common.sh"
[ -x "$TUTTI_PYTHON" ] || skip "needs $TUTTI_PYTHON"
mkdir -p "$BED"/{bin,jobs,spool,new}
program=$(cd "$(dirname "$0")" && pwd)/scheduler.py
for command in "$@"; do
  printf '#!/bin/sh\nexec %q %q %q %s "$@"\n' "$TUTTI_PYTHON" "$program" "$BED" "$command" >"$BED/bin/$command"
  chmod +x "$BED/bin/$command"
done
[ -e "$BED/daemon.pid" ] || { clean setsid "$TUTTI_PYTHON" "$program" "$BED" daemon >/dev/null 2>&1 & echo $! >"$BED/daemon.pid"; }
echo "export PATH=$BED/bin:$PATH" >"$BED/env.sh"
echo "fake bed up: $*"
