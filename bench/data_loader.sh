#!/usr/bin/env bash
# Batch planning and reading + log-mel + collating with 2 workers: ours and Debian's python3-torch DataLoader +
# soundfile, in turns, best of three.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cmake --build build --target bench_data_loader -j "$(nproc)" >/dev/null
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${TUTTI_PYTHON:-/usr/bin/python3}" - "$folder" <<'PY'
import json, subprocess, sys
import numpy, soundfile
folder = sys.argv[1]
generator = numpy.random.default_rng(0)
with open(folder + "/wav.scp", "w") as scp:
    for i in range(600):
        path = f"{folder}/{i}.flac"
        soundfile.write(path, generator.normal(0, 0.1, generator.integers(32000, 240000)).clip(-1, 1), 16000)
        scp.write(f"utt{i:04} {path}\n")
ours, theirs = ["build/bin/bench_data_loader"], [sys.executable, "bench/data_loader.py"]
def best(*arguments):
    runs = {"ours": [], "theirs": []}
    for _ in range(3):
        for name, command in (("ours", ours), ("theirs", theirs)):
            runs[name].append(json.loads(subprocess.check_output([*command, *arguments])))
    return (min(runs[name], key=lambda r: r["seconds"]) for name in ("ours", "theirs"))
a, b = best("plan", "1000000")
print("plan 1M utterances: tutti %.2f s, %.0f MB; Python %.2f s, %.0f MB; ratio %.1f" %
      (a["seconds"], a["peak_mb"], b["seconds"], b["peak_mb"], b["seconds"] / a["seconds"]))
a, b = best("load", folder + "/wav.scp", "2")
assert abs(a["checksum"] - b["checksum"]) < 1e-2 * abs(b["checksum"]), (a, b)
print("read + log-mel + collate, 2 workers: tutti %.0f utt/s; DataLoader + soundfile %.0f utt/s; ratio %.1f" %
      (a["utterances"] / a["seconds"], b["utterances"] / b["seconds"], b["seconds"] / a["seconds"]))
PY
