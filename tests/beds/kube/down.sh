#!/bin/bash
# Stops the Kubernetes bed in $BED and removes it; the programs stay in the cache. Idempotent.
set -uo pipefail
. "$(dirname "$0")/../common.sh"
[ -e "$BED/run/kubelet.pid" ] && stop "$BED/run/kubelet.pid" python  # and with it the containers
for f in "$BED"/run/*.pid; do [ -e "$f" ] && [[ $f != */etcd.pid ]] && stop "$f" /kube; done
[ -e "$BED/run/etcd.pid" ] && stop "$BED/run/etcd.pid" /etcd
remove_bed
echo "kube bed down"
