#!/usr/bin/env bash
# The whole way from nothing to error rates and a report. Run it again: finished stages are skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
tutti=../../build/bin/tutti
[[ -x $tutti ]] || tutti=tutti  # a copy of the recipe: the installed one
"$tutti" run --stages create_dataset validate_dataset train_tokenizer collect_stats train infer measure pack_model \
  --training_config conf/training.yaml --inference_config conf/inference.yaml --metrics_config conf/metrics.yaml
cat <<TEXT

report:  $PWD/exp/training/report.html
try it in a browser:  $tutti demo --config $PWD/conf/demo.yaml
TEXT
