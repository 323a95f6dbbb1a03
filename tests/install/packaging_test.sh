#!/usr/bin/env bash
# Containerfile and tutti.def cannot be built without an image registry: every command in them exists, every file they copy
# is made by a command they name, and ./run knows its part. usage: packaging_test.sh SOURCE
set -euo pipefail
cd "$1"
bad=0
complain() { echo "$*"; bad=1; }

# The shell commands of both files, one per line.
commands() {
  sed -nE 's/^RUN +//p' packaging/Containerfile
  sed -n '/^%post/,/^%/p; /^%runscript/,/^%/p' packaging/tutti.def | sed -E '/^%/d; s/^ +//; s/^exec //'
}
commands | sed 's/ && /\n/g; s/; /\n/g' | while read -r program arguments; do
  [[ -n $program ]] || continue
  case $program in
    tutti) ;;  # what the package installs
    ./run)
      read -r command kind _ <<<"$arguments"
      ./run --help | grep -qE "^  $command " || complain "./run has no command '$command'"
      grep -qE "^    $kind\)" run || complain "./run $command knows no '$kind'"
      ;;
    *) command -v "$program" >/dev/null || complain "no program '$program' (in: $program $arguments)" ;;
  esac
  ((bad == 0)) || exit 1
done

# Both install the package that `./run package deb` leaves, from the place where it leaves it.
for file in packaging/Containerfile packaging/tutti.def; do
  grep -q 'build/tutti_\*\.deb' "$file" || { echo "$file does not take build/tutti_*.deb"; exit 1; }
done
grep -q 'ls build/tutti_\*.deb' run || { echo "./run package deb leaves its package elsewhere"; exit 1; }
# Keywords of the two formats, so that a slip is not taken for a comment.
if grep -nvE '^(#|$|FROM |COPY |WORKDIR |RUN |CMD )' packaging/Containerfile; then echo "Containerfile: unknown instruction"; exit 1; fi
if grep -nvE '^(#|$|Bootstrap: |From: |%(files|post|runscript)$|    )' packaging/tutti.def; then echo "tutti.def: unknown line"; exit 1; fi
