# A peer of bench_gpu_train: ESPnet2's modules in Lightning with encoder and decoder under torch.compile.
#
#   ESPNET=<folder that holds espnet2/ and bench/train_step.py> python3 bench/gpu_train_compiled.py 32 [FILE]
#
# Compiling takes two minutes. With FILE the first steps are made at once and the timed ones when that file is there, so that several can
# compile while something else is built.
import os, sys, time

driver = os.path.join(os.environ["ESPNET"], "bench", "train_step.py")
__file__ = driver  # it looks for its stand-ins beside itself
exec(open(driver).read().split("logging.getLogger('lightning")[0])  # its model and data, without its runs
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
size, go = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
STEPS, BEFORE, COUNTED = 50, 14, 20


class Waiting(DS):
    def __getitem__(self, i):
        while go and i >= BEFORE and not os.path.exists(go):
            time.sleep(0.05)
        return super().__getitem__(i)


class Compiled(M):
    def __init__(self):
        super().__init__()
        self.enc.compile()
        self.dec.compile()


torch.manual_seed(0)
model = Compiled()
trainer = L.Trainer(accelerator="gpu", devices=1, precision="bf16-mixed", max_epochs=1, gradient_clip_val=5.0, logger=False,
                    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(model, torch.utils.data.DataLoader(Waiting(STEPS, size, 14.8), batch_size=None, num_workers=2, pin_memory=True))
times = sorted(b - a for a, b in zip(model.times[COUNTED:], model.times[COUNTED + 1:]))
print("torch.compile, bf16-mixed, %d x 14.8 s: %.1f ms (%.1f to %.1f without the slowest tenth), %.1f GiB" % (
    size, 1e3 * st.median(times), 1e3 * times[0], 1e3 * times[len(times) * 9 // 10], torch.cuda.max_memory_allocated() / 2**30), flush=True)
