#!/usr/bin/env bash
# What the trainer's loop costs over a bare one, what a checkpoint costs it, two-process DDP beside Debian's python3-torch,
# and how long `tutti train` takes to its first step. In turns, best of three; keep the machine quiet. What takes a second
# or a few is run before all other programs where that is allowed (root).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cmake --build build --target bench_trainer_step bench_trainer_ddp tutti tutti-run -j "$(nproc)" >/dev/null
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${TUTTI_PYTHON:-/usr/bin/python3}" -u - "$folder" <<'PY'
import json, math, os, shutil, struct, subprocess, sys, time, wave
folder, bin = sys.argv[1], os.path.abspath("build/bin")
one_thread = dict(os.environ, OMP_NUM_THREADS="1")
alone = ["chrt", "-f", "1"] if os.geteuid() == 0 and shutil.which("chrt") else []

def last_json(command):
    return json.loads(subprocess.check_output(command, env=one_thread, text=True).splitlines()[-1])

for hidden, batch in ((256, 32), (1024, 64)):
    r = last_json([bin + "/bench_trainer_step", f"hidden={hidden}", f"batch={batch}", "rounds=7",
                   f"steps={400 if hidden < 512 else 100}", "saves=0"])
    print("one step of %.1f M parameters: bare loop %.0f us (torch's AdamW: %.0f us), fit() %.0f us, overhead %+.1f %%" %
          (r["parameters"] / 1e6, r["bare_us"], r["bare_torch_adamw_us"], r["fit_us"], 100 * r["overhead"]))
    stall = last_json([*alone, bin + "/bench_trainer_step", f"hidden={hidden}", f"batch={batch}", "rounds=1", "steps=40"])["stall_ms_per_save"]
    torch_save = last_json([*alone, sys.executable, "-c", f"""
import json, time, torch
L, R, h = torch.nn.Linear, torch.nn.ReLU, {hidden}
net = torch.nn.Sequential(L(80, h), R(), L(h, h), R(), L(h, h), R(), L(h, h), R(), L(h, 80))
opt = torch.optim.AdamW(net.parameters())
net(torch.randn(2, 80)).sum().backward(); opt.step()
times = []
for i in range(5):
    start = time.time(); torch.save(dict(model=net.state_dict(), optimizer=opt.state_dict()), "{folder}/x.pt"); times.append(time.time() - start)
print(json.dumps(sorted(times)[2] * 1e3))"""])
    print("  a checkpoint holds training up for %.1f ms; torch.save of the same, not synced to disk: %.1f ms; ratio %.2f" %
          (stall, torch_save, stall / torch_save))

for hidden in (512, 2048):
    best = {}
    for _ in range(3):
        for command in ([bin + "/bench_trainer_ddp"], [sys.executable, "bench/trainer_ddp.py"]):
            r = last_json([*command, f"hidden={hidden}", "steps=60", f"start={time.time()}"])
            b = best.setdefault(r["who"], r)
            for key in r:
                if key != "who": b[key] = min(b[key], r[key])
    ours, theirs = best["tutti"], next(b for who, b in best.items() if who != "tutti")
    print("ddp, 2 ranks, hidden %d: tutti %.2f ms/step, %.0f MB per rank, first step after %.2f s; "
          "%s %.2f ms/step, %.0f MB, %.2f s; ratio %.2f" %
          (hidden, ours["ms_per_step"], ours["peak_mb"], ours["first_step_s"], theirs["who"], theirs["ms_per_step"],
           theirs["peak_mb"], theirs["first_step_s"], theirs["ms_per_step"] / ours["ms_per_step"]))

# A small model from Python over a few tones, as recipes/torchscript does it.
recipe, data = folder + "/torchscript", folder + "/fsdd/data"
shutil.copytree("recipes/torchscript", recipe)
os.makedirs(data)
for split in ("train", "valid"):
    with open(f"{data}/{split}.jsonl", "w") as lines:
        for i in range(32):
            with wave.open(f"{data}/{split}{i}.wav", "wb") as w:
                w.setparams((1, 2, 8000, 0, "NONE", ""))
                w.writeframes(b"".join(struct.pack("<h", int(9000 * math.sin(n * (0.2 + 0.01 * i)))) for n in range(4000)))
            lines.write(json.dumps(dict(id=f"{split}{i}", audio=f"{split}{i}.wav", text=("low", "high")[i % 2])) + "\n")
def tutti(*words):
    subprocess.run([*alone, bin + "/tutti", *words], cwd=recipe, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=one_thread)
tutti("train_tokenizer", "--config", "conf/training.yaml")
vocab = len(open(recipe + "/data/tokens/tokens.txt").read().split())
subprocess.run([sys.executable, "export.py", "model.pt", "--vocab", str(vocab)], cwd=recipe, check=True, stdout=subprocess.DEVNULL)
tutti("collect_stats", "--config", "conf/training.yaml")
import resource
def processor_time():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
start = processor_time()
subprocess.run([*alone, bin + "/tutti-run", "--help"], check=True, stdout=subprocess.DEVNULL, env=one_thread)
loading = processor_time() - start
for devices in (1, 2):
    times, busy = [], []
    for _ in range(3):
        shutil.rmtree(recipe + "/exp/training/checkpoints", ignore_errors=True)
        start, before = time.time(), processor_time()
        tutti("train", "--force", "--config", "conf/training.yaml", f"num_device={devices}", "+trainer.max_steps=1", "+trainer.limit_val_batches=0", "best_model_criterion=[]",
              "dataloader.train.iter_factory.batches.batch_size=4")
        times.append(time.time() - start)
        busy.append(processor_time() - before)
    print("tutti train on %d rank(s), from the command to the end of its first step, checkpoint and exit: %.2f s, processors %.2f s "
          "(loading libtorch once takes %.2f s of them)" % (devices, min(times), min(busy), loading))
PY
