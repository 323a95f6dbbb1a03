#!/usr/bin/env bash
# ./run nightly: what takes too long for every change. Two lanes of steps run beside each other, one of which computes while the other waits;
# each step goes on after another's failure; one table at the end, exit 1 when anything failed. Logs stay in build/nightly/. To bound it:
#   STEPS="ci fuzz"     some of: ci matrix chaos clang asan tsan fuzz packages debian12 debian13
#   MINUTES=90          of the campaign, which also ends after THINGS=1000 (its LANES: see tests/chaos/campaign.py; KINDS are its kinds of runs)
#   FUZZ=60             seconds of each fuzzer
#   MATRIX="-L unit"    which tests the matrix runs (default: all that need no cluster); ROWS are its rows
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
logs=build/nightly
mkdir -p "$logs"
rm -f "$logs"/*.row
began_all=$SECONDS

step() {
  local name=$1 began=$SECONDS code what
  shift
  [[ -z ${STEPS:-} || " $STEPS " == *" $name "* ]] || return 0
  echo "nightly: $name" >&2
  "$@" >"$logs/$name.log" 2>&1
  code=$?
  what=$(grep -E '^[0-9]+% tests passed|^chaos: [0-9]|^fuzzers: |^matrix: |^packages: |^ci: (passed|failed)' "$logs/$name.log" | tail -n 1)
  echo "| $name | $([[ $code == 0 ]] && echo passed || echo "failed ($code)") | $(((SECONDS - began) / 60)) min | $what |" >"$logs/$name.row"
}

first_lane() {
  step ci .ci/run
  local arguments
  read -ra arguments <<<"${MATRIX:-}"
  ONLY=${ROWS:-} step matrix ./run matrix "${arguments[@]}"
  step packages tests/install/bare.sh  # of the build folder that the others leave alone by now
}
second_lane() {
  TUTTI_WARNINGS=error step clang ./run build clang-notorch
  step asan ./run sanitize asan
  step tsan ./run sanitize tsan
  step fuzz ./run fuzz "${FUZZ:-60}"
  TUTTI_WARNINGS=error step debian12 ./run debian12 test
  TUTTI_WARNINGS=error step debian13 ./run debian13 test
  ONLY=${KINDS:-} THINGS=${THINGS:-1000} LANES=${LANES:-4} step chaos ./run chaos "${MINUTES:-90}"
}
first_lane &
second_lane &
wait

printf '| step | result | time | in its words |\n|---|---|---|---|\n'
for name in ci matrix packages clang asan tsan fuzz debian12 debian13 chaos; do
  [[ ! -f $logs/$name.row ]] || cat "$logs/$name.row"
done
echo "nightly: $(cat "$logs"/*.row | grep -c '| passed |') of $(cat "$logs"/*.row | wc -l) steps passed in $(((SECONDS - began_all) / 60)) minutes"
! grep -q '| failed' "$logs"/*.row
