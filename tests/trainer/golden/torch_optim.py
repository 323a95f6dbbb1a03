#!/usr/bin/python3
"""torch's own numbers for tests/trainer/golden_test.cpp: writes torch_optim.json beside this file.

Each case is the YAML of a config and what torch computes from it: the learning rate of every update,
or the weights after some updates. Made with Debian's python3-torch 1.13.1.
"""
import json
import math
import os
import warnings

import torch
from torch.optim import lr_scheduler

warnings.filterwarnings("ignore")
STEPS = 60


def text(options):
    return "".join(f", {k}: {json.dumps(v)}" for k, v in options.items())


def new_sgd(lr=0.1):
    w = torch.zeros(1, requires_grad=True)
    w.grad = torch.zeros(1)
    return torch.optim.SGD([w], lr=lr, momentum=0.9)


def build(optimizer, name, options):
    if name == "SequentialLR":
        parts = [build(optimizer, n, o) for n, o in options["schedulers"]]
        return lr_scheduler.SequentialLR(optimizer, parts, options["milestones"])
    return getattr(lr_scheduler, name)(optimizer, **options)


def rates(name, options):
    optimizer = new_sgd()
    scheduler = build(optimizer, name, options)
    out, momenta = [], []
    for _ in range(STEPS):
        out.append(optimizer.param_groups[0]["lr"])
        momenta.append(optimizer.param_groups[0]["momentum"])
        optimizer.step()
        scheduler.step()
    return out, momenta


def target(name, options):
    if name == "SequentialLR":
        inner = ", ".join(target(n, o) for n, o in options["schedulers"])
        return (f"{{_target_: torch.optim.lr_scheduler.{name}, schedulers: [{inner}], "
                f"milestones: {json.dumps(options['milestones'])}}}")
    return f"{{_target_: torch.optim.lr_scheduler.{name}{text(options)}}}"


SCHEDULERS = [
    ("StepLR", {"step_size": 7}),
    ("StepLR", {"step_size": 10, "gamma": 0.5}),
    ("MultiStepLR", {"milestones": [5, 20, 41], "gamma": 0.3}),
    ("ExponentialLR", {"gamma": 0.97}),
    ("CosineAnnealingLR", {"T_max": 25, "eta_min": 0.01}),
    ("CosineAnnealingWarmRestarts", {"T_0": 9}),
    ("CosineAnnealingWarmRestarts", {"T_0": 4, "T_mult": 2, "eta_min": 0.002}),
    ("OneCycleLR", {"max_lr": 0.3, "total_steps": STEPS + 1}),
    ("OneCycleLR", {"max_lr": 0.3, "epochs": 7, "steps_per_epoch": 10, "anneal_strategy": "linear",
                    "three_phase": True, "pct_start": 0.25, "div_factor": 10, "final_div_factor": 100}),
    ("LinearLR", {}),
    ("LinearLR", {"start_factor": 0.1, "end_factor": 0.8, "total_iters": 30}),
    ("ConstantLR", {}),
    ("ConstantLR", {"factor": 0.2, "total_iters": 12}),
    ("SequentialLR", {"schedulers": [("LinearLR", {"start_factor": 0.1, "total_iters": 10}),
                                     ("ExponentialLR", {"gamma": 0.9}),
                                     ("CosineAnnealingLR", {"T_max": 20})], "milestones": [10, 25]}),
]
PLATEAU = [{}, {"mode": "max", "factor": 0.5, "patience": 2, "cooldown": 3, "min_lr": 0.004},
           {"factor": 0.3, "patience": 1, "threshold": 0.05, "threshold_mode": "abs"}]


def espnet(name, options):
    """The formulas of espnet2.schedulers, from their definition."""
    out = []
    for done in range(STEPS):
        s, lr = done + 1, 0.1
        if name == "warmup_lr.WarmupLR":
            w = options["warmup_steps"]
            out.append(lr * w**0.5 * min(s**-0.5, s * w**-1.5))
        elif name == "noam_lr.NoamLR":
            w, d = options["warmup_steps"], options["model_size"]
            out.append(lr * d**-0.5 * min(s**-0.5, s * w**-1.5))
        else:  # tristage_lr.TristageLR
            n = options["max_steps"]
            up, hold, down = (int(n * options[k]) for k in ("warmup_ratio", "hold_ratio", "decay_ratio"))
            s = min(s, n)
            first, last = options["init_lr_scale"], options["final_lr_scale"]
            if s < up:
                out.append(lr * first + (lr - lr * first) / up * s)
            elif s < up + hold:
                out.append(lr)
            else:
                out.append(lr * math.exp(math.log(last) / down * (s - up - hold)))
    return out


ESPNET = [("warmup_lr.WarmupLR", {"warmup_steps": 20}),
          ("noam_lr.NoamLR", {"warmup_steps": 20, "model_size": 256}),
          ("tristage_lr.TristageLR", {"max_steps": 50, "warmup_ratio": 0.2, "hold_ratio": 0.3,
                                      "decay_ratio": 0.5, "init_lr_scale": 0.05, "final_lr_scale": 0.02})]

OPTIMIZERS = [
    ("Adam", {"lr": 0.03}), ("Adam", {"lr": 0.03, "weight_decay": 0.1, "amsgrad": True, "betas": [0.8, 0.95]}),
    ("AdamW", {"lr": 0.03}), ("SGD", {"lr": 0.03}),
    ("SGD", {"lr": 0.03, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("RAdam", {}), ("RAdam", {"lr": 0.05, "weight_decay": 0.1, "betas": [0.8, 0.9]}),
    ("NAdam", {}), ("NAdam", {"lr": 0.05, "weight_decay": 0.1, "momentum_decay": 0.01}),
    ("Adagrad", {}), ("Adagrad", {"lr": 0.1, "lr_decay": 0.05, "weight_decay": 0.1,
                                  "initial_accumulator_value": 0.2}),
    ("Adadelta", {}), ("Adadelta", {"lr": 0.5, "rho": 0.8, "eps": 1e-4, "weight_decay": 0.1}),
    ("RMSprop", {}), ("RMSprop", {"lr": 0.02, "alpha": 0.9, "weight_decay": 0.1}),
    ("RMSprop", {"lr": 0.02, "momentum": 0.7, "centered": True}),
]


def weights(name, options, cycle):
    w = torch.linspace(-1, 1, 5, dtype=torch.float64).requires_grad_()
    options = {k: tuple(v) if k == "betas" else v for k, v in options.items()}
    if name == "NAdam":  # 1.13's loop over single tensors takes mu twice; later ones are as this
        options["foreach"] = True
    optimizer = getattr(torch.optim, name)([w], **options)
    scheduler = lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=STEPS) if cycle else None
    out = []
    for step in range(40):
        index = torch.arange(5, dtype=torch.float64)
        w.grad = torch.cos(index + 1.3 * step) * (1 + 0.1 * index) + 0.1 * w.detach()
        optimizer.step()
        if scheduler:
            scheduler.step()
        out.append(w.tolist())
    return out


def main():
    cases = {"torch": torch.__version__, "schedulers": [], "plateau": [], "optimizers": []}
    for name, options in SCHEDULERS:
        lr, momentum = rates(name, options)
        case = {"yaml": target(name, options), "lr": lr}
        if name == "OneCycleLR":
            case["momentum"] = momentum
        cases["schedulers"].append(case)
    for name, options in ESPNET:
        cases["schedulers"].append({"yaml": f"{{_target_: espnet2.schedulers.{name}{text(options)}}}",
                                    "lr": espnet(name, options)})
    values = [2 + math.sin(0.35 * i) / (1 + 0.1 * i) + 0.01 * i for i in range(STEPS)]
    for options in PLATEAU:
        optimizer = new_sgd()
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, **options)
        lr = []
        for value in values:
            scheduler.step(value)
            lr.append(optimizer.param_groups[0]["lr"])
        cases["plateau"].append({"yaml": f"{{_target_: torch.optim.lr_scheduler.ReduceLROnPlateau{text(options)}}}",
                                 "values": values, "lr": lr})
    for name, options in OPTIMIZERS:
        cases["optimizers"].append({"yaml": f"{{_target_: torch.optim.{name}{text(options)}}}",
                                    "cycle": False, "weights": weights(name, options, False)})
    for name, options in (("Adam", {"lr": 0.03}), ("SGD", {"lr": 0.03, "momentum": 0.9})):
        cases["optimizers"].append({"yaml": f"{{_target_: torch.optim.{name}{text(options)}}}",
                                    "cycle": True, "weights": weights(name, options, True)})
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_optim.json")
    with open(path, "w") as f:
        json.dump(cases, f)
        f.write("\n")


main()
