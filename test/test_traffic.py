#!/usr/bin/env python3
"""Bytes that ranks send equal the formula, exactly, and a trace shows what overlaps.

Runs $BUILD/train_gpt (build/release) with mpirun on small models, many configurations in a few seconds each.
"""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

import h5py
import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = os.path.abspath(os.path.join(ROOT, os.environ.get("BUILD", "build/release"), "train_gpt"))
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_mpi_yield_when_idle": "1", "ASAN_OPTIONS": "detect_leaks=0"}  # MPI leaks
TINY = ["--model", "gpt2-tiny", "--channels", "32", "--heads", "2", "--seq-len", "16", "--micro-batch", "1", "--lr", "1e-3",
        "--threads", "1", "--dtype", "bf16"]
PARAM = ["--grad-dtype", "param", "--reduce-dtype", "param"]


def events(out, name):
    with open(os.path.join(out, "log.jsonl"), encoding="utf-8") as file:
        return [e for e in map(json.loads, file) if e["event"] == name]


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not shutil.which("mpirun"):
            raise unittest.SkipTest("there is no mpirun (package openmpi-bin)")
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.root = directory.name
        cls.train = os.path.join(cls.root, "train.h5")
        with h5py.File(cls.train, "w") as file:
            file["tokens"] = (np.arange(4000) ** 2 // 7 % 251).astype(np.uint16)
            file.attrs["vocab_size"] = 257
        cls.n_runs = 0

    def run_ranks(self, ranks, *arguments, steps=3):
        """The directory of a run that went well."""
        type(self).n_runs += 1
        out = os.path.join(self.root, f"run{self.n_runs}")
        command = ["mpirun", "--oversubscribe", "-n", str(ranks), PROGRAM, *TINY, "--train", self.train, "--out", out,
                   "--checkpoint-every", "0", "--steps", str(steps), *arguments]
        process = subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRONMENT)
        self.assertEqual(0, process.returncode, " ".join(command) + "\n" + process.stdout[-1000:] + process.stderr[-2000:])
        return out


class Bytes(Base):
    def check(self, ranks, stage, *arguments):
        out = self.run_ranks(ranks, "--zero", str(stage), *arguments)
        start = events(out, "start")[0]
        for step in events(out, "step"):
            sent = {name: step["bytes_sent"][name] for name in start["predicted_bytes_sent"]}
            self.assertEqual(start["predicted_bytes_sent"], sent, f"{ranks} ranks, stage {stage}, {arguments}")
        return start

    def test_every_stage(self):
        """A covering set; the C test walks through the rest."""
        for ranks, accum, tie in ((2, 3, "on"), (3, 1, "on"), (2, 1, "off"), (3, 3, "off")):
            for stage in range(4):
                with self.subTest(ranks=ranks, stage=stage, accum=accum, tie=tie):
                    self.check(ranks, stage, "--layers", "3", "--grad-accum", str(accum), "--tie", tie, *PARAM)

    def test_few_blocks_other_dtypes_and_overlap_off(self):
        self.check(2, 3, "--layers", "1", "--grad-accum", "2")
        self.check(2, 3, "--layers", "2", "--grad-accum", "2", "--overlap", "off")
        self.check(2, 0, "--layers", "2", "--dtype", "fp32")

    def test_hybrid_sharding(self):
        self.check(4, 0, "--layers", "3", "--shard-group", "2", *PARAM)
        self.check(4, 3, "--layers", "3", "--shard-group", "2", *PARAM)


class Trace(Base):
    def read(self, out, *arguments, ranks=2):
        path = os.path.join(self.root, f"trace{self.n_runs}.json")
        self.run_ranks(ranks, "--trace", path, *arguments)
        with open(path, encoding="utf-8") as file:
            trace = json.load(file)["traceEvents"]
        names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace if e["name"] == "thread_name"}
        streams = {key: [] for key in names}
        for e in trace:
            if e["ph"] == "X":
                streams[e["pid"], e["tid"]].append(e)
        self.assertEqual([{"args": {"count": 0}, "name": "spans_not_kept", "ph": "M", "pid": r} for r in range(ranks)],
                         [e for e in trace if e["name"] == "spans_not_kept"])
        return {(pid, names[pid, tid]): sorted(spans, key=lambda e: (e["ts"], -e["dur"]))
                for (pid, tid), spans in streams.items()}

    def assert_nested(self, spans):
        """Spans of a stream either contain each other or do not touch (times are rounded to nanoseconds)."""
        open_ends = []
        for span in spans:
            end = span["ts"] + span["dur"]
            while open_ends and open_ends[-1] <= span["ts"] + 0.002:
                open_ends.pop()
            self.assertTrue(not open_ends or end <= open_ends[-1] + 0.002, span)
            open_ends.append(end)

    def test_stage_3(self):
        layers, steps = 6, 3
        streams = self.read("t", "--zero", "3", "--layers", str(layers), "--channels", "128", "--seq-len", "64",
                            "--micro-batch", "8")
        self.assertEqual({(r, s) for r in range(2) for s in ("compute", "gather", "reduce")}, set(streams))
        for spans in streams.values():
            self.assert_nested(spans)
        for rank in range(2):
            compute, gathers = streams[rank, "compute"], streams[rank, "gather"]
            count = lambda name: sum(e["name"].startswith(name) for e in compute)
            self.assertEqual(steps, count("step "))
            self.assertEqual(steps * (layers + 1), count("forward of unit "))
            self.assertEqual(steps * layers, count("backward of unit "))
            self.assertEqual(steps * (layers + 2), count("gradient of unit "))
            # Each block twice, but the last two once; the ends (tied: each in a half of its slot) once
            self.assertEqual(steps * (2 * layers - 2 + 2), sum(e["name"].startswith("gather unit ") for e in gathers))
            work = [e for e in compute if e["name"].split()[0] in ("forward", "backward")]
            ahead = [g for g in gathers for e in work
                     if g["ts"] < e["ts"] + e["dur"] and e["ts"] < g["ts"] + g["dur"] and
                     g["name"].split()[-1] != e["name"].split()[-1]]
            self.assertGreater(len(ahead), steps * layers, "gathers run while another unit computes")

    def test_overlap_off(self):
        streams = self.read("t", "--zero", "3", "--layers", "3", "--overlap", "off")
        self.assertEqual({(0, "compute"), (1, "compute")}, set(streams))
        for spans in streams.values():
            self.assert_nested(spans)

    def test_a_file_that_cannot_be_written(self):
        process = subprocess.run([PROGRAM, *TINY, "--train", self.train, "--steps", "1", "--trace", "/nowhere/t.json"],
                                 capture_output=True, text=True, timeout=60)
        self.assertEqual(1, process.returncode)
        self.assertIn("cannot write --trace /nowhere/t.json", process.stderr)


if __name__ == "__main__":
    unittest.main()
