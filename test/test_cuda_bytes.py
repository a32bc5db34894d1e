#!/usr/bin/env python3
"""What one more layer costs on CUDA: launches, and bytes of the kernels around the matmuls, counted by the simulator.

The race build of dev/cudasim counts every load and store. A run of one step with two layers less one with one is a
layer, forward and backward, without the optimizer. `test_cuda_bytes.py --table` prints what was counted. Needs the CUDA
headers; no GPU.
"""
import csv
import os
import re
import subprocess
import sys
import tempfile
import unittest

import h5py
import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODE = os.path.join("build", "cudasim", "race")
TRAIN = os.path.join(ROOT, MODE, "train_gpt")
B, T, HEADS, KV_HEADS, C = 2, 128, 4, 2, 256
R, D = B * T, C // HEADS
E = 2  # bytes of bf16
MOST_LAUNCHES, MOST_BYTES = 24, 1.3  # a layer; times the minimum
MATMULS = 12  # forward, dx and dw of four weights; not counted, as the measurement of the peak runs a varying number
NOT_LAUNCHES = {"adamw", "sum_squares", "convert", "add",  # of a unit, once a step
                "copy", "memset", "event", "wait", "host", "cublasLtMatmul"}


def setUpModule():
    make = subprocess.run(["make", "-s", "-j2", os.path.join(MODE, "train_gpt")], cwd=ROOT, capture_output=True, text=True)
    if "No rule to make target" in make.stderr:
        print("SKIPPED: the CUDA headers are not here, so no bytes can be counted on this machine (the CUDA toolkit has "
              "them; CUDA_HOME says where)", file=sys.stderr)
        raise unittest.SkipTest("no CUDA headers")
    if make.returncode != 0:
        raise RuntimeError("make train_gpt:\n" + make.stdout + make.stderr)


def count(model, layers, directory):
    """What each operation of one step did: name → column → number."""
    shard, stats = os.path.join(directory, "train.h5"), os.path.join(directory, "stats.tsv")
    with h5py.File(shard, "w") as file:
        file["tokens"] = (np.arange(8 * R) * 7 % 251).astype(np.uint16)
        file.attrs["vocab_size"] = 257
    arguments = [TRAIN, "--model", model + "-tiny", "--layers", layers, "--heads", HEADS, "--channels", C, "--micro-batch", B,
                 "--seq-len", T, "--steps", 1, "--dtype", "bf16", "--train", shard, "--device", "cuda", "--threads", 1,
                 "--out", os.path.join(directory, f"{model}-{layers}")]
    if model == "llama":
        arguments += ["--kv-heads", KV_HEADS, "--ffn", 3 * C]
    # One multiprocessor: as many rows for each as a large micro-batch gives those of a GPU.
    settings = {"CUDASIM_STATS": stats, "CUDASIM_SMS": "1"}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CUDASIM_")}
    done = subprocess.run([str(a) for a in arguments], env={**environment, **settings}, timeout=300,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stdout)
    counts = {}
    with open(stats, encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            name = re.sub(r"^\W*(\w+).*", r"\1", row.pop("name"))
            sums = counts.setdefault(name, dict.fromkeys(row, 0.0))
            for column, number in row.items():
                sums[column] += float(number)
    return counts


def layer(model):
    with tempfile.TemporaryDirectory() as directory:
        less, more = count(model, 1, directory), count(model, 2, directory)
    difference = {name: {column: number - less.get(name, {}).get(column, 0) for column, number in row.items()}
                  for name, row in more.items()}
    return {name: row for name, row in difference.items() if row["launches"] > 0}


def minimum(model):
    """Bytes of the kernels around the matmuls of a layer if every input is read and every output written once."""
    row_sums, weights = 4 * R, C * E
    if model == "gpt2":
        F, W = 4 * C, 3 * C
        return {"norm_forward": 2 * (2 * R * C * E + 2 * row_sums + 2 * weights),
                "norm_backward": 2 * (4 * R * C * E + 2 * row_sums + weights + 2 * 4 * C),
                "gelu_forward": 2 * R * F * E,
                "column_sums": 3 * R * F * E + 4 * F + (C + C + W) * (R * E + 4)}
    F, turned = 3 * C, (HEADS + KV_HEADS) * D
    return {"norm_forward": 2 * (2 * R * C * E + row_sums + weights),
            "norm_backward": 2 * (4 * R * C * E + row_sums + weights + 4 * C),
            "rotate": 2 * (2 * R * turned * E + T * D * 4),
            "swiglu_forward": 3 * R * F * E,
            "swiglu_backward": 5 * R * F * E}


def moved(row, prefix=""):
    return row[prefix + "load_bytes"] + row[prefix + "store_bytes"]


class Layer(unittest.TestCase):
    def check(self, model):
        counted, least = layer(model), minimum(model)
        launches = MATMULS + sum(row["launches"] for name, row in counted.items() if name not in NOT_LAUNCHES)
        self.assertLessEqual(launches, MOST_LAUNCHES, counted.keys())
        self.assertTrue(least.keys() <= counted.keys(), counted.keys())
        total = sum(moved(counted[name]) for name in least)
        self.assertLessEqual(total, MOST_BYTES * sum(least.values()), model)
        for name, bytes_ in least.items():
            self.assertLessEqual(moved(counted[name], "distinct_"), MOST_BYTES * bytes_, f"{model}: {name}")
            width = moved(counted[name]) / (counted[name]["loads"] + counted[name]["stores"])
            self.assertGreaterEqual(width, 12, f"{model}: bytes an access of {name}")  # all but means, sums and rstd: 16
        return counted

    def test_gpt2(self):
        self.check("gpt2")

    def test_llama(self):
        self.check("llama")


def table():
    setUpModule()
    for model in ("gpt2", "llama"):
        counted, least = layer(model), minimum(model)
        print(f"{model}: one layer, {R} rows of {C} channels, bf16")
        for name, row in sorted(counted.items()):
            accesses = row["loads"] + row["stores"]
            print(f"  {name:28s} {row['launches']:3.0f} launches  {moved(row):10.0f} bytes  once {moved(row, 'distinct_'):10.0f}"
                  f"  {moved(row) / accesses if accesses else 0:5.1f} an access"
                  + (f"  {moved(row) / least[name]:.2f} of the minimum" if name in least else ""))


if __name__ == "__main__":
    if "--table" in sys.argv:
        table()
    else:
        unittest.main()
