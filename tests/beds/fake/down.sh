#!/bin/bash
# Ends the jobs of a fake scheduler's bed and removes it. Idempotent.
set -uo pipefail
. "$(dirname "$0")/../common.sh"
[ -d "$BED/jobs" ] && "$TUTTI_PYTHON" "$(dirname "$0")/scheduler.py" "$BED" stop-all
remove_bed
echo "fake bed down"
