#!/usr/bin/env python3
"""Decodes small random models with ESPnet's own beam search and writes what it found.

    ESPNET=<folder that holds espnet2/> python3 tools/make_decoding_vectors.py

Writes tests/speech/vectors/decoding_beam.{json,bin}: the configuration, the n-best lists with their scores, and
(in the .bin, float32, by name, shape and offset) the weights and encoder outputs that gave them.
"""
import json
import pathlib

import espnet_modules  # noqa: F401
import numpy as np
import torch

from espnet2.asr.ctc import CTC
from espnet2.asr.decoder.transformer_decoder import TransformerDecoder
from espnet2.asr.transducer.beam_search_transducer import BeamSearchTransducer
from espnet2.asr_transducer.joint_network import JointNetwork
from espnet2.asr.decoder.transducer_decoder import TransducerDecoder
from espnet2.legacy.nets.batch_beam_search import BatchBeamSearch
from espnet2.legacy.nets.scorer_interface import BatchScorerInterface
from espnet2.legacy.nets.scorers.ctc import CTCPrefixScorer
from espnet2.legacy.nets.scorers.length_bonus import LengthBonus

VOCAB, SIZE, HEADS, UNITS, BLOCKS = 17, 16, 2, 24, 2
FRAMES = [23, 9, 31, 16]


class Table(torch.nn.Module, BatchScorerInterface):
    """A decoder that is a table: log-probabilities by position and previous token."""

    def __init__(self, table):
        super().__init__()
        self.table = table  # (L, V, V)

    def batch_score(self, ys, states, xs):
        position = min(ys.size(1) - 1, self.table.size(0) - 1)
        return self.table[position, ys[:, -1]], [None] * len(ys)


def decode(decoder, ctc, memory, beam, weight, nbest, **options):
    primer = options.pop("prompt", None)
    penalty = options.pop("penalty", 0.0)
    normalize = options.pop("normalize_length", False)
    search = BatchBeamSearch(
        scorers={"decoder": decoder, "ctc": CTCPrefixScorer(ctc=ctc, eos=VOCAB - 1), "length_bonus": LengthBonus(VOCAB)},
        weights={"decoder": 1 - weight, "ctc": weight, "length_bonus": penalty},
        beam_size=beam, vocab_size=VOCAB, sos=VOCAB - 1, eos=VOCAB - 1,
        pre_beam_score_key=None if weight == 1.0 else "full", hyp_primer=primer, normalize_length=normalize,
    )
    with torch.no_grad():
        found = search(x=memory, **options)[:nbest]
    start = 1 if primer is None else len(primer)
    results = []
    for hypothesis in found:
        tokens = hypothesis.yseq.tolist()[start:]
        while tokens and tokens[-1] == VOCAB - 1:
            tokens.pop()
        scores = {k: float(v) for k, v in hypothesis.scores.items()}
        if float(hypothesis.score) > -1e8:
            results.append({"tokens": tokens, "score": float(hypothesis.score), "scores": scores})
    return results


def decode_transducer(predictor, joint, memory, beam):
    search = BeamSearchTransducer(predictor, joint, beam_size=beam, nbest=5)
    with torch.no_grad():
        return [{"tokens": h.yseq[1:], "score": float(h.score)} for h in search(memory)]


def main():
    torch.manual_seed(20)
    torch.set_num_threads(1)
    ctc = CTC(odim=VOCAB, encoder_output_size=SIZE).eval()
    decoder = TransformerDecoder(vocab_size=VOCAB, encoder_output_size=SIZE, attention_heads=HEADS, linear_units=UNITS, num_blocks=BLOCKS).eval()
    with torch.no_grad():
        # Sharper than a fresh model, so that hypotheses differ and end.
        decoder.output_layer.weight.mul_(4)
        ctc.ctc_lo.weight.mul_(4)
        ctc.ctc_lo.bias[0] += 2
        decoder.output_layer.bias[VOCAB - 1] += 1
    table = torch.log_softmax(1.5 * torch.randn(40, VOCAB, VOCAB), -1)
    memories = [torch.randn(t, SIZE) for t in FRAMES]

    cases = []
    for kind, scorer in (("table", Table(table)), ("transformer", decoder)):
        for beam in (1, 5, 10):
            for weight in (0.0, 0.3, 1.0):
                cases.append((kind, scorer, dict(beam=beam, weight=weight)))
        cases += [
            (kind, scorer, dict(beam=5, weight=0.3, penalty=0.7)),
            (kind, scorer, dict(beam=5, weight=0.3, maxlenratio=0.4, minlenratio=0.2)),
            (kind, scorer, dict(beam=4, weight=0.0, maxlenratio=-6.0)),
            (kind, scorer, dict(beam=4, weight=0.5, minlenratio=-3.0, normalize_length=True)),
            (kind, scorer, dict(beam=3, weight=0.3, maxlenratio=0.5, prompt=[VOCAB - 1, 4, 7])),
        ]
    out = []
    for kind, scorer, options in cases:
        found = [decode(scorer, ctc, memory, nbest=10, **options) for memory in memories]
        out.append({"decoder": kind, **options, "nbest": found})

    predictor = TransducerDecoder(vocab_size=VOCAB, hidden_size=SIZE).eval()
    joint = JointNetwork(VOCAB, SIZE, SIZE, joint_space_size=SIZE).eval()
    with torch.no_grad():
        joint.lin_out.weight.mul_(6)
        joint.lin_out.bias[0] += 1
    transducer = [{"beam": beam, "nbest": [decode_transducer(predictor, joint, m, beam) for m in memories]} for beam in (1, 3, 5)]

    tensors = {"table": table}
    tensors.update({f"transducer.decoder.{k}": v for k, v in predictor.state_dict().items()})
    tensors.update({f"transducer.joint_network.{k}": v for k, v in joint.state_dict().items()})
    tensors.update({f"memory.{i}": memory for i, memory in enumerate(memories)})
    tensors.update({f"decoder.{k}": v for k, v in decoder.state_dict().items() if not k.endswith(".pe")})
    tensors.update({f"ctc.{k}": v for k, v in ctc.state_dict().items()})
    index, blob = {}, b""
    for name, tensor in tensors.items():
        index[name] = {"shape": list(tensor.shape), "offset": len(blob)}
        blob += tensor.detach().numpy().astype(np.float32).tobytes()

    folder = pathlib.Path(__file__).resolve().parent.parent / "tests/speech/vectors"
    folder.mkdir(parents=True, exist_ok=True)
    config = {"vocab_size": VOCAB, "size": SIZE, "attention_heads": HEADS, "linear_units": UNITS, "num_blocks": BLOCKS}
    (folder / "decoding_beam.bin").write_bytes(blob)
    text = json.dumps({"config": config, "tensors": index, "transducer": transducer, "cases": out}, separators=(",", ":"))
    (folder / "decoding_beam.json").write_text(text.replace('{"decoder":"', '\n{"decoder":"') + "\n")


main()
