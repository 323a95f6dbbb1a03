#!/bin/bash
# PBS Professional: a strict fake, see ../fake/scheduler.py.
exec "$(dirname "$0")/../fake/up.sh" qsub qstat qdel qrerun
