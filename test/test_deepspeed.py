#!/usr/bin/env python3
"""A run from DeepSpeed's JSON: its log has the learning rates of DeepSpeed's schedulers, a file says what flags say, and what
has no effect is said once, whatever the number of ranks.

Runs build/release/train_gpt (or $BUILD/train_gpt).
"""
import json
import math
import os
import shutil
import subprocess
import tempfile
import unittest

import h5py
import numpy as np

PROGRAM = os.path.abspath(os.path.join(os.environ.get("BUILD", "build/release"), "train_gpt"))
ENVIRONMENT = {**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
MODEL = ["--model", "gpt2-tiny", "--layers", "1", "--channels", "32", "--seq-len", "16", "--threads", "1"]


def warmup(iteration, steps, kind):
    """gamma of DeepSpeed's WarmupLR._get_gamma before warmup_num_steps."""
    steps = max(2, steps)
    return math.log(iteration + 1) / math.log(steps) if kind == "log" else iteration / steps


def warmup_lr(iteration, low, high, steps, kind="log"):
    return low + (high - low) * (warmup(iteration, steps, kind) if iteration < steps else 1.0)


def warmup_decay_lr(iteration, total, low, high, steps, kind="log"):
    gamma = warmup(iteration, steps, kind) if iteration < steps else max(0.0, (total - iteration) / max(1.0, total - steps))
    return low + (high - low) * gamma


def warmup_cosine_lr(iteration, total, lr, low_ratio, steps, floor_ratio, kind="log"):
    if iteration < steps:
        return lr * (low_ratio + (1 - low_ratio) * warmup(iteration, steps, kind))
    progress = min(1.0, (iteration - steps + 1) / max(1, total - steps))
    return lr * (floor_ratio + (1 - floor_ratio) * (1 + math.cos(math.pi * progress)) / 2)


class DeepSpeed(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="zero_ds_")
        self.addCleanup(shutil.rmtree, self.dir)
        with h5py.File(self.path("train.h5"), "w") as f:
            f["tokens"] = (np.arange(4000) * 7 % 50).astype(np.uint16)
            f.attrs["vocab_size"] = 50

    def path(self, name):
        return os.path.join(self.dir, name)

    def program(self, config, *arguments, ranks=1):
        with open(self.path("ds.json"), "w") as f:
            f.write(config if isinstance(config, str) else json.dumps(config))
        launcher = ["mpirun", "-q", "--oversubscribe", "-np", str(ranks)] if ranks > 1 else []
        return subprocess.run(launcher + [PROGRAM, "--config", self.path("ds.json"), *MODEL, *arguments], capture_output=True,
                              text=True, timeout=120, env=ENVIRONMENT, cwd=self.dir)

    def steps(self, config, *arguments, ranks=1):
        """The log's steps, and what was said on stderr."""
        shutil.rmtree(self.path("out"), ignore_errors=True)
        run = self.program(config, "--train", self.path("train.h5"), "--out", self.path("out"), "--checkpoint-every", "0",
                           *arguments, ranks=ranks)
        self.assertEqual(run.returncode, 0, run.stderr)
        with open(self.path("out/log.jsonl"), encoding="utf-8") as f:
            events = [json.loads(line) for line in f]
        return [e for e in events if e["event"] == "step"], run.stderr

    def check_rates(self, scheduler, expected, *arguments):
        config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "scheduler": scheduler}
        steps, _ = self.steps(config, *arguments)
        for step in steps:
            self.assertAlmostEqual(step["lr"], expected(step["step"] - 1), delta=1e-12)
        return steps

    def test_schedulers(self):
        self.assertEqual(len(self.check_rates(
            {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-4, "warmup_max_lr": 2e-3, "warmup_num_steps": 5}},
            lambda i: warmup_lr(i, 1e-4, 2e-3, 5), "--steps", "9")), 9)
        self.assertEqual(len(self.check_rates(
            {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 2e-3, "warmup_num_steps": 4, "total_num_steps": 12,
                                                 "warmup_type": "linear"}},
            lambda i: warmup_decay_lr(i, 12, 0, 2e-3, 4, "linear"))), 12)
        self.check_rates({"type": "WarmupCosineLR", "params": {"warmup_num_steps": 3, "total_num_steps": 11, "warmup_min_ratio": .1,
                                                               "cos_min_ratio": .02}},
                         lambda i: warmup_cosine_lr(i, 11, 1e-3, .1, 3, .02))

    @unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun")
    def test_ranks(self):
        config = """// two ranks
        {"train_batch_size": 8, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8,},
         "fp16": {"enabled": true, "initial_scale_power": 4, "loss_scale_window": 2,},}"""
        steps, said = self.steps(config, "--steps", "5", ranks=2)
        self.assertEqual([s["loss_scale"] for s in steps], [16, 16, 32, 32, 64])  # grows after 2 good steps
        self.assertEqual(said.count("zero_optimization.reduce_bucket_size"), 1, said)
        run = self.program(config, "--train", self.path("train.h5"), ranks=3)
        self.assertEqual(run.returncode, 2)
        self.assertIn('global-batch 8 ("train_batch_size" of ', run.stderr)
        self.assertIn("* ranks 3 (this run), but 6 does not divide 8", run.stderr)

    def test_print_config(self):
        run = self.program({"train_batch_size": 8, "bf16": {"enabled": True}, "gradient_clipping": 0.25, "tensorboard":
                            {"enabled": True}}, "--print-config")
        printed = json.loads(run.stdout)
        self.assertEqual((printed["batch"]["global_batch"], printed["batch"]["grad_accum"]), (8, 1))
        self.assertEqual((printed["precision"]["dtype"], printed["optimizer"]["grad_clip"]), ("bf16", 0.25))
        self.assertIn("no effect here: tensorboard.enabled", run.stderr)
        run = self.program({"zero_optimisation": {}}, "--print-config")
        self.assertEqual(run.returncode, 2)
        self.assertIn('did you mean "zero_optimization"?', run.stderr)
        run = subprocess.run([PROGRAM, "--config-help"], capture_output=True, text=True, timeout=60)
        for key in ("train_batch_size", "zero_optimization.sub_group_size", "autotuning.tuner_type", "compression_training"):
            self.assertIn(f"  {key} ", run.stdout)


if __name__ == "__main__":
    unittest.main()
