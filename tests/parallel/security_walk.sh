#!/usr/bin/env bash
# Walks docs/security.md promise by promise: for each row of its last table the tests it names are
# run and the promise is said to be kept or broken. As root, so that there are two users.
#
#   tests/parallel/security_walk.sh build/bin           # tries them all, about three minutes
#   tests/parallel/security_walk.sh build/bin --list    # only: does each name tests that exist?
set -uf  # the names have stars
bin=$1
only_list=${2:-}
page=$(dirname "$0")/../../docs/security.md
broken=0
rows=0
while IFS='|' read -r _ promise tests _; do
  rows=$((rows + 1))
  promise=$(sed 's/^ *//; s/ *$//' <<<"$promise")
  # `Filter.*` (in `program`) names a program for the filters since the last one.
  filters=()
  verdict=kept
  try() {  # program filter...
    local program=$1 filter
    shift
    for filter in "$@"; do
      local count
      count=$("$bin/$program" --gtest_filter="$filter" --gtest_list_tests | grep -c '^  ')
      if [ "$count" = 0 ]; then
        echo "  no test is called $filter in $program"
        verdict=BROKEN
      elif [ "$only_list" != --list ] &&
        ! "$bin/$program" --gtest_brief=1 --gtest_filter="$filter" >"$log" 2>&1; then
        sed 's/^/  /' "$log"
        verdict=BROKEN
      fi
    done
  }
  log=$(mktemp)
  in_program=
  for word in $tests; do
    word=${word%,}
    case $word in
      '(in') in_program=next ;;
      '`'*)
        name=$(tr -d '`)' <<<"$word")
        if [ "$in_program" = next ]; then
          # It is about the filter just before it; those before that are test_parallel's.
          last=${filters[-1]}
          unset 'filters[-1]'
          [ ${#filters[@]} = 0 ] || try test_parallel "${filters[@]}"
          try "$name" "$last"
          filters=()
          in_program=
        else
          filters+=("$name")
        fi
        ;;
    esac
  done
  [ ${#filters[@]} = 0 ] || try test_parallel "${filters[@]}"
  rm -f "$log"
  [ "$only_list$verdict" != --listkept ] || verdict="has its tests"
  echo "$verdict: $promise"
  [ "$verdict" != BROKEN ] || broken=1
done < <(sed -n '/^## How each promise/,/^## /p' "$page" | grep '^| ' | grep -v '^| promise')
[ "$rows" -gt 3 ] || { echo "no table of promises in $page"; exit 1; }
exit $broken
