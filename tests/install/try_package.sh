#!/usr/bin/env bash
# What everybody does first with an installed Tutti. usage: try_package.sh PREFIX (empty: the one in PATH)
set -euo pipefail
prefix=${1:-/usr}
tutti() { env -i PATH="$prefix/bin:/usr/bin:/bin" HOME="$work" tutti "$@"; }
fail() { echo "$*"; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

said=$(tutti --version)
[[ $said == "tutti "[0-9]* ]] || fail "--version: $said"
tutti doctor >doctor.txt || fail "doctor: $(cat doctor.txt)"
said=$(tutti map --quiet -j 2 ::: a 'b c' -- echo {})
[[ $said == $'a\nb c' ]] || fail "map: $said"
recipes=$prefix/share/tutti/recipes
tutti config check "$recipes/mini_an4/conf/metrics.yaml"
if [[ -x $prefix/bin/tutti-run ]]; then
  # The plugin of a corpus is found and knows its keys.
  tutti config check "$recipes/digits/conf/training.yaml" create_dataset.num_train=10
  tutti config check "$recipes/digits/conf/training.yaml" ++create_dataset.num_trian=10 2>slip.txt && fail "a misspelt key was taken"
  grep -q "did you mean 'num_train'" slip.txt || fail "$(cat slip.txt)"
  tutti checkpoint --help >/dev/null
fi
[[ -z $(find "$prefix" -newer doctor.txt -type f) ]] || fail "something was written into $prefix"
