#!/usr/bin/env bash
# ./run nightly: what takes too long for every change; every commit has passed .ci/run, which is not repeated here. Three lanes of steps run
# beside each other; a step goes on after another's failure; one table at the end, exit 1 when anything failed. Logs stay in build/nightly/. To
# bound it:
#   STEPS="asan fuzz"   some of these (the default: all), or matrix, or recipes12:
#                         clang      libraries, programs and fuzzers with clang, whose warnings are errors
#                         fuzz, asan, tsan
#                         packages   both, each in a bare system
#                         chaos      a short campaign
#                         debian12, debian13   a build in a bare system, whose warnings are errors; the tests of units and of several processes
#                         recipes13  the rest of the tests in Debian 13 (in Debian 12 they are CI's; recipes12 runs them in the bare system)
#   MINUTES=15          of the campaign, which also ends after THINGS=300 (its LANES: see tests/chaos/campaign.py; KINDS are its kinds of runs)
#   FUZZ=60             seconds of each fuzzer
#   MATRIX="-L unit"    which tests the matrix runs (default: all that need no cluster); ROWS are its rows
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
usual=(clang fuzz asan tsan packages chaos debian12 debian13 recipes13)
rare=(recipes12 matrix)
steps=${STEPS:-${usual[*]}}
for name in $steps; do
  [[ " ${usual[*]} ${rare[*]} " == *" $name "* ]] || { echo "no such step: $name; there are: ${usual[*]} ${rare[*]}" >&2 && exit 2; }
done
logs=build/nightly
mkdir -p "$logs"
rm -f "$logs"/*.row
began_all=$SECONDS

step() {
  local name=$1 began=$SECONDS code what skipped
  shift
  [[ " $steps " == *" $name "* ]] || return 0
  echo "nightly: $(date +%H:%M) $name" >&2
  "$@" >"$logs/$name.log" 2>&1
  code=$?
  what=$(grep -E '^[0-9]+% tests passed|^chaos: [0-9]|^fuzzers: |^matrix: |^packages: |^the compiler warned' "$logs/$name.log" | awk '{printf "%s%s", sep, $0; sep = "; "}')
  skipped=$(grep -c '\*\*\*Skipped' "$logs/$name.log")
  ((skipped == 0)) || what+=", $skipped skipped"
  echo "| $name | $([[ $code == 0 ]] && echo passed || echo "failed ($code)") | $(((SECONDS - began) / 60)) min | $what |" >"$logs/$name.row"
  echo "nightly: $(date +%H:%M) $(cat "$logs/$name.row")" >&2
}

# The tests run after a build that had warnings, too, and both decide.
suite_in() {
  local code=0
  TUTTI_WARNINGS=error ./run "$1" build || code=$?
  ./run "$1" test -L "$2" || code=$?
  return $code
}
# Packages are made of a joined build where there is none yet; this one takes what the compiler cache has.
package_both() { ./run build release tutti && tests/install/bare.sh; }
clang_builds() { TUTTI_WARNINGS=error TUTTI_ONCE=1 ./run build clang-notorch tutti fuzzers; }

first_lane() {
  # Joined: no other build fills the compiler cache for it.
  TUTTI_ONCE=1 step debian13 suite_in debian13 'unit|dist'
  TUTTI_ONCE=1 step recipes13 suite_in debian13 e2e
}
second_lane() {
  step clang clang_builds
  step fuzz ./run fuzz "${FUZZ:-60}"
  step asan ./run sanitize asan
  step tsan ./run sanitize tsan
}
third_lane() {
  step debian12 suite_in debian12 'unit|dist'
  ONLY=${KINDS:-} THINGS=${THINGS:-300} LANES=${LANES:-4} step chaos ./run chaos "${MINUTES:-15}"
  step packages package_both
  step recipes12 suite_in debian12 e2e
  local arguments
  read -ra arguments <<<"${MATRIX:-}"
  ONLY=${ROWS:-} step matrix ./run matrix "${arguments[@]}"
}
first_lane &
second_lane &
third_lane &
wait

printf '| step | result | time | in its words |\n|---|---|---|---|\n'
for name in "${usual[@]}" "${rare[@]}"; do
  [[ ! -f $logs/$name.row ]] || cat "$logs/$name.row"
done
echo "nightly: $(cat "$logs"/*.row | grep -c '| passed |') of $(cat "$logs"/*.row | wc -l) steps passed in $(((SECONDS - began_all) / 60)) minutes"
! grep -q '| failed' "$logs"/*.row
