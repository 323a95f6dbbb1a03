#!/bin/bash
# IBM LSF: a strict fake, see ../fake/scheduler.py.
exec "$(dirname "$0")/../fake/up.sh" bsub bjobs bkill brequeue
