#!/usr/bin/env python3
"""compare_stages.sh: its report holds what the runs measured, and says whether the bits agree."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCRIPT = os.path.join(ROOT, "scripts/compare_stages.sh")
ENVIRONMENT = {**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1", "ASAN_OPTIONS": "detect_leaks=0",  # MPI leaks
               "TRAIN_GPT": os.path.abspath(os.path.join(ROOT, os.environ.get("BUILD", "build/release"), "train_gpt"))}
SMALL = ["--steps", "4", "--seq-len", "32", "--micro-batch", "2"]
SHAPE = ["--", "--layers", "3", "--channels", "64", "--vocab-size", "300"]


class Compare(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not shutil.which("mpirun"):
            raise unittest.SkipTest("there is no mpirun (package openmpi-bin)")
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.root = directory.name

    def compare(self, *options, status=0):
        out = os.path.join(self.root, self.id().split(".")[-1])
        process = subprocess.run([SCRIPT, "--out", out, *SMALL, *options, *SHAPE], capture_output=True, text=True, timeout=200,
                                 env=ENVIRONMENT)
        self.assertEqual(status, process.returncode, process.stdout[-2000:] + process.stderr[-2000:])
        self.assertGreater(os.path.getsize(os.path.join(out, "report.png")), 10000)
        with open(os.path.join(out, "report.json"), encoding="utf-8") as file:
            report = json.load(file)
        with open(os.path.join(out, "report.md"), encoding="utf-8") as file:
            return out, report, file.read()

    def test_stages_and_variants(self):
        out, report, text = self.compare("--overlap-off", "--recompute")
        names = [f"zero-{s}{v}" for v in ("", "-overlap-off", "-recompute") for s in range(4)]
        runs = {r["name"]: r for r in report["runs"]}
        self.assertEqual(names, list(runs))
        self.assertTrue(report["same_bits"] and report["exact"])
        self.assertIn("Same bits? yes: all runs", text)
        for run in runs.values():
            self.assertEqual(run["predicted_bytes_sent"], run["bytes_sent"])
            self.assertEqual(run["predicted_bytes"], run["device_bytes"])
            self.assertLess(abs(run["model_states"] / run["textbook_model_states"] - 1), 0.01)  # padding
        formulas = [runs[f"zero-{s}"]["textbook_formula"] for s in range(4)]
        self.assertEqual(["16Ψ", "4Ψ + 12Ψ/N", "2Ψ + 14Ψ/N", "16Ψ/N"], formulas)
        self.assertEqual([1.0, 1.0, 1.0, 1.5], [runs[f"zero-{s}"]["textbook_bytes_sent"] /
                                                runs["zero-0"]["textbook_bytes_sent"] for s in range(4)])
        self.assertLess(runs["zero-3-recompute"]["device_bytes"]["activations"], runs["zero-3"]["device_bytes"]["activations"])

        # A run with other bits does not pass
        log = os.path.join(out, "runs/zero-2/log.jsonl")
        with open(log, encoding="utf-8") as file:
            lines = file.read()
        with open(log, "w", encoding="utf-8") as file:
            file.write(lines.replace(runs["zero-2"]["weights_hash"], "0" * 32))
        process = subprocess.run([sys.executable, os.path.join(ROOT, "scripts/compare_stages.py"), out], capture_output=True,
                                 text=True, timeout=60)
        self.assertEqual(1, process.returncode, process.stderr)
        self.assertIn("Same bits? NO: the same are", process.stdout)

    def test_accumulation_groups_the_stages(self):
        _, report, text = self.compare("--grad-accum", "2")
        self.assertTrue(report["same_bits"])
        self.assertIn("the same are zero-0, zero-1; zero-2, zero-3", text)

    @unittest.skipIf(os.geteuid() != 0 or not shutil.which("tc") or
                     subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True).returncode,
                     "network namespaces need root, tc (package iproute2) and a kernel that has them")
    def test_bandwidths(self):
        _, report, text = self.compare("--bandwidth", "20mbit,200mbit")
        self.assertTrue(report["same_bits"] and report["exact"])
        self.assertEqual(["20mbit"] * 4 + ["200mbit"] * 4, [r["rate"] for r in report["runs"]])
        self.assertIn("## Which stage wins at which bandwidth", text)

    def test_mistakes(self):
        for options, message in ((["--bandwidth", "fast"], "takes rates such as 1gbit"), (["--hybrid"], "--hybrid needs 4"),
                                 (["--stages", "3"], "unknown option --stages"), (["--out", self.root], "exists")):
            process = subprocess.run([SCRIPT, *options], capture_output=True, text=True, timeout=20)
            self.assertEqual(2, process.returncode, process.stderr)
            self.assertIn(message, process.stderr)


if __name__ == "__main__":
    unittest.main()
