#!/usr/bin/env python3
"""Makes tests/systems/espnet/NAME/: published models in ESPnet's own layout, with random weights.

ESPNET=<folder that holds espnet2/> python3 tools/make_espnet_folders.py tests/systems/espnet [FAMILY...]

Each folder is what ESPnet's `pack` leaves: meta.yaml, exp/.../config.yaml written by ESPnet's own training
program (--dry_run), the weights, feats_stats.npz. expected.json beside it has what ESPnet's Speech2Text says
for the sounds of sound(): tests/systems/espnet/sound.h makes the same samples.
"""
import json
import logging
import os
import shutil
import sys
import warnings
from pathlib import Path

if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):  # before the imports, which need ESPnet
    print(__doc__.strip())
    sys.exit(0 if len(sys.argv) > 1 else 2)
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
import espnet_modules
import numpy as np
import torch
import yaml


class RNNTLoss(torch.nn.Module):
    """What the package warprnnt_pytorch has, in plain torch: -log of the sum over all alignments."""

    def __init__(self, blank=0, reduction="mean", fastemit_lambda=0.0):
        super().__init__()
        assert reduction == "mean" and fastemit_lambda == 0.0
        self.blank = blank

    def forward(self, logits, texts, frames, tokens):
        losses = []
        for scores, text, t, u in zip(logits.double().log_softmax(-1), texts.long(), frames.tolist(), tokens.tolist()):
            blank = scores[:t, : u + 1, self.blank]
            token = scores[:t, :u].gather(-1, text[:u].view(1, u, 1).expand(t, u, 1))[..., 0]
            sums = [torch.zeros((), dtype=torch.double)]  # of alignments up to this frame, by tokens said
            for i in range(t):
                after = [s + blank[i - 1, n] for n, s in enumerate(sums)] if i else sums
                for n in range(u):
                    longer = after[n] + token[i, n]
                    if i == 0:
                        after.append(longer)
                    else:
                        after[n + 1] = torch.logaddexp(after[n + 1], longer)
                sums = after
            losses.append(-sums[u] - blank[t - 1, u])
        return torch.stack(losses).mean().float()


espnet_modules.stand_in("warprnnt_pytorch", RNNTLoss=RNNTLoss)
from espnet2.bin import asr_inference, asr_transducer_inference, s2t_inference, s2t_inference_ctc, s2t_inference_language  # noqa: E402
from espnet2.tasks.asr import ASRTask  # noqa: E402
from espnet2.tasks.asr_transducer import ASRTransducerTask  # noqa: E402
from espnet2.tasks.lm import LMTask  # noqa: E402
from espnet2.tasks.s2t import S2TTask  # noqa: E402
from espnet2.tasks.s2t_ctc import S2TTask as S2TCTCTask  # noqa: E402

LETTERS = ["<blank>", "<unk>", "<space>", "E", "T", "y", "n", "1e3", "'", "null", "~", "é", "\u3000", "13_15", "on", ":", "#", "-", "<sos/eos>"]
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "y", "no", "1_0", "…"]


def owsm_list(*more):
    marks = ["<blank>", "<unk>", "<na>", "<nospeech>", *more, "<abk>", "<deu>", "<eng>", "<zul>", "<asr>", "<st_deu>", "<notimestamps>"]
    return marks + ["<%.2f>" % (i * 0.02) for i in range(1501)] + WORDS + ["<sos>", "<eos>", "<sop>"]


def sound(seed, count):
    """Noise whose loudness rises and falls; integers only, so that any language makes the same."""
    out, x = np.zeros(count, np.int64), seed
    for i in range(count):
        x = (x * 1103515245 + 12345) % 2147483648
        out[i] = ((x >> 16) % 8192 - 4096) * (1 + (i // 800 * (seed % 7 + 3)) % 11) // 11
    return (out / 32768).astype(np.float32)


COMMON = {"frontend_conf": {"n_fft": 512, "win_length": 400, "hop_length": 160, "n_mels": 20},
          "specaug": "specaug",
          "specaug_conf": {"apply_time_warp": True, "time_warp_window": 5, "time_mask_width_ratio_range": [0.0, 0.05]},
          "optim": "adam", "optim_conf": {"lr": 0.002}, "scheduler": "warmuplr", "scheduler_conf": {"warmup_steps": 15000},
          "batch_type": "numel", "batch_bins": 140000000, "accum_grad": 1, "max_epoch": 70, "keep_nbest_models": 10,
          "best_model_criterion": [["valid", "acc", "max"]]}
FAMILIES = {
    "conformer": (ASRTask, LETTERS, {
        "token_type": "char", "normalize": "global_mvn", "encoder": "conformer",
        "encoder_conf": {"output_size": 16, "attention_heads": 2, "linear_units": 24, "num_blocks": 2, "macaron_style": True,
                         "use_cnn_module": True, "cnn_module_kernel": 5, "input_layer": "conv2d", "rel_pos_type": "latest",
                         "pos_enc_layer_type": "rel_pos", "selfattention_layer_type": "rel_selfattn", "activation_type": "swish"},
        "decoder": "transformer", "decoder_conf": {"attention_heads": 2, "linear_units": 24, "num_blocks": 2},
        "model_conf": {"ctc_weight": 0.3, "lsm_weight": 0.1, "length_normalized_loss": False}},
        [{"beam_size": 1, "ctc_weight": 0.0}, {"beam_size": 4, "ctc_weight": 0.3}, {"beam_size": 3, "ctc_weight": 1.0}]),
    "ctc": (ASRTask, LETTERS, {
        "token_type": "char", "normalize": "utterance_mvn", "encoder": "transformer", "ctc_conf": {"ctc_type": "builtin2"},
        "encoder_conf": {"output_size": 16, "attention_heads": 2, "linear_units": 24, "num_blocks": 2, "input_layer": "conv2d2"},
        "model_conf": {"ctc_weight": 1.0}},
        [{"beam_size": 3, "ctc_weight": 1.0}]),
    "transducer": (ASRTask, LETTERS, {
        "token_type": "char", "normalize": "utterance_mvn", "encoder": "e_branchformer",
        "encoder_conf": {"output_size": 16, "attention_heads": 2, "linear_units": 24, "num_blocks": 1, "cgmlp_linear_units": 32,
                         "cgmlp_conv_kernel": 5, "use_ffn": True, "macaron_ffn": True, "merge_conv_kernel": 5, "input_layer": "conv2d6"},
        "decoder": "transducer", "decoder_conf": {"rnn_type": "lstm", "num_layers": 1, "hidden_size": 16, "dropout": 0.1, "dropout_embed": 0.2},
        "joint_net_conf": {"joint_space_size": 16}, "model_conf": {"ctc_weight": 0.3, "report_cer": True, "report_wer": True}},
        [{"beam_size": 1}, {"beam_size": 3}, {"beam_size": 4, "transducer_conf": {"search_type": "default", "score_norm": False}}]),
    "owsm": (S2TTask, owsm_list(), {
        "token_type": "word", "normalize": "global_mvn", "encoder": "e_branchformer",
        "encoder_conf": {"output_size": 16, "attention_heads": 2, "attention_layer_type": "selfattn", "pos_enc_layer_type": "abs_pos",
                         "rel_pos_type": "latest", "cgmlp_linear_units": 32, "cgmlp_conv_kernel": 5, "use_ffn": True, "macaron_ffn": True,
                         "merge_conv_kernel": 5, "linear_units": 24, "num_blocks": 2, "input_layer": "conv2d8", "use_flash_attn": False},
        "decoder": "transformer", "decoder_conf": {"attention_heads": 2, "linear_units": 24, "num_blocks": 1, "use_flash_attn": False},
        "model_conf": {"ctc_weight": 0.3, "lsm_weight": 0.1, "length_normalized_loss": False},
        "preprocessor": "s2t", "preprocessor_conf": {
            "text_prev_name": "text_prev", "text_ctc_name": "text_ctc", "fs": 16000, "na_symbol": "<na>", "speech_length": 30,
            "speech_resolution": 0.02, "speech_init_silence": 1.0, "text_prev_apply_prob": 0.5, "time_apply_prob": 0.5,
            "notime_symbol": "<notimestamps>", "first_time_symbol": "<0.00>", "last_time_symbol": "<30.00>"}},
        [{"beam_size": 1, "maxlenratio": -8}, {"beam_size": 4, "ctc_weight": 0.3, "maxlenratio": -8, "lang_sym": "<deu>", "task_sym": "<st_deu>"},
         {"beam_size": 3, "predict_time": True, "maxlenratio": -10}]),
}
FAMILIES["owsm_ctc"] = (S2TCTCTask, owsm_list("<nolang>"), {
    "token_type": "word", "normalize": "global_mvn", "encoder": "e_branchformer_ctc",
    "frontend_conf": dict(COMMON["frontend_conf"], fs="16k"),
    "encoder_conf": {"output_size": 16, "attention_heads": 2, "attention_layer_type": "selfattn", "pos_enc_layer_type": "abs_pos",
                     "rel_pos_type": "latest", "cgmlp_linear_units": 32, "cgmlp_conv_kernel": 5, "use_ffn": True, "macaron_ffn": True,
                     "merge_conv_kernel": 5, "linear_units": 24, "num_blocks": 3, "input_layer": "conv2d8", "use_flash_attn": False,
                     "interctc_layer_idx": [1, 2], "interctc_use_conditioning": True, "use_cross_attention": [False, False, True]},
    "promptencoder": "transformer",
    "promptencoder_conf": {"output_size": 8, "attention_heads": 2, "linear_units": 12, "num_blocks": 2},
    "model_conf": {"interctc_weight": 0.5, "ctc_asr_only": [True, True, False]},
    "preprocessor": "s2t_ctc", "preprocessor_conf": {
        "text_prev_name": "text_prev", "text_ctc_name": "text_ctc", "fs": 16000, "na_symbol": "<na>", "speech_length": 30,
        "speech_init_silence": 1.0, "text_prev_apply_prob": 0.5, "lang_apply_prob": 0.5, "nolang_symbol": "<nolang>"}},
    [{}, {"lang_sym": "<deu>", "task_sym": "<st_deu>"}, {"beam_size": 3, "maxlenratio": -8}])
# The task of its own for transducers, whose encoder is a list of blocks.
BLOCK = {"hidden_size": 16, "heads": 2, "conv_mod_kernel_size": 5, "dropout_rate": 0.1}
RNNT_CASES = [{"beam_size": 1}, {"beam_size": 4}, {"beam_size": 3, "beam_search_config": {"search_type": "default", "score_norm": True}}]
FAMILIES.update({
    "rnnt_conformer": (ASRTransducerTask, LETTERS, {
        "token_type": "char", "normalize": "global_mvn",
        "encoder_conf": {"main_conf": {"pos_wise_act_type": "swish", "conv_mod_act_type": "swish", "pos_enc_dropout_rate": 0.1},
                         "input_conf": {"vgg_like": False},
                         "body_conf": [dict(BLOCK, block_type="conformer", linear_size=24, num_blocks=2, pos_wise_dropout_rate=0.1)]},
        "decoder": "rnn", "decoder_conf": {"rnn_type": "lstm", "num_layers": 2, "embed_size": 12, "hidden_size": 16, "dropout_rate": 0.1},
        "joint_network_conf": {"joint_space_size": 16}, "model_conf": {"auxiliary_ctc_weight": 0.3, "auxiliary_lm_loss_weight": 0.2}},
        RNNT_CASES),
    # One that was trained to hear a stream: its convolutions look back only.
    "rnnt_ebranchformer": (ASRTransducerTask, LETTERS, {
        "token_type": "char", "normalize": "utterance_mvn",
        "encoder_conf": {"main_conf": {"dynamic_chunk_training": True, "short_chunk_size": 5, "num_left_chunks": 4},
                         "input_conf": {"subsampling_factor": 6},
                         "body_conf": [dict(BLOCK, block_type="ebranchformer", linear_size=32, depth_conv_kernel_size=3, num_blocks=2)]},
        "decoder": "stateless", "decoder_conf": {"embed_size": 16, "embed_dropout_rate": 0.1},
        "joint_network_conf": {"joint_space_size": 16, "lin_dec_bias": False}, "model_conf": {"report_cer": True}},
        RNNT_CASES),
    "rnnt_branchformer": (ASRTransducerTask, LETTERS, {
        "token_type": "char", "normalize": "utterance_mvn",
        "encoder_conf": {"input_conf": {"subsampling_factor": 4},
                         "body_conf": [dict(BLOCK, block_type="branchformer", linear_size=32), dict(BLOCK, block_type="branchformer", linear_size=32)]},
        "decoder": "rnn", "decoder_conf": {"rnn_type": "gru", "embed_size": 16, "hidden_size": 16},
        "joint_network_conf": {"joint_space_size": 16, "joint_activation_type": "relu"}},
        RNNT_CASES),
})
# Language models over LETTERS, and what is searched with them.
LMS = {"lm_transformer": {"lm": "transformer", "lm_conf": {"embed_unit": 8, "att_unit": 16, "head": 2, "unit": 24, "layer": 2, "pos_enc": "sinusoidal"}},
       "lm_rnn": {"lm": "seq_rnn", "lm_conf": {"unit": 12, "nlayers": 2, "rnn_type": "lstm"}},
       "lm_plain": {"lm": "transformer", "lm_conf": {"embed_unit": 8, "att_unit": 16, "head": 2, "unit": 24, "layer": 1}},
       "lm_gru": {"lm": "seq_rnn", "lm_conf": {"unit": 12, "nhid": 10, "nlayers": 1, "rnn_type": "gru"}}}
LM_CASES = [("conformer", "lm_transformer", {"beam_size": 4, "ctc_weight": 0.3, "lm_weight": 0.6}),
            ("conformer", "lm_rnn", {"beam_size": 3, "ctc_weight": 0.0, "lm_weight": 0.8}),
            ("conformer", "lm_gru", {"beam_size": 3, "ctc_weight": 0.5, "lm_weight": 0.4}),
            ("ctc", "lm_plain", {"beam_size": 3, "ctc_weight": 1.0, "lm_weight": 0.3}),
            ("ctc", "lm_rnn", {"beam_size": 4, "ctc_weight": 0.5, "lm_weight": 0.5})]
LENGTHS = {"asr": [16000, 23456, 40321, 9000] + [6000 + i * 3571 % 30000 for i in range(4, 32)],
           "s2t": [320000, 200001, 470000, 90000] + [50000 + i * 73421 % 430000 for i in range(4, 32)]}
# What the first four sounds are said to be when a model is adapted: text, text_prev, text_ctc.
LESSONS = {"asr": [["TEn"], ["E"], ["y T"], ["nE"]],
           "s2t": [["<eng> <asr> <0.00> one two <1.00>", "<na>", "one two"],
                   ["<deu> <st_deu> <notimestamps> three", "four five six", "<na>"],
                   ["<eng> <asr> <0.20> seven eight <1.40> <2.00> nine <29.80>", "one", "seven eight nine"],
                   ["<eng> <asr> <notimestamps> two", "<na>", "two two"]]}


def write_config(task, tokens, settings, exp):
    """config.yaml by ESPnet's own training program."""
    name = "s2t" if task in (S2TTask, S2TCTCTask) else "asr"
    stats = Path("exp") / (name + "_stats_raw") / "train"
    lists = Path("data/token_list")
    for folder in (exp, stats, lists):
        folder.mkdir(parents=True)
    (lists / "tokens.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    settings = dict(COMMON, **settings, token_list=str(lists / "tokens.txt"), output_dir=str(exp), dry_run=True, ngpu=0)
    if settings["normalize"] == "global_mvn":
        bands = settings["frontend_conf"]["n_mels"]
        rng = np.random.RandomState(3)
        mean = -8 + rng.rand(bands)
        np.savez(stats / "feats_stats.npz", count=1000.0, sum=1000 * mean, sum_square=1000 * (mean**2 + 2 + rng.rand(bands)))
        settings["normalize_conf"] = {"stats_file": str(stats / "feats_stats.npz")}
    Path("train.yaml").write_text(yaml.safe_dump(settings))
    task.main(cmd=["--config", "train.yaml"])
    os.remove("train.yaml")
    shutil.rmtree("data")
    return name


def random_weights(model):
    torch.manual_seed(11)
    for key, p in model.named_parameters():
        # Large where sound and past meet, so that words depend on both.
        scale = 1.2 if "src_attn" in key or "decoder.embed" in key or "output_layer" in key or "ctc_lo" in key else 0.35
        p.data = torch.randn_like(p) * (scale if p.dim() > 1 else 0.1)
        if "norm" in key and key.endswith("weight"):
            p.data += 1.0
        if key == "decoder.output_layer.bias" and len(p) > 1000:
            p.data[-len(WORDS) - 3 : -3] += 4.0  # or 1,501 times would be all it says
        if key == "ctc.ctc_lo.bias" and any("prompt_encoder" in name for name, _ in model.named_modules()):
            p.data[-len(WORDS) - 3 : -3] += 10.0
            p.data[0] += 8.0
    for key, b in model.named_buffers():
        if key.endswith("running_mean"):
            b += 0.1 * torch.randn_like(b)
        if key.endswith("running_var"):
            b += torch.rand_like(b)


@torch.no_grad()
def balance(model, blanks):
    """A joint network that hears which frame it is and what came before, and mostly says blank: else no search of it would end."""
    model.eval()
    model.encoder.dynamic_chunk_training = False
    joint, size = model.joint_network, len(LETTERS)
    for key, p in model.decoder.named_parameters():
        p *= 3 if key.startswith("rnn") else 1
    frames = torch.cat([model.encode(torch.tensor(sound(i + 1, 16000))[None], torch.tensor([16000]))[0][0] for i in range(6)])
    states = model.decoder(torch.randint(0, size, (20, 12))).reshape(-1, joint.lin_dec.in_features)
    joint.lin_enc.bias.zero_()
    for layer, seen, spread in ((joint.lin_enc, frames, 1.5), (joint.lin_dec, states, 1.0)):
        layer.weight *= spread / (seen @ layer.weight.T).std(0)[:, None]
        joint.lin_enc.bias -= layer.weight @ seen.mean(0)
    joint.lin_out.weight.normal_(std=1.5)
    heard = frames[torch.randint(0, len(frames), (4000,))]
    said = joint(heard, states[torch.randint(0, len(states), (4000,))])
    joint.lin_out.bias[0] += (said[:, 1:].max(1).values - said[:, 0]).quantile(blanks)


def old_names(state):
    """As files before 2026-02 have them: a Sequential of the linear layer and the positions."""
    return {k.replace("embed.out.", "embed.out.0.") if ".embed.out." in k and k.split(".embed.out.")[1] in ("weight", "bias") else k: v
            for k, v in state.items()}


def lesson_batch(task, args, texts_of):
    """The first sounds as one batch, by ESPnet's own preprocessor."""
    name = "s2t" if task is S2TTask else "asr"
    prepare = task.build_preprocess_fn(args, train=False)
    samples = []
    for i, texts in enumerate(texts_of):
        data = {"speech": sound(i + 1, LENGTHS[name][i]), "text": texts[0]}
        if name == "s2t":  # the first token is always dropped, as sentencepiece makes one of nothing there
            data.update(text="one " + texts[0], text_prev=texts[1], text_ctc=texts[2])
        data = prepare(str(i), data)
        data["speech"] = data["speech"].reshape(-1)  # S2T makes a channel of it
        samples.append((str(i), data))
    return task.build_collate_fn(args, train=True)(samples)[1]


def lesson(task, exp, weights):
    """Loss of one step of plain gradient descent, and of the model afterwards."""
    model, args = task.build_model_from_file(str(exp / "config.yaml"), str(weights), "cpu")
    texts = LESSONS["s2t" if task is S2TTask else "asr"]
    if task is not S2TTask:  # alone: what a sound is padded to has a say there (lengths, BatchNorm), and none here
        texts = texts[:1]
    batch = lesson_batch(task, args, texts)
    model.specaug = model.error_calculator = model.error_calculator_trans = None
    if task is ASRTransducerTask:  # adapted as task asr: no loss of a language model, no random chunks
        model.use_auxiliary_lm_loss = model.report_cer = model.encoder.dynamic_chunk_training = False
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    copy = lambda: {k: v.clone() for k, v in batch.items()}
    model.train()
    loss, _, _ = model(**copy())
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.002 * p.grad if p.grad is not None else 0.0
    model.eval()
    with torch.no_grad():
        after, stats, _ = model(**copy())
    stats = {k.replace("aux_", ""): float(v) for k, v in stats.items() if v is not None and k.startswith("loss")}
    return {"step": float(loss), "after": float(after), "stats": stats,
            "texts": texts}


def asr_cases(folder, files, cases, make=asr_inference.Speech2Text):
    out = []
    for case in cases:
        more = {} if "rnnt" in folder.name else {"maxlenratio": -10 if case.get("ctc_weight", 0) < 1 else 0.0}
        recognise = make(**files, **case, **more, nbest=2)
        texts, tokens, scores = [], [], []
        for i, count in enumerate(LENGTHS["asr"]):
            best = recognise(sound(i + 1, count))[0]
            texts.append(best[0]), tokens.append(best[1])
            scores.append(float(best[3].score))
        out.append({"options": case, "text": texts, "tokens": tokens, "score": scores})
    return {"cases": out}


def rnnt_cases(folder, files, cases):
    make = lambda **options: asr_transducer_inference.Speech2Text(return_decoded_hyp=True, **options)
    return asr_cases(folder, files, cases, make)


def s2t_cases(folder, files, cases):
    out = []
    for case in cases:
        recognise = s2t_inference.Speech2Text(**files, **case)
        results = [recognise(sound(i + 1, count))[0] for i, count in enumerate(LENGTHS["s2t"])]
        out.append({"options": case, "text": [r[3] for r in results], "full": [r[0] for r in results], "score": [float(r[4].score) for r in results]})
    recognise = s2t_inference.Speech2Text(**files, beam_size=1, maxlenratio=-8)
    before = [recognise(sound(i + 1, count), text_prev="one two")[0][3] for i, count in enumerate(LENGTHS["s2t"][:4])]
    recognise = s2t_inference.Speech2Text(**files, beam_size=2, maxlenratio=-12)
    long_sound = sound(5, 16000 * 75)
    guess = s2t_inference_language.Speech2Language(**files, nbest=2)
    return {"cases": out, "text_prev": before, "long": recognise.decode_long(long_sound),
            "long_conditioned": recognise.decode_long(long_sound, condition_on_prev_text=True, init_text="six"),
            "languages": [guess(sound(i + 1, count)) for i, count in enumerate(LENGTHS["s2t"][:4])]}


def s2t_ctc_cases(folder, files, cases):
    window = lambda samples: np.pad(samples, (0, 480000 - len(samples)))
    out = []
    for case in cases:
        greedy = s2t_inference_ctc.Speech2TextGreedySearch(**files, **case)
        if "beam_size" in case:
            greedy = s2t_inference_ctc.Speech2Text(**files, **case)
        results = [greedy(window(sound(i + 1, count)))[0] for i, count in enumerate(LENGTHS["s2t"])]
        out.append({"options": case, "text": [r[3] for r in results], "full": [r[0] for r in results]})
    greedy = s2t_inference_ctc.Speech2TextGreedySearch(**files)
    return {"cases": out, "text_prev": [greedy(window(sound(i + 1, count)), text_prev="one two")[0][3] for i, count in enumerate(LENGTHS["s2t"][:4])],
            "long": greedy.decode_long_batched_buffered(sound(5, 16000 * 75), batch_size=2, context_len_in_secs=4)}


def make_lm(out, name):
    root = out / name
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    home = os.getcwd()
    os.chdir(root)
    Path("tokens.txt").write_text("\n".join(LETTERS) + "\n", encoding="utf-8")
    Path("train.yaml").write_text(yaml.safe_dump(dict(LMS[name], token_list="tokens.txt", token_type="char", output_dir=".", dry_run=True, ngpu=0)))
    LMTask.main(cmd=["--config", "train.yaml"])
    os.remove("train.yaml"), os.remove("tokens.txt")
    model, _ = LMTask.build_model_from_file("config.yaml", None, "cpu")
    torch.manual_seed(5)
    for key, p in model.named_parameters():
        p.data = torch.randn_like(p) * (0.7 if p.dim() > 1 else 0.1) + (1.0 if "norm" in key and key.endswith("weight") else 0.0)
    torch.save(model.state_dict(), "valid.loss.ave.pth")
    os.chdir(home)


def lm_cases(out):
    """Of folders made before: conformer and ctc."""
    cases = []
    for family, lm, options in LM_CASES:
        home = os.getcwd()
        os.chdir(out / family)
        exp = Path("exp/asr_train_raw")
        state = torch.load(exp / "valid.acc.ave_10best.pth")
        torch.save({k.replace(".embed.out.0.", ".embed.out."): v for k, v in state.items()}, "modern.pth")
        recognise = asr_inference.Speech2Text(str(exp / "config.yaml"), "modern.pth", lm_train_config=str(out / lm / "config.yaml"),
                                              lm_file=str(out / lm / "valid.loss.ave.pth"), maxlenratio=-10, nbest=2, **options)
        os.remove("modern.pth")
        os.chdir(home)
        found = [recognise(sound(i + 1, count))[0] for i, count in enumerate(LENGTHS["asr"])]
        cases.append({"family": family, "lm": lm, "options": options, "text": [f[0] for f in found], "score": [float(f[3].score) for f in found]})
    (out / "lm.json").write_text(json.dumps({"cases": cases}, indent=1, ensure_ascii=False) + "\n")


def make(out, family):
    task, tokens, settings, cases = FAMILIES[family]
    root = out / family
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    home = os.getcwd()
    os.chdir(root)
    name = "s2t" if task in (S2TTask, S2TCTCTask) else "asr"
    exp = Path("exp") / (name + "_train_raw")
    write_config(task, tokens, settings, exp)
    model, _ = task.build_model_from_file(str(exp / "config.yaml"), None, "cpu")
    random_weights(model)
    if task is ASRTransducerTask:
        balance(model, 0.99 if "lstm" in str(settings) else 0.95)
    weights = exp / "valid.acc.ave_10best.pth"
    torch.save(model.state_dict(), weights)
    files = {name + "_train_config": str(exp / "config.yaml"), name + "_model_file": str(weights)}
    expected = {S2TTask: s2t_cases, S2TCTCTask: s2t_ctc_cases, ASRTask: asr_cases, ASRTransducerTask: rnnt_cases}[task](root, files, cases)
    if family != "owsm_ctc":  # which is not trained here
        expected["lesson"] = lesson(task, exp, weights)
    if family == "conformer":  # a file of 2023 has the old names
        torch.save(old_names(model.state_dict()), weights)
    (exp / "RESULTS.md").write_text("# RESULTS\n")
    meta = {"files": {name + "_model_file": str(weights)}, "yaml_files": {name + "_train_config": str(exp / "config.yaml")},
            "timestamp": 1700000000.0, "python": sys.version, "torch": str(torch.__version__), "espnet": "202609"}
    Path("meta.yaml").write_text(yaml.safe_dump(meta))
    shutil.rmtree(Path("exp") / (name + "_train_raw") / "att_ws", ignore_errors=True)
    os.chdir(home)
    (out / (family + ".json")).write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")
    print(family, sum(f.stat().st_size for f in root.rglob("*") if f.is_file()), "bytes")
    for case in expected["cases"]:
        print(" ", case["options"], case["text"])


if __name__ == "__main__":
    out = Path(sys.argv[1]).absolute()
    for family in sys.argv[2:] or [*FAMILIES, "lm"]:
        if family == "lm":
            for name in LMS:
                make_lm(out, name)
            lm_cases(out)
        else:
            make(out, family)
