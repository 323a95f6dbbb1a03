# The twin of trainer_ddp.cpp with torch's DistributedDataParallel over Gloo, and the same model.
#   python3 trainer_ddp.py [world=2] [steps=100] [hidden=1024] [batch=32] [start=SECONDS]
import json
import os
import resource
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

args = dict(world=2, steps=100, hidden=1024, batch=32, start=0.0)
for word in sys.argv[1:]:
    key, value = word.split("=")
    args[key] = type(args[key])(value)
WARM_UP = 10


def run(rank, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=args["world"])
    torch.manual_seed(1)
    h, linear, relu = args["hidden"], torch.nn.Linear, torch.nn.ReLU
    net = torch.nn.Sequential(linear(80, h), relu(), linear(h, h), relu(), linear(h, h), relu(), linear(h, 80))
    ddp = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    data = [(torch.randn(args["batch"], 80), torch.randn(args["batch"], 80)) for _ in range(8)]
    for step in range(WARM_UP + args["steps"]):
        if step == 1:
            first = time.time()
        if step == WARM_UP:
            begin = time.time()
        x, y = data[step % 8]
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(ddp(x), y)
        if not torch.isfinite(loss):
            continue
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 5)
        optimizer.step()
    if rank == 0:
        out = dict(who=f"torch {torch.__version__} DDP", ms_per_step=1e3 * (time.time() - begin) / args["steps"],
                   peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        if args["start"]:
            out["first_step_s"] = first - args["start"]
        print(json.dumps(out), flush=True)
    dist.barrier()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    if args["world"] == 1:
        run(0, port)
    else:
        mp.spawn(run, args=(port,), nprocs=args["world"])
