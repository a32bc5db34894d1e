#!/usr/bin/env python3
"""Compare with transformers what this program reads from and writes for it.

    make && make build/release/dev/hf_logits
    dev/verify_hf.py [MODEL_DIR ...]       default: the models of test/fixtures/hf_*

For each model: our logits from its files; then a run of train_gpt that starts from it (one step at learning rate 0, so
that no weight moves) is exported, and transformers must load the export and compute the same logits; then one that
trains, whose export must give transformers the logits that it gives us. Logits agree to 1e-4 of the largest, in fp32.
Needs transformers, torch and h5py; exits with status 1 at the first disagreement.
"""
import glob
import os
import subprocess
import sys
import tempfile

import h5py
import numpy as np
import torch
from transformers import AutoModelForCausalLM

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build/release"))
SEQ_LEN, SEQUENCES = 24, 4


def run(*command):
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        sys.exit(f"{' '.join(command)}\n{process.stdout}{process.stderr}")


def our_logits(model, tokens, scratch):
    out = os.path.join(scratch, "logits")
    run(os.path.join(BUILD, "dev/hf_logits"), model, out, *map(str, tokens))
    return np.fromfile(out, np.float32).reshape(len(tokens), -1)


def their_logits(model, tokens):
    model, info = AutoModelForCausalLM.from_pretrained(model, torch_dtype=torch.float32, output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[key]:
            sys.exit(f"transformers: {key} {info[key]}")
    with torch.no_grad():
        return model.eval()(torch.tensor(tokens[None])).logits[0].numpy()


def compare(what, a, b):
    error = np.abs(a - b).max() / np.abs(b).max()
    print(f"    {what}: {error:.1e}")
    if not error < 1e-4:
        sys.exit(f"{what}: the logits differ by {error:.1e} of the largest")


def train_and_export(model, scratch, name, *options):
    out, export = os.path.join(scratch, "run-" + name), os.path.join(scratch, "export-" + name)
    run(os.path.join(BUILD, "train_gpt"), "--init-from", model, "--train", os.path.join(scratch, "train.h5"), "--out", out,
        "--seq-len", str(SEQ_LEN), "--micro-batch", "1", "--dtype", "fp32", "--warmup", "0", *options)
    run(os.path.join(BUILD, "train_gpt"), "--export-hf", export, "--out", out)
    return export


def verify(model, scratch):
    vocab = AutoModelForCausalLM.from_pretrained(model).config.vocab_size
    tokens = np.random.default_rng(5).integers(0, vocab, SEQ_LEN * SEQUENCES + 1)
    with h5py.File(os.path.join(scratch, "train.h5"), "w") as f:
        f["tokens"] = tokens.astype(np.uint32)
        f.attrs["vocab_size"] = vocab
    tokens = tokens[:SEQ_LEN]
    theirs = their_logits(model, tokens)
    compare("ours from their files", our_logits(model, tokens, scratch), theirs)
    export = train_and_export(model, scratch, "same", "--steps", "1", "--lr", "0")
    compare("theirs from our export", their_logits(export, tokens), theirs)
    export = train_and_export(model, scratch, "trained", "--steps", "3", "--lr", "1e-2")
    trained = their_logits(export, tokens)
    compare("theirs from our trained export", trained, our_logits(export, tokens, scratch))
    if np.abs(trained - theirs).max() < 1e-2:
        sys.exit("training changed nothing")


def main():
    for model in sys.argv[1:] or sorted(glob.glob(os.path.join(ROOT, "test/fixtures/hf_*/"))):
        print(model)
        with tempfile.TemporaryDirectory() as scratch:
            verify(model, scratch)


if __name__ == "__main__":
    main()
