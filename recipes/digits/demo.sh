#!/usr/bin/env bash
# The whole way from nothing to error rates and a report. Run it again: finished stages are skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
tutti=../../build/bin/tutti
"$tutti" run --stages create_dataset validate_dataset train_tokenizer collect_stats train infer measure pack_model \
  --training_config conf/training.yaml --inference_config conf/inference.yaml --metrics_config conf/metrics.yaml
cat <<TEXT

report:  recipes/digits/exp/training/report.html
talk to it:  build/bin/tutti demo --config recipes/digits/conf/demo.yaml
TEXT
