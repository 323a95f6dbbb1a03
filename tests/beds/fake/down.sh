#!/bin/bash
# Ends the jobs of a fake scheduler's bed and removes it. Idempotent.
set -uo pipefail
. "$(dirname "$0")/../common.sh"
[ -d "$BED/new" ] && "$TUTTI_PYTHON" "$(dirname "$0")/scheduler.py" "$BED" stop-all
[ -e "$BED/daemon.pid" ] && for _ in $(seq 100); do kill -0 "$(cat "$BED/daemon.pid")" 2>/dev/null || break; sleep 0.1; done
remove_bed
echo "fake bed down"
