#!/usr/bin/env python3
"""Scripts a small word classifier so that Tutti can train and run it without Python.

    export.py model.pt --vocab 6 --sample-rate 8000

`forward` is what training calls: it returns (loss, numbers to log, weight). `classify` is what inference
calls: scores per word. Any other model works the same way: torch.jit.script(model).save(path).
"""
import argparse
from typing import Dict, Tuple

import torch
from torch import Tensor, nn


class WordClassifier(nn.Module):
    def __init__(self, vocab: int, sample_rate: int, channels: int = 32):
        super().__init__()
        self.window: int = sample_rate // 40
        self.hop: int = sample_rate // 100
        self.bins: int = 64
        self.convolutions = nn.Sequential(
            nn.Conv1d(self.bins, channels, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(channels, channels, 5, stride=2, padding=2),
            nn.ReLU(),
        )
        self.output = nn.Linear(channels, vocab)

    @torch.jit.export
    def classify(self, speech: Tensor, speech_lengths: Tensor) -> Tensor:
        spectrum = torch.stft(speech, 256, self.hop, self.window, torch.hann_window(self.window, device=speech.device),
                              return_complex=True).abs()[:, : self.bins]
        features = torch.log(spectrum + 1e-4)
        frames = speech_lengths // self.hop + 1
        mask = torch.arange(features.size(2), device=speech.device)[None, :] < frames[:, None]
        hidden = self.convolutions(features * mask[:, None, :])
        kept = mask[:, ::2][:, None, : hidden.size(2)].to(hidden.dtype)
        return self.output((hidden * kept).sum(2) / kept.sum(2))

    def forward(self, speech: Tensor, speech_lengths: Tensor, text: Tensor,
                text_lengths: Tensor) -> Tuple[Tensor, Dict[str, Tensor], Tensor]:
        scores = self.classify(speech, speech_lengths)
        loss = nn.functional.cross_entropy(scores, text[:, 0])
        correct = (scores.argmax(1) == text[:, 0]).float().mean()
        return loss, {"acc": correct}, torch.tensor(speech.size(0))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--vocab", type=int, required=True, help="lines of the token list")
    parser.add_argument("--sample-rate", type=int, default=8000)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.jit.script(WordClassifier(arguments.vocab, arguments.sample_rate)).save(arguments.path)
