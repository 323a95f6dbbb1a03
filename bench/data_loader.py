"""The same work as bench_data_loader with torch's DataLoader and soundfile: data_loader.py plan|load ..."""
import json, random, resource, sys, time
import numpy, soundfile, torch


def plan(count):
    """What ESPnet's numel sampler does: sort by length, fill batches up to a budget, shuffle them."""
    generator = random.Random(1)
    lengths = {str(i): generator.randrange(16000, 256000) for i in range(count)}
    start = time.perf_counter()
    keys = sorted(lengths, key=lambda k: lengths[k])
    batches, current, longest = [], [], 0
    for key in keys:
        longest = max(longest, lengths[key])
        if current and longest * (len(current) + 1) > 4000000:
            batches.append(current)
            current, longest = [], lengths[key]
        current.append(key)
    batches.append(current)
    random.Random(0).shuffle(batches)
    mine = [batches[i:i + 8] for i in range(0, len(batches), 8)]
    return {"seconds": time.perf_counter() - start, "groups": len(mine),
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def slaney_filters(n_mels=80, n_fft=512, rate=16000):
    to_mel = lambda f: numpy.where(f < 1000, f * 3 / 200, 15 + numpy.log(numpy.maximum(f, 1e-9) / 1000) * 27 / numpy.log(6.4))
    to_hz = lambda m: numpy.where(m < 15, m * 200 / 3, 1000 * numpy.exp((m - 15) * numpy.log(6.4) / 27))
    edges = to_hz(numpy.linspace(to_mel(numpy.array(0.0)), to_mel(numpy.array(rate / 2)), n_mels + 2))
    bins = numpy.linspace(0, rate / 2, n_fft // 2 + 1)
    up = (bins[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    down = (edges[2:, None] - bins[None]) / (edges[2:] - edges[1:-1])[:, None]
    return torch.from_numpy(numpy.maximum(0, numpy.minimum(up, down)) * (2 / (edges[2:] - edges[:-2]))[:, None]).float()


class Speech(torch.utils.data.Dataset):
    def __init__(self, scp):
        self.paths = [line.split(maxsplit=1)[1].strip() for line in open(scp)]
        self.filters = slaney_filters().t().contiguous()
        self.window = torch.hann_window(400)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        speech = torch.from_numpy(soundfile.read(self.paths[i], dtype="float32")[0])
        spectrum = torch.stft(speech, 512, 160, 400, self.window, center=True, return_complex=True)
        power = spectrum.real ** 2 + spectrum.imag ** 2
        return torch.log(torch.clamp(power.t() @ self.filters, min=1e-10))


def collate(samples):
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True), torch.tensor([len(s) for s in samples])


def load(scp, workers):
    torch.set_num_threads(1)
    data = Speech(scp)
    start = time.perf_counter()
    loader = torch.utils.data.DataLoader(data, batch_size=16, num_workers=workers, collate_fn=collate)
    count, checksum = 0, 0.0
    for feats, lengths in loader:
        count += len(lengths)
        checksum += float(feats[:, 0, 0].sum())
    return {"utterances": count, "seconds": time.perf_counter() - start, "checksum": checksum}


if __name__ == "__main__":
    print(json.dumps(plan(int(sys.argv[2])) if sys.argv[1] == "plan" else load(sys.argv[2], int(sys.argv[3]))))
