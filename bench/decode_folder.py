#!/usr/bin/env python3
"""One `tutti infer` of decode_folder.sh, which says what is measured:

python3 bench/decode_folder.py TUTTI FOLDER SEARCH NAME
python3 bench/decode_folder.py FOLDER/turns

FOLDER holds inference.yaml and `kernels`, bench_decode's lines; the results come to FOLDER/hyp/test, the command's seconds to FOLDER/seconds,
the figures to FOLDER/turns as well, of which the second command tells the spread.
"""
import glob
import json
import os
import shutil
import struct
import subprocess
import sys
import time

PAUSE = 0.005  # between two looks at the journal


class Journal:
    """Which items are done, and when that was seen (tutti/parallel/folder/journal.h)."""

    def __init__(self, folder):
        self.pattern = os.path.join(glob.escape(folder), "journal", "*.journal")
        self.file, self.rest, self.seen = None, None, []  # seen: (time, [(item, seconds of audio)])

    def look(self):
        if not self.file:
            found = glob.glob(self.pattern)
            if not found:
                return
            self.file = open(found[0], "rb")
        new, now = self.file.read(), time.time()
        if not new:
            return
        if self.rest is None:
            new, self.rest = new[16:], b""  # its first bytes say what it is
        self.rest += new
        done = []
        while len(self.rest) >= 8 and len(self.rest) >= 8 + (size := struct.unpack_from("<I", self.rest, 4)[0]):
            index, status = struct.unpack_from("<QB", self.rest, 8)
            assert status == 0, "item %d: %s" % (index, self.rest[17:8 + size])
            done.append((index, json.loads(self.rest[17:8 + size])["seconds"]))
            self.rest = self.rest[8 + size:]
        if done:
            self.seen.append((now, done))


def read_busy(file):
    """[(time, percent)] of what nvidia-smi wrote; lines that are cut or say that nothing is known are passed over."""
    out = []
    for line in open(file):
        try:
            stamp, share = line.split(", ")
            whole, part = stamp.split(".")
            out.append((time.mktime(time.strptime(whole, "%Y/%m/%d %H:%M:%S")) + float("0." + part), float(share)))
        except ValueError:
            pass
    return out


def mean(values):
    return sum(values) / len(values) if values else float("nan")


def main(tutti, folder, search, name):
    kernels = next(line for line in map(json.loads, open(folder + "/kernels")) if line["search"] == search)
    journal, sampler = Journal(folder + "/hyp/test"), None
    if shutil.which("nvidia-smi"):
        sampler = subprocess.Popen(["nvidia-smi", "-i", "0", "--query-gpu=timestamp,utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100"],
                                   stdout=open(folder + "/busy", "w"))
    begin = time.time()
    command = subprocess.Popen([tutti, "infer", "--config", folder + "/inference.yaml", "--quiet"])
    while command.poll() is None:
        journal.look()
        time.sleep(PAUSE)
    end = time.time()
    journal.look()
    if sampler:
        sampler.terminate()
        sampler.wait()
    if command.returncode != 0:
        sys.exit("decode_folder.py: tutti infer ended with %d" % command.returncode)
    results = [json.loads(line)["result"] for line in open(folder + "/hyp/test/results.jsonl")]
    audio = sum(result["seconds"] for result in results)
    open(folder + "/seconds", "w").write("%.2f" % (end - begin))
    figures = {"name": "%s, %s" % (name, search), "s": end - begin, "RTFx": audio / (end - begin)}
    text = "%s, %s: %.0f s of audio in %.2f s, RTFx %.0f" % (name, search, audio, end - begin, audio / (end - begin))
    # A batch's results arrive together, but the first of them is in the file before the others: when it is there, all of them are done.
    batch, order, ends = int(kernels["batch"]), [], {}
    for moment, done in journal.seen:
        order += done
        ends.setdefault(min(len(results), -(-len(order) // batch) * batch), moment)
    first, last, late = ends.get(batch), ends.get(len(results)), order[batch:]
    if late and first and last:
        took, heard = last - first, sum(seconds for _, seconds in late)
        each = kernels.get("ms_of_each")
        alone = sum(each[index] if each else kernels["ms_per_utterance"] for index, _ in late) / 1e3
        text += "; after the first batch %d files in %.2f s, RTFx %.0f; kernels %.2f s, RTFx %.0f: %.2f times as long" % (
            len(late), took, heard / took, alone, heard / alone, took / alone)
        figures.update({"RTFx after the first batch": heard / took, "times as long as the kernels": took / alone})
    else:
        text += "; too few files to tell more"
    if sampler:
        busy = read_busy(folder + "/busy")
        text += "; GPU busy %.0f %%" % mean([share for moment, share in busy if begin <= moment <= end])
        if late and first and last:
            text += ", after the first batch %.0f %%" % mean([share for moment, share in busy if first <= moment <= last])
    print("%s; %.1f tokens a file" % (text, mean([len(result["token_ids"]) for result in results])), flush=True)
    with open(folder + "/turns", "a") as turns:
        turns.write(json.dumps(figures) + "\n")


def tell_spread(file):
    turns = {}
    for line in map(json.loads, open(file)):
        turns.setdefault(line.pop("name"), []).append(line)
    for name, lines in turns.items():
        spread = []
        for key in lines[0]:
            values = sorted(line[key] for line in lines if key in line)
            digits = 0 if key.startswith("RTFx") else 2
            spread.append("%s %.*f to %.*f (%.*f)" % (key, digits, values[0], digits, values[-1], digits, values[len(values) // 2]))
        print("%s, %d turns: %s" % (name, len(lines), "; ".join(spread)))


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 2 else tell_spread(sys.argv[1])
