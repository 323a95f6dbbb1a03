#!/usr/bin/env python3
"""Makes tests/speech/vectors/*.safetensors: what ESPnet computes for small random models.

ESPNET=<folder that holds espnet2/> python3 tools/make_speech_vectors.py tests/speech/vectors

Every NAME.yaml of the folder is a `model` block for ESPnet's ASR task; NAME.safetensors gets
  weights:   w.<state_dict key>
  one batch: x (B,T,F), text (B,L); in eval mode enc, ctc (log-probabilities), dec (logits); in
             training mode (dropout is 0) loss, loss_ctc, loss_att, acc and g.<parameter> (gradients)
  (transducer.yaml and frontend.yaml: see transducer_vectors and frontend_vectors)
  a padded batch: px, px_lengths, ptext, ptext_lengths, and what ESPnet gives for each utterance
             *alone*: penc.<i>, and the mean of the losses, ploss.
"""
import json
import struct
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
import espnet_modules  # noqa: F401
import numpy as np
import torch
import yaml

from espnet2.asr.ctc import CTC  # noqa: E402
from espnet2.asr.decoder.transformer_decoder import TransformerDecoder  # noqa: E402
from espnet2.asr.encoder.conformer_encoder import ConformerEncoder  # noqa: E402
from espnet2.asr.encoder.e_branchformer_encoder import EBranchformerEncoder  # noqa: E402
from espnet2.asr.encoder.transformer_encoder import TransformerEncoder  # noqa: E402
from espnet2.asr.espnet_model import ESPnetASRModel  # noqa: E402
from espnet2.asr.frontend.default import DefaultFrontend  # noqa: E402

ENCODERS = {"transformer": TransformerEncoder, "conformer": ConformerEncoder, "e_branchformer": EBranchformerEncoder}


def write_safetensors(path, tensors):
    header, blobs, offset = {}, [], 0
    for name in sorted(tensors):
        array = tensors[name].detach().contiguous().numpy()
        kind = {"float32": "F32", "int64": "I64"}[str(array.dtype)]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        blobs.append(array.tobytes())
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    print(path.name, path.stat().st_size, "bytes")


def make_model(conf):
    vocab = conf["vocab_size"]
    encoder = ENCODERS[conf["encoder"]](input_size=conf["input_size"], **conf["encoder_conf"])
    decoder = TransformerDecoder(vocab_size=vocab, encoder_output_size=encoder.output_size(), **conf["decoder_conf"])
    return ESPnetASRModel(
        vocab_size=vocab, token_list=["<blank>"] + ["t%d" % i for i in range(vocab - 2)] + ["<sos/eos>"], frontend=None,
        specaug=None, normalize=None, preencoder=None, encoder=encoder, postencoder=None, decoder=decoder,
        ctc=CTC(odim=vocab, encoder_output_size=encoder.output_size()), joint_network=None, report_cer=False,
        report_wer=False, **conf["model_conf"])


def model_vectors(conf):
    torch.manual_seed(conf.pop("seed", 1))
    model = make_model(conf)
    for p in model.parameters():  # nothing stays at a value that hides a mistake (zero biases, unit norms)
        if p.dim() == 1:
            p.data += 0.1 * torch.randn_like(p)
    for name, b in model.named_buffers():
        if name.endswith("running_mean"):
            b += 0.1 * torch.randn_like(b)
        if name.endswith("running_var"):
            b += torch.rand_like(b)
    size, vocab = conf["input_size"], conf["vocab_size"]
    out = {"w." + k: v.clone() for k, v in model.state_dict().items()}

    x, text = torch.randn(2, 63, size), torch.randint(1, vocab - 1, (2, 4))
    lens, tlens = torch.tensor([63, 63]), torch.tensor([4, 4])
    out.update(x=x, text=text)
    model.eval()

    def encode(x, lens):
        got, got_lens = model.encode(x.clone(), lens)
        return got[0] if isinstance(got, tuple) else got

    with torch.no_grad():
        enc = encode(x, lens)
        out.update(enc=enc, ctc=model.ctc.log_softmax(enc))
        ys = torch.nn.functional.pad(text, (1, 0), value=vocab - 1)
        out["dec"] = model.decoder(enc, torch.full((2,), enc.size(1)), ys, tlens + 1)[0]
        lengths, tlengths = [63, 47, 38], [3, 4, 1]
        px, ptext = torch.zeros(3, 63, size), torch.full((3, 4), -1)
        losses = []
        for i, (n, m) in enumerate(zip(lengths, tlengths)):
            px[i, :n] = torch.randn(n, size)
            ptext[i, :m] = torch.randint(1, vocab - 1, (m,))
            one, one_text = px[i : i + 1, :n], ptext[i : i + 1, :m]
            out["penc.%d" % i] = encode(one, torch.tensor([n]))[0]
            losses.append(model(one.clone(), torch.tensor([n]), one_text.clone(), torch.tensor([m]))[0].mean())
        out.update(px=px, ptext=ptext, px_lengths=torch.tensor(lengths), ptext_lengths=torch.tensor(tlengths),
                   ploss=torch.stack(losses).mean())
    model.train()
    loss, stats, _ = model(x.clone(), lens, text.clone(), tlens)
    loss.mean().backward()
    out["loss"] = loss.mean()
    out.update({k: v.mean() for k, v in stats.items() if v is not None and k != "loss"})
    out.update({"g." + k: p.grad for k, p in model.named_parameters() if p.grad is not None})
    return out


def frontend_vectors(conf):
    torch.manual_seed(3)
    frontend = DefaultFrontend(frontend_conf=None, **conf["frontend_conf"])
    out, lengths = {"melmat": frontend.logmel.melmat}, [2400, 1777]
    speech = torch.zeros(2, 2400)
    for i, n in enumerate(lengths):
        speech[i, :n] = 0.1 * torch.randn(n) * torch.linspace(0.01, 1, n)
        out["feats.%d" % i] = frontend(speech[i : i + 1, :n], torch.tensor([n]))[0][0]
    out.update(speech=speech, lengths=torch.tensor(lengths))
    return out


def transducer_vectors(conf):
    from espnet2.asr.decoder.transducer_decoder import TransducerDecoder
    from espnet2.asr_transducer.joint_network import JointNetwork

    torch.manual_seed(5)
    decoder = TransducerDecoder(conf["vocab_size"], embed_pad=0, **conf["decoder_conf"]).eval()
    joint = JointNetwork(conf["vocab_size"], conf["encoder_size"], decoder.dunits, **conf["joint_net_conf"])
    out = {"w.decoder." + k: v for k, v in decoder.state_dict().items()}
    out.update({"w.joint_network." + k: v for k, v in joint.state_dict().items()})
    labels = torch.cat([torch.zeros(2, 1, dtype=torch.long), torch.randint(1, conf["vocab_size"], (2, 4))], 1)
    encoded = torch.randn(2, 6, conf["encoder_size"])
    predicted = decoder(labels)
    out.update(labels=labels, encoded=encoded, predicted=predicted,
               joint=joint(encoded.unsqueeze(2), predicted.unsqueeze(1)))
    return out


folder = Path(sys.argv[1])
for path in sorted(folder.glob("*.yaml")):
    conf = yaml.safe_load(path.read_text())
    make = model_vectors if "encoder" in conf else transducer_vectors if "decoder" in conf else frontend_vectors
    vectors = make(conf)
    write_safetensors(path.with_suffix(".safetensors"), vectors)
