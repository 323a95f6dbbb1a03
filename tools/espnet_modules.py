"""Makes ESPnet's own modules importable without the packages around them: import this before espnet2.

ESPNET names the folder that holds espnet2/. What is needed of librosa, humanfriendly and torch_complex is here.
"""
import importlib.machinery
import os
import sys
import types

espnet = os.environ.get("ESPNET", "")
if not espnet or not os.path.isdir(os.path.join(espnet, "espnet2")):
    sys.exit(f"ESPNET: got '{espnet}', expected the folder that holds espnet2/\n  fix: ESPNET=FOLDER python3 {sys.argv[0]} ...")
sys.path.insert(0, espnet)
import numpy as np
import torch


class Stub(types.ModuleType):
    """A package that is imported by modules we do not use."""

    __path__ = []

    def __getattr__(self, name):
        if name == "__version__":
            return "9.9.9"
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper():
            return type(name, (), {"__init__": lambda self, *a, **k: None})
        return lambda *a, **k: a[0] if len(a) == 1 and callable(a[0]) and not k else (lambda f: f)


class StubFinder:
    """What espnet2 imports is a stub, whether it is installed or not, but for these and what Python brings."""

    NEEDED = {"espnet2", "torch", "numpy", "yaml", "packaging", "six", "tqdm"}
    # Their absence is noticed and answered.
    OPTIONAL = {"torch_optimizer", "apex", "fairscale", "wandb", "loralib", "k2", "deepspeed", "flash_attn"}

    def find_spec(self, name, path=None, target=None):
        frame = sys._getframe(1)
        while "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        package = name.split(".")[0]
        if not frame.f_globals.get("__name__", "").startswith("espnet2") or package in self.NEEDED | sys.stdlib_module_names:
            return None
        if package in self.OPTIONAL:
            raise ModuleNotFoundError("No module named %r" % name, name=name)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Stub(spec.name)

    def exec_module(self, module):
        pass


def slaney_mel(sr, n_fft, n_mels, fmin, fmax, htk=False):
    """librosa.filters.mel, from its documentation."""
    assert not htk
    to_mel = lambda f: f * 3 / 200 if f < 1000 else 15 + 27 * np.log(f / 1000) / np.log(6.4)
    mel = np.linspace(to_mel(fmin), to_mel(fmax), n_mels + 2)
    hz = np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * np.log(6.4) / 27))
    f = np.arange(n_fft // 2 + 1) * sr / n_fft
    up = (f - hz[:-2, None]) / np.diff(hz)[:-1, None]
    down = (hz[2:, None] - f) / np.diff(hz)[1:, None]
    weights = np.maximum(0, np.minimum(up, down)).astype(np.float32)
    return (weights * (2 / (hz[2:] - hz[:-2]))[:, None]).astype(np.float32)


def parse_size(size):
    text = str(size).lower()
    return int(float(text.rstrip("k")) * (1000 if text.endswith("k") else 1))


class ComplexTensor:
    def __init__(self, real, imag):
        self.real, self.imag = real, imag

    def dim(self):
        return self.real.dim()

    def __len__(self):
        return len(self.real)


def stand_in(name, **members):
    module = sys.modules[name] = Stub(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__dict__.update(members)


stand_in("librosa", filters=types.SimpleNamespace(mel=slaney_mel))
stand_in("humanfriendly", parse_size=parse_size, format_size=str)
stand_in("torch_complex", ComplexTensor=ComplexTensor)
stand_in("torch_complex.tensor", ComplexTensor=ComplexTensor)
sys.meta_path.insert(0, StubFinder())
if not hasattr(torch, "share"):
    stand_in("torch.share")
    torch.share = sys.modules["torch.share"]
if not hasattr(torch, "compiler"):  # torch before 2.1
    torch.compiler = types.SimpleNamespace(disable=lambda f: f)
