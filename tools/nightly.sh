#!/usr/bin/env bash
# ./run nightly: what takes too long for every change. Each step goes on after another's failure; one table at the end, exit 1 when
# anything failed. Logs stay in build/nightly/. To bound its time:
#   STEPS="lint fuzz"   some of: test cluster lint clang asan tsan fuzz matrix chaos packages debian12 debian13
#   MINUTES=90          of the campaign (and its THINGS and LANES, see tests/chaos/campaign.py; KINDS are its kinds of runs)
#   FUZZ=60             seconds of each fuzzer
#   MATRIX="-L unit"    which tests the matrix runs (default: all that need no cluster); ROWS are its rows
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p build/nightly
rows=() worst=0

step() {
  local name=$1 began=$SECONDS code what
  shift
  [[ -z ${STEPS:-} || " $STEPS " == *" $name "* ]] || return 0
  echo "nightly: $name" >&2
  "$@" >"build/nightly/$name.log" 2>&1
  code=$?
  ((code == 0)) || worst=1
  what=$(grep -E '^[0-9]+% tests passed|^chaos: [0-9]|^fuzzers: |^matrix: |^packages: ' "build/nightly/$name.log" | tail -n 1)
  rows+=("| $name | $([[ $code == 0 ]] && echo passed || echo "failed ($code)") | $(((SECONDS - began) / 60)) min | $what |")
}

TUTTI_WARNINGS=error step test ./run test
step cluster ./run test -L cluster
step lint ./run lint
TUTTI_WARNINGS=error step clang ./run build clang-notorch
step asan ./run sanitize asan
step tsan ./run sanitize tsan
step fuzz ./run fuzz "${FUZZ:-60}"
read -ra matrix <<<"${MATRIX:-}"
ONLY=${ROWS:-} step matrix ./run matrix "${matrix[@]}"
ONLY=${KINDS:-} step chaos ./run chaos "${MINUTES:-90}"
step packages tests/install/bare.sh
TUTTI_WARNINGS=error step debian12 ./run debian12 test
TUTTI_WARNINGS=error step debian13 ./run debian13 test

printf '| step | result | time | in its words |\n|---|---|---|---|\n'
printf '%s\n' "${rows[@]}"
exit $worst
