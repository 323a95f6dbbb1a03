#!/bin/bash
# A strict stand-in for a scheduler that Debian does not have: BED=/tmp/bed up.sh COMMAND...  (see scheduler.py)
# `. $BED/env.sh` and the commands are in PATH; $BED/conduct.json makes it misbehave.
set -euo pipefail
. "$(dirname "$0")/../common.sh"
command -v python3 >/dev/null || skip "needs python3"
mkdir -p "$BED"/{bin,jobs,spool}
program=$(cd "$(dirname "$0")" && pwd)/scheduler.py
for command in "$@"; do
  printf '#!/bin/sh\nexec /usr/bin/env python3 %q %q %s "$@"\n' "$program" "$BED" "$command" >"$BED/bin/$command"
  chmod +x "$BED/bin/$command"
done
echo "export PATH=$BED/bin:$PATH" >"$BED/env.sh"
echo "fake bed up: $*"
