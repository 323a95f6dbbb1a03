#!/usr/bin/env bash
# Makes one relocatable folder of an installed Tutti and every library it needs, the C library too: for clusters whose system is older than the one
# Tutti was built on, and where nobody may install anything.
# usage: packaging/bundle.sh PREFIX OUT     (PREFIX: where `cmake --install` put the programs; OUT: the folder to make)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
prefix=$1 out=$2
rm -rf "$out" && mkdir -p "$out"/{bin,lib,libexec}

launcher=$(mktemp)
trap 'rm -f "$launcher"' EXIT
g++ -std=c++20 -Os -static -s -o "$launcher" "$here/launcher.cpp"
for program in "$prefix"/bin/tutti*; do
  name=$(basename "$program")
  cp "$program" "$out/libexec/$name"
  install -m 755 "$launcher" "$out/bin/$name"
done
cp -r "$prefix/share" "$out/"
# Corpora of the recipes: plugins that the programs look for beside themselves.
[[ ! -d $prefix/lib/tutti ]] || cp -r "$prefix/lib/tutti" "$out/lib/"

# ldd names every library a program will load, and the loader; a missing one is an error here and not on the cluster.
ldd "$out"/libexec/* | awk '/not found/ { print; bad = 1 } END { exit bad }' >&2
ldd "$out"/libexec/* | awk '$2 == "=>" { print $3 } $1 ~ /ld-linux/ { print $1 }' | sort -u |
  while read -r library; do cp -L "$library" "$out/lib/"; done
