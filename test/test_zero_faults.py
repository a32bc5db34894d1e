"""What goes wrong on one rank of many: gradients that are not finite, flipped bits, ranks that die, stop or differ.

Faults are put into train_gpt_hooks by environment variables (llm/hooks.h).
"""
import glob
import os
import re
import signal
import subprocess
import time
import unittest

import numpy as np

from launching import wait_for
from test_train import write_shard
from zero_runs import ENVIRONMENT, HOOKS, MODELS, PROGRAM, STAGES, Base, in_parallel, launch, mpirun, require_mpirun

TINY = MODELS["gpt2"] + ["--micro-batch", "1"]


class Faults(Base):
    @classmethod
    def setUpClass(cls):
        require_mpirun()
        super().setUpClass()


class NotFinite(Faults):
    def hashes(self, out, step):
        run = launch([PROGRAM, "--hash", os.path.join(out, f"step_{step:08d}")])
        self.assertEqual(run.code, 0, run.error)
        return re.findall(r"\b[0-9a-f]{32}\b", run.text)

    def check_skip(self, dtype, unit, value, more):
        """A gradient of one rank is not finite in step 3: all skip it, in every stage, and go on alike."""
        env = {"ZERO_HOOK_GRADIENT": f"1 {unit} 3 1 5 {value}"}
        flags = TINY + ["--dtype", dtype, "--steps", "6", "--checkpoint-every", "1", "--keep", "0",
                        "--check-replicas-every", "1"] + more
        runs = in_parallel(lambda stage: self.run_well(2, flags + ["--zero", str(stage)], f"{dtype}{stage}", program=HOOKS,
                                                       env=env), STAGES)
        for stage, run in zip(STAGES, runs):
            steps = run.events("step")
            before = steps[1]["skipped"]  # fp16 may have skipped its first steps by itself
            self.assertEqual([e["skipped"] - before for e in steps[2:4]], [1, 1], f"{dtype} stage {stage}")
            self.assertIsNone(steps[2]["norm"])
            self.assertIsNotNone(steps[3]["norm"])
            self.assertEqual([e["loss_scale"] for e in steps], [e["loss_scale"] for e in runs[0].events("step")])
            out = self.path(f"{dtype}{stage}")
            self.assertEqual(self.hashes(out, 3), self.hashes(out, 2), "a skipped step changed the weights")
            self.assertNotEqual(self.hashes(out, 4), self.hashes(out, 3))
            self.assertEqual(run.hashes, runs[0].hashes, f"{dtype} stage {stage}")

    def test_every_rank_skips(self):
        self.check_skip("bf16", 2, "nan", [])
        self.check_skip("fp16", 0, "inf", ["--loss-scale", "256", "--grad-dtype", "param", "--reduce-dtype", "param"])
        self.check_skip("fp32", 5, "-inf", ["--tie", "off"])

    def test_the_scaler_answers(self):
        # Hysteresis 2: the second overflow halves the scale.
        env = {"ZERO_HOOK_GRADIENT": "0 1 4 3 0 inf"}
        run = self.run_well(2, TINY + ["--dtype", "fp16", "--steps", "8", "--zero", "3"], "out", program=HOOKS, env=env)
        steps = run.events("step")
        self.assertEqual(steps[6]["skipped"] - steps[2]["skipped"], 3)
        self.assertLess(steps[7]["loss_scale"], steps[3]["loss_scale"])

    def test_the_run_ends_and_says_where(self):
        def end(case):
            stage, unit, rank, element, text, more = case
            env = {"ZERO_HOOK_GRADIENT": f"{rank} {unit} 4 100 {element} nan"}
            flags = TINY + ["--steps", "50", "--max-skips", "3", "--zero", str(stage), "--grad-accum", "2"] + more
            return self.run_ranks(3, flags, self.path(str(stage)), program=HOOKS, env=env)

        # Elements of unit 0 start with the token table, of a block with ln_1.weight, of the last unit with ln_f.weight.
        cases = [(0, 0, 2, 7, "wte (unit 0), element 7: nan", []),
                 (1, 3, 1, 64, "h.2.ln_1.bias (unit 3), element 0: nan", ["--dtype", "bf16", "--grad-dtype", "param"]),
                 (2, 5, 0, 32, "ln_f.weight (unit 5), element 32: nan", ["--tie", "off"]),
                 (3, 1, 2, 1, "h.0.ln_1.weight (unit 1), element 1: nan", ["--dtype", "bf16"])]
        for case, run in zip(cases, in_parallel(end, cases)):
            with self.subTest(stage=case[0]):
                self.assertEqual(run.code, 1, run.error)
                self.assertIn("step 6: 3 steps in a row were skipped", run.error)
                self.assertIn(f"{case[4]}, on rank {case[2]}, in micro-batch 1", run.error)
                self.assertEqual([e["skipped"] for e in run.events("step")], [0, 0, 0, 1, 2, 3])

    def test_overflow_on_the_wire(self):
        # 1e5 is finite in fp32 and infinite in fp16: no rank's own gradient is at fault.
        env = {"ZERO_HOOK_GRADIENT": "1 2 2 100 0 1e5"}
        flags = TINY + ["--dtype", "fp16", "--reduce-dtype", "param", "--steps", "9", "--max-skips", "2", "--zero", "2",
                        "--loss-scale", "1"]
        run = self.run_ranks(2, flags, self.path("out"), program=HOOKS, env=env)
        self.assertEqual(run.code, 1, run.error)
        self.assertIn("Each rank's own gradients are finite", run.error)
        self.assertIn("h.1.ln_1.weight (unit 2), element 0: inf", run.error)


class Replicas(Faults):
    def check(self, n, stage, more, *texts):
        env = {"ZERO_HOOK_FLIP": "1 2 4 5"}
        flags = TINY + ["--steps", "6", "--check-replicas-every", "2", "--zero", str(stage)] + more
        run = self.run_ranks(n, flags, self.path("out"), program=HOOKS, env=env)
        self.assertEqual(run.code, 1, run.text)
        for text in ("step 4", "h.1.ln_1.weight (unit 2, parameters)", "rank 1's") + texts:
            self.assertIn(text, run.error)
        self.assertEqual(glob.glob(os.path.join(self.path("out"), "step_*")), [])

    def test_flipped_weight(self):
        self.check(2, 0, [], "neither is known to be right")
        self.check(3, 1, ["--dtype", "bf16"], "most others")
        self.check(3, 2, [], "most others")

    def test_flipped_shard(self):
        # Element 5 of shard 0: with groups of one rank, of the whole unit.
        self.check(3, 3, ["--shard-group", "1"], "most others")
        self.check(2, 1, ["--shard-group", "1", "--dtype", "fp16"], "neither is known to be right")


class Lost(Faults):
    def start(self, ranks, arguments, out, env=None):
        command = self.start_up(ranks, arguments, out)
        with open(out + ".text", "w", encoding="utf-8") as text, open(out + ".error", "w", encoding="utf-8") as error:
            process = subprocess.Popen(command, stdout=text, stderr=error, stdin=subprocess.DEVNULL,
                                       env={**ENVIRONMENT, **(env or {})})
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def read(path):
        with open(path, encoding="utf-8") as file:
            return file.read()

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=30)

    @staticmethod
    def ranks_of(process):
        """Rank → process id, of the program that an mpirun started."""
        found = {}
        for entry in os.listdir("/proc"):
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8") as f:
                    parent = int(f.read().rsplit(")", 1)[1].split()[1])
                with open(f"/proc/{entry}/environ", "rb") as f:
                    rank = re.search(rb"(?:^|\0)OMPI_COMM_WORLD_RANK=(\d+)", f.read())
            except (OSError, ValueError, IndexError):
                continue
            if parent == process.pid and rank:
                found[int(rank.group(1))] = int(entry)
        return found

    def test_killed_rank(self):
        out = self.path("out")
        flags = TINY + ["--zero", "3", "--schedule", "constant", "--steps", "100000", "--checkpoint-every", "5", "--keep",
                        "0", "--log-every", "1"]
        process = self.start(3, flags, out, {"ZERO_TEST_COMM_DELAY_US": "1000"})
        wait_for(lambda: len(glob.glob(out + "/step_*[0-9]")) >= 2, "two checkpoints", 100)
        ranks = self.ranks_of(process)
        self.assertEqual(sorted(ranks), [0, 1, 2])
        os.kill(ranks[1], signal.SIGKILL)
        start = time.monotonic()
        wait_for(lambda: process.poll() is not None, "the end of the run")
        wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in ranks.values()), "the end of all ranks")
        self.assertLess(time.monotonic() - start, 10)
        self.assertNotEqual(process.returncode, 0)
        self.assertRegex(self.read(out + ".error"), r"rank 1\b")  # mpirun's message, or that of a rank
        self.assertNotIn("asked to stop", self.read(out + ".text"))
        # It goes on from its newest checkpoint, and ends as a run that nothing happened to.
        newest = int(sorted(glob.glob(out + "/step_*[0-9]"))[-1][-8:])
        more = flags + ["--stop-at", str(newest + 5)]
        resumed = self.run_ranks(3, more, out)
        self.assertEqual(resumed.code, 0, resumed.error)
        self.assertIn("resumed from", resumed.text)
        whole = self.run_well(3, more + ["--checkpoint-every", "0"], "whole")
        self.assertEqual(resumed.hashes, whole.hashes)

    def test_stopped_rank(self):
        out = self.path("out")
        process = self.start(2, TINY + ["--zero", "3", "--steps", "100000", "--comm-timeout", "3", "--log-every", "1"], out)
        wait_for(lambda: "step 3/" in self.read(out + ".text"), "step 3", 100)
        os.kill(self.ranks_of(process)[1], signal.SIGSTOP)
        wait_for(lambda: process.poll() is not None, "the end of the run", 60)
        self.assertRegex(self.read(out + ".error"), r"rank 0: ((all_gather|reduce_scatter) of unit \d+|(max|sum) of [a-z ]+) "
                                                    r"in step \d+ did not finish within 3 s; waiting for rank 1 ")


class Different(Faults):
    """Ranks that were not started alike are refused before the first step, with one message."""

    def refused(self, command, *texts):
        run = launch(command)
        self.assertNotEqual(run.code, 0, run.text)
        for text in texts:
            self.assertIn(text, run.error)
        self.assertNotIn("step 1/", run.text)
        self.assertEqual(len(re.findall(r"^rank \d+: ", run.error, re.MULTILINE)), 1, run.error)

    def two(self, first, second):
        """mpirun with another command for each of two ranks; each a pair (directory, command)."""
        launcher = mpirun(2, [])[:-2]
        return launcher + ["-np", "1", "-wdir", first[0]] + first[1] + [":", "-np", "1", "-wdir", second[0]] + second[1]

    def test_batch_that_does_not_divide(self):
        self.refused(mpirun(3, [PROGRAM] + MODELS["gpt2"] + ["--train", self.train, "--global-batch", "8", "--micro-batch",
                                                             "2"]), "8", "2", "3")

    def test_options(self):
        command = [PROGRAM] + MODELS["gpt2"] + ["--seq-len", "13", "--threads", "1", "--train", self.train]
        self.refused(self.two((self.root, command + ["--lr", "1e-3"]), (self.root, command + ["--lr", "2e-3"])),
                     "configuration", "0.001", "0.002", "rank 1")

    def test_data(self):
        command = [PROGRAM] + MODELS["gpt2"] + ["--seq-len", "13", "--threads", "1", "--train", "data.h5"]
        directories = []
        for n in (1000, 1100):
            directories.append(self.path(str(n)))
            os.mkdir(directories[-1])
            write_shard(os.path.join(directories[-1], "data.h5"), np.zeros(n, np.uint16))
        self.refused(self.two((directories[0], command), (directories[1], command)), "training data", "rank 1")

    def test_validation_data(self):
        command = [PROGRAM] + MODELS["gpt2"] + ["--seq-len", "13", "--threads", "1", "--train", self.train, "--val", "val.h5"]
        directories = []
        for n in (500, 5000):
            directories.append(self.path(str(n)))
            os.mkdir(directories[-1])
            write_shard(os.path.join(directories[-1], "val.h5"), np.zeros(n, np.uint16))
        self.refused(self.two((directories[0], command), (directories[1], command)), "validation data", "rank 1")

    def test_out_that_is_not_shared(self):
        command = [PROGRAM] + MODELS["gpt2"] + ["--seq-len", "13", "--threads", "1", "--train", self.train, "--steps", "2",
                                                "--checkpoint-every", "2", "--out", "out"]
        directories = [self.path("a"), self.path("b")]
        for directory in directories:
            os.mkdir(directory)
        self.refused(self.two((directories[0], command), (directories[1], command)), "--out out is not the directory")
        # One of them with a checkpoint
        self.assertEqual(launch(["env", "-C", directories[0]] + mpirun(2, command)).code, 0)
        self.refused(self.two((directories[0], command), (directories[1], command)), "all must see the same --out")

    def test_programs(self):
        arguments = MODELS["gpt2"] + ["--seq-len", "13", "--threads", "1", "--train", self.train]
        self.refused(self.two((self.root, [PROGRAM] + arguments), (self.root, [HOOKS] + arguments)), "program", "rank 1")


if __name__ == "__main__":
    unittest.main()
