#!/usr/bin/env bash
# Adapts the model of recipes/digits to three voices that it has not heard. Run it again: finished stages are skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
tutti=../../build/bin/tutti
[[ -x $tutti ]] || tutti=tutti  # a copy of the recipe: the installed one
pack=../digits/exp/training/model_pack
if [[ ! -e exp/base ]]; then
  [[ -e $pack/adapt.yaml ]] || ../digits/demo.sh
  mkdir -p exp
  cp -r "$pack" exp/base
fi
adapt=(exp/base/adapt.yaml conf/training.yaml)
"$tutti" create_dataset --config "${adapt[@]}"
"$tutti" infer --config conf/inference_before.yaml
"$tutti" train --config "${adapt[@]}"
"$tutti" infer --config conf/inference_after.yaml
for when in before after; do
  echo "$when adapting:"
  "$tutti" measure --config conf/metrics_$when.yaml --quiet
done
