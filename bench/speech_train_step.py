#!/usr/bin/env python3
"""What bench_speech_train_step measures, by ESPnet's own modules, on one CPU thread, with this Python's torch:

ESPNET=<folder that holds espnet2/> python3 bench/speech_train_step.py [steps]
"""
import logging
import statistics
import sys
import time
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
import espnet_modules  # noqa: F401
import torch
from espnet2.asr.ctc import CTC
from espnet2.asr.decoder.transformer_decoder import TransformerDecoder
from espnet2.asr.encoder.conformer_encoder import ConformerEncoder
from espnet2.asr.frontend.default import DefaultFrontend
from espnet2.asr.specaug.specaug import SpecAug
from espnet2.layers.utterance_mvn import UtteranceMVN
from espnet2.legacy.nets.batch_beam_search import BatchBeamSearch
from espnet2.legacy.nets.pytorch_backend.transformer.add_sos_eos import add_sos_eos
from espnet2.legacy.nets.pytorch_backend.transformer.label_smoothing_loss import LabelSmoothingLoss
from espnet2.legacy.nets.scorers.ctc import CTCPrefixScorer
from espnet2.legacy.nets.scorers.length_bonus import LengthBonus

VOCABULARY = 40


class Model(torch.nn.Module):
    def __init__(self, size, blocks, decoder):
        super().__init__()
        self.frontend = DefaultFrontend(fs=16000, n_fft=512, win_length=400, hop_length=160, frontend_conf=None)
        self.specaug = SpecAug(apply_time_warp=True, apply_freq_mask=True, apply_time_mask=True, time_mask_width_ratio_range=[0.0, 0.05])
        self.normalize = UtteranceMVN()
        self.encoder = ConformerEncoder(80, output_size=size, attention_heads=4, linear_units=4 * size, num_blocks=blocks,
                                        macaron_style=True, rel_pos_type="latest", pos_enc_layer_type="rel_pos",
                                        selfattention_layer_type="rel_selfattn", activation_type="swish", use_cnn_module=True,
                                        cnn_module_kernel=15)
        self.ctc = CTC(VOCABULARY, size)
        self.decoder = TransformerDecoder(VOCABULARY, size, attention_heads=4, linear_units=4 * size, num_blocks=2) if decoder else None
        self.smoothed = LabelSmoothingLoss(VOCABULARY, -1, 0.0, False)

    def forward(self, speech, lengths, text, text_lengths):
        with torch.no_grad():
            x, x_lengths = self.normalize(*self.specaug(*self.frontend(speech, lengths)))
        x, x_lengths, _ = self.encoder(x, x_lengths)
        loss = self.ctc(x, x_lengths, text, text_lengths)
        if self.decoder is None:
            return loss
        read, answer = add_sos_eos(text, VOCABULARY - 1, VOCABULARY - 1, -1)
        out, _ = self.decoder(x, x_lengths, read, text_lengths + 1)
        return 0.3 * loss + 0.7 * self.smoothed(out, answer)


def timed(what, work, steps):
    times = []
    for _ in range(steps + 1):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    print("%s %.0f ms of processor time" % (what, 1e3 * statistics.median(times[1:])), flush=True)


@torch.no_grad()
def decode(model, speech, lengths, beam):
    """One utterance at a time, as ESPnet decodes; without a beam, the best token of CTC in each frame."""
    for samples, length in zip(speech, lengths):
        x, x_lengths = model.normalize(*model.frontend(samples[None, :length], length[None]))
        encoded = model.encoder(x, x_lengths)[0][0]
        if beam == 0:
            [int(t) for t in torch.unique_consecutive(model.ctc.argmax(encoded[None])[0]) if t != 0]
            continue
        end = VOCABULARY - 1
        BatchBeamSearch(
            scorers={"decoder": model.decoder, "ctc": CTCPrefixScorer(ctc=model.ctc, eos=end), "length_bonus": LengthBonus(VOCABULARY)},
            weights={"decoder": 0.7, "ctc": 0.3, "length_bonus": 0.0}, beam_size=beam, vocab_size=VOCABULARY, sos=end, eos=end,
            pre_beam_score_key="full")(x=encoded, maxlenratio=-8)


def main(steps=5):
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    for size, blocks, decoder in ((144, 4, False), (144, 4, True)):
        torch.manual_seed(1)
        model = Model(size, blocks, decoder).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        batch = (torch.randn(32, 24000) * 0.1, 24000 - 100 * torch.arange(32), torch.randint(1, 39, (32, 8)), torch.full((32,), 8))

        def step():
            optimizer.zero_grad()
            model(*batch).backward()
            optimizer.step()

        timed("train_step/size:%d/blocks:%d/decoder:%d/conv1d3:0" % (size, blocks, decoder), step, steps)
    model.eval()
    model.decoder.output_layer.bias.data[VOCABULARY - 1] -= 1e4
    for beam in (0, 5):
        timed("decode/beam:%d/together:1" % beam, lambda: decode(model, batch[0], batch[1], beam), steps)


main(*map(int, sys.argv[1:]))
