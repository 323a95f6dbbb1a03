#!/bin/bash
# Moab: a strict fake, see ../fake/scheduler.py.
exec "$(dirname "$0")/../fake/up.sh" msub checkjob canceljob mjobctl
