#!/usr/bin/env bash
# Makes OUT/tutti-VERSION-x86_64.tar.gz of a build: the folder of bundle.sh, packed.
# usage: packaging/tarball.sh BUILD OUT
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$1 out=$2
version=$("$build/bin/tutti" --version | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -1)
name=tutti-$version-x86_64
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --component programs --strip --prefix "$work/prefix" >/dev/null
"$here/bundle.sh" "$work/prefix" "$work/$name"
# gzip, because the tar of an old system knows nothing newer.
tar -C "$work" -c "$name" | gzip -4 >"$out/$name.tar.gz"
