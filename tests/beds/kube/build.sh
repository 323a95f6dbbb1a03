#!/bin/bash
# The programs of a Kubernetes 1.20.2 control plane, built into $1 (once; about seven minutes on two cores, 4 GiB of disk meanwhile, 376 MB kept).
# Debian 12 packages kubectl alone, but the source package it is built from holds all of it.
set -euo pipefail
. "$(dirname "$0")/../common.sh"
cache=$1
need_packages golang-1.19-go golang-github-modern-go-reflect2-dev etcd-server make rsync xz-utils
work=$cache/work
rm -rf "$work"; mkdir -p "$work"/{parts,lists/partial,apt/archives/partial,dl,src,home} "$cache/bin"
# The machine's own mirror, as a source of sources, in an apt state of our own.
archive=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/*.sources 2>/dev/null | head -n 1)
printf 'Types: deb-src\nURIs: %s\nSuites: bookworm\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n' \
  "${archive:-http://deb.debian.org/debian}" >"$work/parts/bookworm.sources"
apt=(-qq -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$work/parts" -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/apt")
apt-get "${apt[@]}" update >"$cache/build.log" 2>&1 || skip "cannot read the index of Debian's source packages"
(cd "$work/dl" && apt-get "${apt[@]}" source --download-only kubernetes) >>"$cache/build.log" 2>&1 || skip "cannot fetch the source package kubernetes"
tar xzf "$work"/dl/kubernetes_*.orig.tar.gz -C "$work/src" --strip-components=1
# The vendored reflect2 1.0.1 crashes the API server when built with Go >= 1.18; Debian's 1.0.2 does not.
reflect=$work/src/vendor/github.com/modern-go/reflect2
rm -rf "$reflect"; cp -rL /usr/share/gocode/src/github.com/modern-go/reflect2 "$reflect"; rm -f "$reflect"/*_test.go
cd "$work/src"
export PATH=/usr/lib/go-1.19/bin:$PATH GOPATH=$PWD/.go CGO_ENABLED=0 HOME=$work/home GOCACHE=$work/gocache GOPROXY=off KUBE_GIT_VERSION_FILE=$work/version
mkdir -p .go/src/k8s.io; ln -sfn ../../.. .go/src/k8s.io/kubernetes
printf "KUBE_GIT_COMMIT='debian'\nKUBE_GIT_TREE_STATE='archive'\nKUBE_GIT_VERSION='v1.20.2'\nKUBE_GIT_MAJOR='1'\nKUBE_GIT_MINOR='20'\n" >"$KUBE_GIT_VERSION_FILE"
for program in kube-apiserver kube-controller-manager kube-scheduler kubectl kubemark; do
  make WHAT="cmd/$program" >>"$cache/build.log" 2>&1 || { tail -n 20 "$cache/build.log"; exit 1; }
  cp "_output/bin/$program" "$cache/bin/"
done
chmod -R u+w "$work"; rm -rf "$work"
touch "$cache/made"
