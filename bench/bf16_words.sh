#!/usr/bin/env bash
# Words in bfloat16 beside words in float32, of a trained model: the shares of equal tokens, words and utterances. Below 99 % of equal tokens the exit
# code is 1 (LEAST: another share).
#   bench/bf16_words.sh [folder with the programs] [folder] [device] [key=value of the search...]
# The folder holds `pack` (what pack_model leaves, or a published model) and `sounds` (audio files); .words without a name, which
# tools/gpu_check.sh looks for. Without keys the pack's own search. From a recipe:
#   mkdir -p .words/sounds; cp -r recipes/fsdd/exp/training/model_pack .words/pack; cp recipes/fsdd/data/source/fsdd/recordings/*_theo_*.wav .words/sounds/
#   bench/bf16_words.sh build/bin .words cuda
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=${1:-build/bin} folder=${2:-.words} device=${3:-cpu}
keys=("${@:4}")
[[ -x $bin/tutti ]] || { echo "bf16_words.sh: $bin/tutti: no such program; build it, or name the folder with the programs" >&2; exit 2; }
for part in pack sounds; do
  [[ -d $folder/$part ]] || { echo "bf16_words.sh: $folder/$part: no such folder; the head of this script says how to make it" >&2; exit 2; }
done
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
for dtype in float32 bfloat16; do
  "$bin/tutti" infer --model "$folder/pack" --device "$device" --quiet --json dtype="$dtype" batch_size="${BATCH:-32}" "${keys[@]}" "$folder/sounds" > "$out/$dtype"
done
python3 - "$out" "$device${keys[*]:+, ${keys[*]}}" "${LEAST:-99}" <<'PY'
import json, sys
out, what, least = sys.argv[1], sys.argv[2], float(sys.argv[3])
full, half = ([json.loads(line) for line in open(out + "/" + dtype)] for dtype in ("float32", "bfloat16"))
assert full and [r["file"] for r in full] == [r["file"] for r in half], "not the same files, or none"

def edits(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a):
        last, row[0] = row[0], i + 1
        for j, y in enumerate(b):
            last, row[j + 1] = row[j + 1], min(row[j] + 1, row[j + 1] + 1, last + (x != y))
    return row[-1]

def share(what_of):
    pairs = [(what_of(a), what_of(b)) for a, b in zip(full, half)]
    total = sum(len(a) for a, _ in pairs)
    assert total, "float32 found no words at all"
    wrong = sum(edits(a, b) for a, b in pairs)
    return 100 * (1 - wrong / total), wrong, total

tokens, words = share(lambda r: r["token_ids"]), share(lambda r: r["text"].split())
same = sum(a["text"] == b["text"] for a, b in zip(full, half))
print("bfloat16 beside float32, %s: %.2f %% of tokens equal (%d edits in %d), %.2f %% of words (%d in %d), %d of %d utterances" % (what, *tokens, *words, same, len(full)))
for a, b in [(a, b) for a, b in zip(full, half) if a["text"] != b["text"]][:5]:
    print("  %s: %r, in bfloat16 %r" % (a["file"].rsplit("/", 1)[-1], a["text"], b["text"]))
sys.exit(tokens[0] < least)
PY
