#!/bin/bash
# A Kubernetes control plane with NODES hollow nodes, for tests: etcd, API server, controller manager and scheduler are the real ones; the
# nodes (kubemark) take pods and call them Running but run nothing: kubelet.py does that. Programs are built once (build.sh, about seven
# minutes) into $TUTTI_BED_CACHE, default .cache/kube of the source folder.
#   BED=/tmp/bed up.sh; . $BED/env.sh; kubectl get nodes
# Settings: NODES=3 PORT=16443 (API server; others count up from it). Exit code 77: cannot be had here; the reason is printed.
set -euo pipefail
. "$(dirname "$0")/../common.sh"
NODES=${NODES:-3} PORT=${PORT:-16443}
here=$(cd "$(dirname "$0")" && pwd)
cache=${TUTTI_BED_CACHE:-$(cd "$here/../../.." && pwd)/.cache/kube}
need_root "packages and ports"
need_packages etcd-server openssl
mkdir -p "$BED"/{pki,run,log,etcd} "$cache"
[ -e "$cache/made" ] || "$here/build.sh" "$cache"
cd "$BED/pki"
if [ ! -e sa.key ]; then
  openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=bed-ca -keyout ca.key -out ca.crt 2>/dev/null
  openssl req -newkey rsa:2048 -nodes -subj /CN=kube-apiserver -keyout api.key -out api.csr 2>/dev/null
  echo 'subjectAltName=DNS:localhost,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:10.0.0.1' >ext
  openssl x509 -req -in api.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile ext -out api.crt 2>/dev/null
  openssl genrsa -out sa.key 2048 2>/dev/null
  echo "bed-admin-token,admin,admin,system:masters" >tokens.csv
fi
cat >"$BED/kubeconfig" <<C
apiVersion: v1
kind: Config
clusters: [{name: bed, cluster: {server: "https://127.0.0.1:$PORT", certificate-authority: $BED/pki/ca.crt}}]
users: [{name: admin, user: {token: bed-admin-token}}]
contexts: [{name: bed, context: {cluster: bed, user: admin}}]
current-context: bed
C
echo "export KUBECONFIG=$BED/kubeconfig PATH=$cache/bin:$PATH" >"$BED/env.sh"
export KUBECONFIG=$BED/kubeconfig PATH=$cache/bin:$PATH
start() {  # NAME COMMAND...
  local name=$1; shift
  alive "$BED/run/$name.pid" && return 0
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME="$BED" setsid "$@" </dev/null >"$BED/log/$name.log" 2>&1 &
  echo $! >"$BED/run/$name.pid"
}
etcd=http://127.0.0.1:$((PORT + 1)) peer=http://127.0.0.1:$((PORT + 2))
start etcd etcd --name bed --data-dir "$BED/etcd" --listen-client-urls "$etcd" --advertise-client-urls "$etcd" \
  --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "bed=$peer" --unsafe-no-fsync
start apiserver "$cache/bin/kube-apiserver" --bind-address=127.0.0.1 --advertise-address=127.0.0.1 --secure-port="$PORT" --etcd-servers="$etcd" \
  --tls-cert-file="$BED/pki/api.crt" --tls-private-key-file="$BED/pki/api.key" --token-auth-file="$BED/pki/tokens.csv" --authorization-mode=RBAC \
  --service-cluster-ip-range=10.0.0.0/24 --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$BED/pki/sa.key" \
  --service-account-signing-key-file="$BED/pki/sa.key" --endpoint-reconciler-type=none
for _ in $(seq 600); do
  [ "$(kubectl get --raw /readyz 2>/dev/null)" = ok ] && break
  alive "$BED/run/apiserver.pid" || { tail -n 5 "$BED/log/apiserver.log"; exit 1; }
  sleep 0.1
done
start controller-manager "$cache/bin/kube-controller-manager" --bind-address=127.0.0.1 --port=0 --secure-port=$((PORT + 3)) --kubeconfig="$KUBECONFIG" \
  --service-account-private-key-file="$BED/pki/sa.key" --root-ca-file="$BED/pki/ca.crt" --leader-elect=false --cert-dir="$BED/run" \
  --node-monitor-grace-period=10s --node-monitor-period=2s --pod-eviction-timeout=5s
start scheduler "$cache/bin/kube-scheduler" --bind-address=127.0.0.1 --port=0 --secure-port=$((PORT + 4)) --kubeconfig="$KUBECONFIG" \
  --leader-elect=false --cert-dir="$BED/run"
for ((i = 1; i <= NODES; i++)); do
  start "node$i" "$cache/bin/kubemark" --morph=kubelet --name="node$i" --kubeconfig="$KUBECONFIG" \
    --kubelet-port=$((PORT + 8 + 2 * i)) --kubelet-read-only-port=$((PORT + 9 + 2 * i)) --logtostderr
done
n=0
for _ in $(seq 600); do
  n=$(kubectl get nodes --no-headers 2>/dev/null | grep -c ' Ready') || n=0
  if [ "$n" = "$NODES" ] && kubectl get serviceaccount default >/dev/null 2>&1; then
    start kubelet "$TUTTI_PYTHON" "$here/kubelet.py" "$BED"
    echo "kube bed up: $n nodes"
    exit 0
  fi
  sleep 0.1
done
tail -n 3 "$BED"/log/*.log; skip "kube bed NOT up: $n of $NODES nodes"
