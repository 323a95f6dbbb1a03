# The twin of trainer_ddp.cpp with Lightning 2: the same model, batches, optimizer and clipping, on GPUs (or a CPU).
#   python3 trainer_lightning.py [world=1] [steps=100] [model=transformer] [hidden=512] [batch=32] [device=cuda]
#                                [precision=bf16-mixed] [start=SECONDS]
import json
import resource
import sys
import time
import warnings

import torch

try:
    import lightning as L
except ImportError:
    import pytorch_lightning as L

args = dict(world=1, steps=100, model="transformer", hidden=512, batch=32, device="cuda", precision="bf16-mixed", start=0.0)
for word in sys.argv[1:]:
    key, value = word.split("=")
    args[key] = type(args[key])(value)
WARM_UP, FRAMES, FEATURES = 10, 200, 80
warnings.filterwarnings("ignore")


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        linear = torch.nn.Linear
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.proj = linear(width, 3 * width), linear(width, width)
        self.up, self.down = linear(width, 4 * width), linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (part.transpose(1, 2) for part in self.qkv(self.norm1(x)).view(b, t, 3, 4, d // 4).unbind(2))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.down(torch.relu(self.up(self.norm2(x))))


class Transformer(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.into, self.out = torch.nn.Linear(FEATURES, width), torch.nn.Linear(width, FEATURES)
        self.layers = torch.nn.Sequential(*(Block(width) for _ in range(12)))

    def forward(self, x):
        return self.out(self.layers(self.into(x)))


def mlp(h):
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    return torch.nn.Sequential(linear(FEATURES, h), relu(), linear(h, h), relu(), linear(h, h), relu(), linear(h, FEATURES))


class Bench(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = (Transformer if args["model"] == "transformer" else mlp)(args["hidden"])

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(x).float(), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.01)


class Timer(L.Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 1:
            self.first = time.time()
        if trainer.global_step in (WARM_UP, WARM_UP + args["steps"]):
            if args["device"] != "cpu":
                torch.cuda.synchronize()
            if trainer.global_step == WARM_UP:
                self.begin = time.time()
            else:
                self.end = time.time()


if __name__ == "__main__":
    torch.manual_seed(1)
    shape = (args["batch"], FRAMES, FEATURES) if args["model"] == "transformer" else (args["batch"], FEATURES)
    data = [(torch.randn(shape), torch.randn(shape)) for _ in range(8)] * (args["steps"] + WARM_UP)
    loader = torch.utils.data.DataLoader(data, batch_size=None, pin_memory=args["device"] != "cpu")
    timer = Timer()
    trainer = L.Trainer(accelerator="cpu" if args["device"] == "cpu" else "gpu", devices=args["world"],
                        strategy="ddp" if args["world"] > 1 else "auto", precision=args["precision"],
                        max_steps=WARM_UP + args["steps"], gradient_clip_val=5, callbacks=[timer], logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Bench(), loader)
    if trainer.global_rank == 0:
        out = dict(who=f"lightning {L.__version__}, torch {torch.__version__}",
                   ms_per_step=1e3 * (timer.end - timer.begin) / args["steps"],
                   peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        if args["start"]:
            out["first_step_s"] = timer.first - args["start"]
        print(json.dumps(out), flush=True)
