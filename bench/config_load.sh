#!/usr/bin/env bash
# 50,000 inline tokens: tutti against python3-yaml's C loader, in turns, best of five; then the wall
# time of `tutti --help` and `tutti config check`. Usage: bench/config_load.sh [folder with the programs]
set -euo pipefail
bin=${1:-build/bin}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${TUTTI_PYTHON:-/usr/bin/python3}" - "$bin" "$folder" <<'PY'
import json, subprocess, sys, time, yaml
bin_folder, folder = sys.argv[1:]
tokens = folder + "/tokens.yaml"
with open(tokens, "w") as f:
    f.write("token_list: [" + ", ".join("tok%d" % i for i in range(50000)) + "]\n")
ours, theirs, peak = [], [], 0
for _ in range(5):
    result = json.loads(subprocess.check_output([bin_folder + "/bench_config_load", tokens]))
    ours.append(result["best_ms"]); peak = max(peak, result["peak_mb"])
    start = time.perf_counter()
    with open(tokens) as f:
        yaml.load(f, Loader=yaml.CSafeLoader)
    theirs.append((time.perf_counter() - start) * 1e3)
print("50,000 tokens: tutti %.0f ms (peak %.0f MB), python3-yaml C loader %.0f ms, ratio %.2f" %
      (min(ours), peak, min(theirs), min(theirs) / min(ours)))
small = folder + "/training.yaml"
with open(small, "w") as f:
    f.write("num_device: 8\nnum_nodes: 2\ntrainer:\n  accelerator: gpu\n  devices: ${num_device}\n"
            "  num_nodes: ${num_nodes}\n  strategy: ddp\n")
for name, command in (("tutti --help", ["--help"]), ("tutti config check", ["config", "check", small])):
    best = 1e9
    for _ in range(20):
        start = time.perf_counter()
        subprocess.run([bin_folder + "/tutti"] + command, check=True, stdout=subprocess.DEVNULL)
        best = min(best, (time.perf_counter() - start) * 1e3)
    print("%s: %.1f ms" % (name, best))
PY
