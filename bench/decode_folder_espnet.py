#!/usr/bin/env python3
"""ESPnet's own Speech2Text on the folder and files of decode_folder.sh, which calls this when ESPNET is set:

ESPNET=<folder that holds espnet2/> python3 bench/decode_folder_espnet.py INFERENCE_YAML WAV_SCP HYP_SCP SECONDS EVERY

It takes one file at a time, so every EVERY-th file says how long all of them would take. In float32, its default: bfloat16 is
slower there. HYP_SCP and SECONDS are what our command wrote and took.
"""
import time

BEGIN = time.perf_counter()
import ctypes
import importlib
import logging
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
import espnet_modules  # noqa: F401
import numpy as np
import torch
import yaml

OURS_ONLY = ("_target_", "dtype", "device", "batch_size", "batch_seconds")


class SoundInfo(ctypes.Structure):
    _fields_ = [("frames", ctypes.c_int64)] + [(name, ctypes.c_int) for name in ("rate", "channels", "format", "sections", "seekable")]


def read_sound(path):
    """What the package soundfile does, which may be absent."""
    library = ctypes.CDLL("libsndfile.so.1")
    library.sf_open.restype = ctypes.c_void_p
    info = SoundInfo()
    file = ctypes.c_void_p(library.sf_open(path.encode(), 0x10, ctypes.byref(info)))
    assert file and info.channels == 1, path
    samples = np.empty(info.frames, np.float32)
    library.sf_readf_float(file, samples.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(info.frames))
    library.sf_close(file)
    return samples, info.rate


def main(config, wav_scp, hyp_scp, seconds, every):
    settings = yaml.safe_load(open(config))["model"]
    is_owsm = "s2t_model_file" in settings
    Speech2Text = importlib.import_module("espnet2.bin.%s_inference" % ("s2t" if is_owsm else "asr")).Speech2Text
    started = time.perf_counter()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    recognise = Speech2Text(device=device, **{key: value for key, value in settings.items() if key not in OURS_ONLY})
    loaded = time.perf_counter()
    files = [line.split(maxsplit=1) for line in open(wav_scp)]
    ours = dict((line.rstrip("\n").split(" ", 1) + [""])[:2] for line in open(hyp_scp))
    times, audio, same = [], [], 0
    for key, path in files[::every]:
        begin = time.perf_counter()
        samples, rate = read_sound(path.strip())
        text = recognise(samples)[0][3 if is_owsm else 0]  # the tokens are on the host then; OWSM's: without its marks
        times.append(time.perf_counter() - begin)
        audio.append(len(samples) / rate)
        same += text == ours[key]
    # The first file also loads libraries.
    mean = sum(times[1:]) / (len(times) - 1)
    whole = loaded - BEGIN + times[0] + mean * (len(files) - 1)
    print("ESPnet, torch %s, %s, float32, every %d. of %d files: start %.1f s, model %.1f s, first file %.1f s, others %.3f s each, %.1f s of audio per second" %
          (torch.__version__, device, every, len(files), started - BEGIN, loaded - started, times[0], mean, sum(audio[1:]) / sum(times[1:])))
    print("the whole job: ESPnet %.1f s (reckoned), Tutti %.1f s: %.1f times as fast" % (whole, seconds, whole / seconds))
    # ESPnet passes over names that it does not know; the mel matrix is not in our file.
    model, file = (recognise.s2t_model, "s2t_model_file") if is_owsm else (recognise.asr_model, "asr_model_file")
    left = set(model.state_dict()) ^ set(torch.load(settings[file], map_location="cpu"))
    assert left <= {"frontend.logmel.melmat"}, left
    if settings.get("dtype", "float32") == "float32":
        print("the same text for %d of %d files" % (same, len(times)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), int(sys.argv[5]))
