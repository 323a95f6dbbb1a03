"""Makes samplers.json: batches of ESPnet's own samplers on small shape files.

    PYTHONPATH=<espnet checkout>:<folder with a typeguard> python3 make_sampler_golden.py > samplers.json

ESPnet at 2d9a6c37. Batches are lists of line numbers of the shape files (from 0).
"""
import json
import os
import random
import tempfile

from espnet2.samplers.build_batch_sampler import build_batch_sampler

rng = random.Random(7)
corpora = {
    "mixed": [(rng.randint(20, 1500), rng.randint(1, 60)) for _ in range(97)],
    "equal": [(100, 10)] * 13,
    "few": [(50, 3), (20, 9), (70, 1)],
    "ties": [(rng.randint(1, 6) * 100, rng.randint(1, 3) * 10) for _ in range(40)],
}
cases = []
for bs in (1, 4, 7, 50, 200):
    for drop in (False, True):
        cases.append(dict(type="unsorted", batch_size=bs, drop_last=drop))
        for a in ("ascending", "descending"):
            for b in ("ascending", "descending"):
                cases.append(dict(type="sorted", batch_size=bs, drop_last=drop, sort_in_batch=a, sort_batch=b))
for kind, bins_list in (("length", (300, 2000, 9000)), ("numel", (20000, 160000, 700000))):
    for bins in bins_list:
        for low in (1, 3):
            for padding in (True, False):
                for drop in (False, True):
                    for b in ("ascending", "descending"):
                        cases.append(dict(type=kind, batch_bins=bins, min_batch_size=low, padding=padding,
                                          drop_last=drop, sort_batch=b))
for bs in (4, 20):
    for folds in ([200, 15], [800, 150]):
        for low in (1, 2):
            for drop in (False, True):
                for b in ("ascending", "descending"):
                    cases.append(dict(type="folded", batch_size=bs, fold_lengths=folds, min_batch_size=low,
                                      drop_last=drop, sort_batch=b))

out = {"corpora": corpora, "cases": []}
with tempfile.TemporaryDirectory() as folder:
    for name, rows in corpora.items():
        feats, text = (os.path.join(folder, f"{name}.{k}") for k in ("feats", "text"))
        with open(feats, "w") as f:
            f.writelines(f"u{i} {r[0]},80\n" for i, r in enumerate(rows))
        with open(text, "w") as f:
            f.writelines(f"u{i} {r[1]},5\n" for i, r in enumerate(rows))
        for case in cases:
            # Too many cases for the big corpus would make a big file.
            if name == "mixed" and case.get("sort_batch") == "descending":
                continue
            files = [feats] if case["type"] in ("unsorted", "sorted") else [feats, text]
            full = dict(batch_size=1, batch_bins=1, fold_lengths=(), min_batch_size=1)
            full.update(case)
            try:
                sampler = build_batch_sampler(shape_files=files, **full)
            except IndexError:
                continue  # folded runs off its list; we do not
            batches = [[int(k[1:]) for k in batch] for batch in sampler]
            out["cases"].append({"corpus": name, "settings": case, "batches": batches})
print(json.dumps(out, separators=(",", ":")).replace('{"corpus"', '\n{"corpus"'))
