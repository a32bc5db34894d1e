#!/usr/bin/env python3
"""The CUDA backend in the simulator (dev/cudasim): training, and running out of memory. test_cuda_ops.py has the rest.

Needs the CUDA headers; no GPU. dev/matrix.sh runs more of the same.
"""
import json
import os
import tempfile
import unittest

import h5py
import numpy as np

from simulated import build, run

STREAM_ORDERS = 10
SHAPE = ["--layers", "2", "--heads", "4", "--channels", "64", "--seq-len", "48", "--micro-batch", "2", "--lr", "3e-3",
         "--steps", "5", "--threads", "1"]
MODELS = {"gpt2": ["--model", "gpt2-tiny"] + SHAPE, "llama": ["--model", "llama-tiny", "--kv-heads", "2"] + SHAPE}


def setUpModule():
    build()


class WithShard(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.shard = os.path.join(cls.directory.name, "train.h5")
        walk = np.cumsum(np.random.default_rng(1).integers(-3, 4, 20000)) % 32
        with h5py.File(cls.shard, "w") as file:
            file["tokens"] = walk.astype(np.uint16)
            file.attrs["vocab_size"] = 257

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()


class Training(WithShard):
    """train_gpt itself, on the simulated device and on the CPU."""

    def setUp(self):
        self.runs = 0

    def train(self, model, *arguments, device="cuda", out=None, mode="plain", **settings):
        """The log of a run that must succeed."""
        self.runs += 1
        out = out or os.path.join(self.directory.name, f"{self.id().split('.')[-1]}-{self.runs}")
        arguments = [*MODELS[model], "--train", self.shard, "--device", device, "--out", out, *arguments]
        status, output = run(mode, "train_gpt", *arguments, **{"leaks": 1, **settings})
        self.assertEqual(status, 0, f"train_gpt {' '.join(arguments)} {settings}:\n{output[-3000:]}")
        with open(os.path.join(out, "log.jsonl"), encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def losses(self, log):
        return np.array([event["loss"] for event in log if event["event"] == "step"])

    def hashes(self, log):
        end = [event for event in log if event["event"] == "end"][-1]
        return end["weights_hash"], end["state_hash"]

    def test_losses_are_those_of_the_cpu(self):
        for model in MODELS:
            for dtype, tolerance in (("fp32", 1e-5), ("bf16", 2e-2), ("fp16", 2e-2)):
                cpu = self.losses(self.train(model, "--dtype", dtype, device="cpu"))
                cuda = self.losses(self.train(model, "--dtype", dtype))
                self.assertEqual(len(cuda), 5)
                np.testing.assert_allclose(cuda, cpu, rtol=tolerance, err_msg=f"{model} {dtype}")

    def test_tf32(self):
        """Rounded operands: other bits, and losses that are close."""
        exact, rounded = (self.train("gpt2", "--tf32", tf32) for tf32 in ("off", "on"))
        self.assertNotEqual(self.hashes(exact), self.hashes(rounded))
        np.testing.assert_allclose(self.losses(rounded), self.losses(exact), rtol=2e-3)  # 2^-11 an operand, twice a product

    def test_same_bits(self):
        """Whatever the order of streams, of blocks and threads, and what --recompute keeps; accumulation has its own."""
        for model in MODELS:
            common = ["--dtype", "bf16"]
            want = self.hashes(self.train(model, *common))
            for recompute in ("selective", "full"):
                got = self.hashes(self.train(model, *common, "--recompute", recompute, order="reverse"))
                self.assertEqual(got, want, f"{model} --recompute {recompute}")
            accumulating = {self.hashes(self.train(model, *common, "--grad-accum", "3", "--recompute", recompute, seed=seed))
                            for seed, recompute in enumerate(("none", "selective", "full"))}
            self.assertEqual(len(accumulating), 1, f"{model}: recompute modes differ with --grad-accum 3")

    def test_stream_orders(self):
        common = ["--dtype", "bf16", "--zero", "3", "--grad-accum", "2"]
        want = self.hashes(self.train("gpt2", *common, "--overlap", "off"))
        for seed in range(STREAM_ORDERS):
            got = self.hashes(self.train("gpt2", *common, streams="random", blocks="random", threads="random", seed=seed))
            self.assertEqual(got, want, f"stream order {seed}")

    def test_no_races(self):
        self.train("gpt2", "--dtype", "bf16", "--zero", "2", "--grad-accum", "2", "--steps", "2", mode="race")
        self.train("llama", "--zero", "3", "--steps", "2", mode="race")

    def test_under_sanitizers(self):
        self.train("llama", "--dtype", "fp16", "--sample-every", "2", "--steps", "2", mode="sanitize", leaks=0)

    def test_host_keeps_out_of_device_memory(self):
        self.train("gpt2", "--dtype", "bf16", "--sample-every", "2", protect=1)

    def test_checkpoints_load_on_the_other_device(self):
        for there, here in (("cpu", "cuda"), ("cuda", "cpu")):
            out = os.path.join(self.directory.name, f"checkpoint-{there}")
            self.train("llama", "--checkpoint-every", "2", "--stop-at", "2", device=there, out=out)
            whole = self.losses(self.train("llama", device=there))
            resumed = self.losses(self.train("llama", "--checkpoint-every", "2", device=here, out=out))
            np.testing.assert_allclose(resumed[-3:], whole[-3:], rtol=1e-5, err_msg=f"{there} to {here}")

    def test_memory_is_as_predicted(self):
        for stage in ("0", "3"):
            start = [event for event in self.train("gpt2", "--dtype", "bf16", "--zero", stage) if event["event"] == "start"]
            self.assertEqual(start[0]["ranks_as_predicted"], 1)

    def test_auto_says_what_it_took(self):
        for devices, what in ((1, "--device auto: a GPU answers"), (0, r"--device auto: the CPU, as no GPU answers \(")):
            out = os.path.join(self.directory.name, f"auto-{devices}")
            status, output = run("plain", "train_gpt", *MODELS["gpt2"], "--train", self.shard, "--out", out, devices=devices)
            self.assertEqual(status, 0, output)
            self.assertRegex(output, what)
        status, output = run("plain", "train_gpt", *MODELS["gpt2"], "--train", self.shard, "--device", "cuda", devices=0)
        self.assertEqual(status, 1)
        self.assertRegex(output, "--device cuda: no GPU answers")


class OutOfMemory(WithShard):
    """Each allocation of device memory finds no room, in turn: a message with the table, no crash, no leak."""

    def attempt(self, steps="1", mode="plain", **settings):
        """Neither device memory nor (which ASan watches) the host's may be left at the end."""
        return run(mode, "train_gpt", *MODELS["gpt2"], "--dtype", "bf16", "--zero", "2", "--sample-every", "2",
                   "--steps", steps, "--stop-at", "1", "--train", self.shard, "--device", "cuda", leaks=1, **settings)

    def test_every_allocation(self):
        for mode in ("plain", "sanitize"):
            failures = 0
            for n in range(1, 1000):
                status, output = self.attempt(mode=mode, malloc_fail=n)
                if status == 0:
                    break
                failures += 1
                self.assertEqual(status, 1, output)
                self.assertRegex(output,
                                 r"the device has no room for [\w ]+ \(\w+, [\d.]+ MB\); in use: .*--plan shows the table$")
            self.assertGreater(failures, 30)

    def test_measurement_of_the_peak(self):
        """Long runs begin with it, and go on without."""
        for n, in_intro in ((0, True), (1, False)):
            status, output = self.attempt(steps="1000000", malloc_fail=n)
            self.assertEqual(status, 0, output)
            self.assertEqual("matmul peak" in output, in_intro)

    def test_device_that_is_too_small(self):
        for memory in ("1K", "1M", "4M"):
            status, output = self.attempt(mem=memory)
            self.assertEqual(status, 1, output)
            self.assertRegex(output, "the run does not fit: --zero 2 needs .*, and a rank's share of the device's memory is ")


if __name__ == "__main__":
    unittest.main()
