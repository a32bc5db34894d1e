"""Offload changes no bit, needs the bytes that the plan says, trains what does not fit otherwise, and survives its faults.

A covering set of configurations: a few classes of what changes the numbers, and in each of them runs that cover every pair
of values of what must not. The full product is dev/matrix.sh --offload.
"""
import itertools
import os
import random
import resource
import shutil
import signal
import subprocess
import time
import unittest

import zero_runs
from launching import wait_for
from zero_runs import HOOKS, MODELS, PROGRAM, STEPS, WAYS, Base, in_parallel, launch, mpirun, pairs, run_config, same_bits

BITS = {"ranks": [2, 3, 1], "dtype": ["bf16", "fp16", "fp32"], "model": ["gpt2", "llama"], "grad": ["fp32", "param"],
        "accum": [1, 3], "clip": ["0.3", "0"], "optimizer": ["adamw", "sgd"], "skip": [False, True]}
SAME = {"way": WAYS[1:], "stage": [3, 2, 1, 0], "overlap": ["on", "off"], "activations": [False, True],
        "faults": ["hooks", "delays", "threads", "none"], "resume": [False, "on", "off"]}
FIXED = {"reduce": "fp32", "tie": "on", "group": "all", "chunk": None}
RUNS_A_CLASS = 3
CHANNELS = ["--channels", "66", "--ffn", "130"]  # units of several tiles


def goes_together(config):
    """Stage 0 of many ranks keeps everything on each, parameters leave the device in stage 3, faults need the hooks."""
    return ((config["stage"] > 0 or config["ranks"] == 1) and (config["stage"] == 3 or config["way"][1] == "none")
            and not (config["skip"] and config["faults"] == "none") and not (config["skip"] and config["resume"])
            and (config["faults"] != "threads" or "nvme" in config["way"]))


def product(factors):
    return [dict(zip(factors, values)) for values in itertools.product(*factors.values())]


def covering_offload():
    """[(class, runs)]: pairs of BITS are covered by the classes, pairs with and of SAME as far as the runs go."""
    classes, everything, missing = [], product(BITS), set()
    random.Random(3).shuffle(everything)
    missing = set().union(*(pairs(config) for config in everything))
    while missing:
        classes.append(max(everything, key=lambda config: len(pairs(config) & missing)))
        missing -= pairs(classes[-1])
    variants, covered, result = product(SAME), set(), []
    random.Random(4).shuffle(variants)
    for bits in classes:
        possible = [{**bits, **same} for same in variants if goes_together({**bits, **same})]
        runs = []
        for _ in range(RUNS_A_CLASS):
            runs.append(max(possible, key=lambda config: len(pairs(config) - covered)))
            covered |= pairs(runs[-1])
        result.append((bits, runs))
    return result


def complete(config):
    return {**FIXED, "recompute": "full" if config["activations"] else "none", **config}


def reference(bits, stage):
    """The same without offload: in a stage of the same bits that any number of ranks can have."""
    return complete({**bits, "way": WAYS[0], "stage": max(stage, 1), "overlap": "on", "activations": False,
                     "faults": "hooks", "resume": False})


class SameBits(Base):
    def test_covering_set(self):
        jobs, places = [], {}
        for number, (bits, runs) in enumerate(covering_offload()):
            for run in runs:
                key = (number, same_bits(bits, run["stage"]))
                if key not in places:
                    places[key] = len(jobs)
                    jobs.append((key, reference(bits, run["stage"])))
                jobs.append((key, complete(run)))
        self.assertLessEqual(len(jobs), 80)
        done = in_parallel(lambda i: run_config(jobs[i][1], self.train, self.path(str(i))), range(len(jobs)))
        for i, (key, config) in enumerate(jobs):
            with self.subTest(**config):
                first = done[places[key]]
                self.assertEqual(done[i].code, 0, f"{config}\n{done[i].error}")
                self.assertEqual(done[i].hashes, first.hashes, f"{config}\ndiffers from {jobs[places[key]][1]}")
                losses = [[event["loss"] for event in run.events("step")] for run in (first, done[i])]
                self.assertEqual(losses[0], losses[1])
                self.check_bytes(done[i], config)
        self.assertEqual([name for name in os.listdir(self.root) if "zero_rank" in name], [])

    def check_bytes(self, run, config):
        """Predicted = counted, of memory on every rank and of what moves in a step."""
        start, step = run.events("start")[-1], run.events("step")[-1]
        self.assertEqual(start["ranks_as_predicted"], config["ranks"])
        if config["resume"] != "off" and config["way"] != WAYS[0]:
            moved = {name: step["offload"][name] for name in start["predicted_offload"]}
            self.assertEqual(moved, start["predicted_offload"], config)

    def test_evaluation_samples_and_replicas(self):
        # Everything that reads parameters besides a step, and everything that reads the state.
        common = MODELS["llama"] + [
            "--zero", "3", "--shard-group", "2", "--micro-batch", "1", "--dtype", "bf16", "--steps", "6", "--val", self.val,
            "--eval-every", "2", "--sample-every", "3", "--sample-tokens", "4", "--recompute", "full",
            "--check-replicas-every", "2"]

        def run(way):
            return self.run_well(4, common + zero_runs.offload_flags(way, self.root, way != WAYS[0]), "_".join(way), program=HOOKS)

        ways = [WAYS[0], WAYS[1], WAYS[3], WAYS[6]]
        runs = in_parallel(run, ways)
        for way, one in zip(ways, runs):
            self.assertEqual(one.hashes, runs[0].hashes, way)
            for event in ("eval", "sample"):
                self.assertEqual(one.events(event), runs[0].events(event), way)

    def test_depth_costs_no_device_memory(self):
        def run(layers):
            flags = ["--model", "gpt2-tiny", "--zero", "3", "--micro-batch", "1", "--steps", "3", "--recompute", "full",
                     "--layers", str(layers)] + zero_runs.offload_flags(("nvme", "cpu"), self.root, True)
            return self.run_well(2, flags, str(layers)).events("step")[-1]["device_bytes"]

        self.assertEqual(run(4), run(16))


class Memory(Base):
    """A model of 11 M parameters: 132 MB of optimizer state in two ranks' fp32, 66 on each."""
    LARGE = ["--model", "gpt2-tiny", "--layers", "4", "--channels", "480", "--heads", "4", "--micro-batch", "1", "--seq-len",
             "16", "--dtype", "bf16", "--steps", "3"]

    def losses(self, run):
        return [event["loss"] for event in run.events("step")]

    def test_state_beyond_device_memory(self):
        plain = self.run_well(2, self.LARGE + ["--zero", "2"], "plain")
        state = plain.events("step")[-1]["device_bytes"]
        self.assertGreater(state["optimizer"], 60e6)
        total = sum(state.values())
        limit = ["--zero", "2", "--device-memory", str(total - state["optimizer"] + 6000000)]
        refused = self.run_ranks(2, self.LARGE + limit, self.path("refused"))
        self.assertEqual(refused.code, 1)
        self.assertIn("cheapest change that fits", refused.error)
        self.assertIn("--offload-optimizer cpu", refused.error)
        for level in ("cpu", "nvme"):
            flags = self.LARGE + limit + zero_runs.offload_flags((level, "none"), self.root)
            self.assertEqual(self.losses(self.run_well(2, flags, level)), self.losses(plain))

    def limited(self, flags, out, limit):
        """One rank that may have `limit` bytes of data (heap and anonymous mappings; RLIMIT_DATA)."""
        command = self.start_up(1, flags, out)
        process = subprocess.run(command, capture_output=True, text=True, timeout=200, stdin=subprocess.DEVNULL,
                                 env=zero_runs.ENVIRONMENT,
                                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)))
        return zero_runs.Run(process, out)

    @unittest.skipIf("sanitize" in PROGRAM, "the sanitizers' own memory is beyond any limit")
    def test_state_beyond_host_memory(self):
        # In fp32 one rank needs 16 bytes a parameter, of which offload leaves 4 for the parameters and 4 for gradients.
        flags = self.LARGE + ["--dtype", "fp32", "--zero", "3", "--head-chunk", "16"]
        plain = self.run_well(1, flags, "plain")
        state = plain.events("step")[-1]["device_bytes"]["optimizer"]
        nvme = zero_runs.offload_flags(("nvme", "nvme"), self.root)

        def need(more):  # bytes of data that a run takes, by bisection of what is enough
            low, high = 0, 32
            while high - low > 1:
                middle = (low + high) // 2
                run = self.limited(flags + more, self.path("limit"), middle << 24)
                shutil.rmtree(self.path("limit"), ignore_errors=True)
                low, high = (low, middle) if run.code == 0 else (middle, high)
            return high << 24

        limit = need(nvme)
        self.assertLess(limit, need([]) - state // 2)
        run = self.limited(flags + nvme, self.path("nvme"), limit)
        self.assertEqual(self.losses(run), self.losses(plain))
        self.assertNotEqual(self.limited(flags, self.path("short"), limit).code, 0)


class Faults(Base):
    FLAGS = MODELS["gpt2"] + CHANNELS + ["--micro-batch", "1", "--dtype", "bf16", "--zero", "3", "--steps", "12",
                                         "--checkpoint-every", "4", "--checkpoint-async", "off"]

    def test_requests_that_fail(self):
        whole = self.run_well(2, self.FLAGS, "whole")

        # Reads and writes of steps after the first checkpoint; what the number means differs between ways.
        cases = [("nvme", "none", "read", 300, 5, "Input/output error"), ("nvme", "none", "read", 310, 0, "bytes were read"),
                 ("nvme", "none", "write", 170, 28, "No space left"), ("nvme", "none", "write", 180, 0, "bytes were written"),
                 ("cpu", "nvme", "read", 70, 5, "file of parameters"), ("cpu", "nvme", "write", 60, 0, "file of parameters")]

        def run(case):
            number = cases.index(case)
            out, flags = self.path(str(number)), self.FLAGS + zero_runs.offload_flags(case[:2], self.root)
            env = {"ZERO_HOOK_IO": f"1 {case[2]} {case[3]} {case[4]}"}
            failed = self.run_ranks(2, flags, out, program=HOOKS, env=env)
            saved = sorted(name for name in os.listdir(out) if name.startswith("step_"))
            verified = launch([PROGRAM, "--verify", os.path.join(out, saved[-1])]) if saved else None
            return failed, saved, verified, self.run_ranks(2, flags, out)

        for case, (failed, saved, verified, resumed) in zip(cases, in_parallel(run, cases)):
            with self.subTest(case=case):
                self.assertEqual(failed.code, 1, failed.text)
                for text in ("rank 1: ", case[5], "at offset ", f"in {self.root} failed", "last checkpoint is intact"):
                    self.assertIn(text, failed.error)
                self.assertTrue(saved, "failed before the first checkpoint")
                self.assertFalse([name for name in saved if name.endswith(".tmp")])
                self.assertEqual(verified.code, 0, verified.error)
                self.assertEqual(resumed.code, 0, resumed.error)
                self.assertEqual(resumed.hashes, whole.hashes)

    def test_full_disk_and_foreign_files(self):
        disk = os.path.join(self.root, "disk")
        os.mkdir(disk)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], capture_output=True).returncode != 0:
            self.skipTest("a small file system takes root")
        try:
            flags = self.FLAGS + zero_runs.offload_flags(("nvme", "none"), disk)
            run = self.run_ranks(2, flags, self.path("full"))
            self.assertEqual(run.code, 1)
            self.assertRegex(run.error, r"rank [01] needs \d+ bytes for its optimizer state, and \d+ are free there")
            self.assertNotIn("step 1/", run.text)
            self.assertEqual(os.listdir(disk), [])
        finally:
            subprocess.run(["umount", disk], check=True)

    def test_nothing_is_left_and_nothing_found_is_used(self):
        disk = self.path("disk")
        os.mkdir(disk)
        with open(os.path.join(disk, ".zero_rank_0_1_AAAAAA"), "wb") as file:
            file.write(b"\x7f" * (1 << 20))  # of another run
        flags = self.FLAGS + zero_runs.offload_flags(("nvme", "nvme"), disk)
        whole = self.run_well(1, self.FLAGS, "whole")
        self.assertEqual(self.run_well(1, flags, "nvme").hashes, whole.hashes)
        process = subprocess.Popen(self.start_up(1, flags + ["--steps", "100000"], self.path("killed")),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=zero_runs.ENVIRONMENT)
        try:
            wait_for(lambda: os.path.exists(os.path.join(self.path("killed"), "step_00000004")), "the first checkpoint")
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        time.sleep(0.1)
        self.assertEqual(os.listdir(disk), [".zero_rank_0_1_AAAAAA"])  # a file without a name goes with its process
        self.assertEqual(os.path.getsize(os.path.join(disk, ".zero_rank_0_1_AAAAAA")), 1 << 20)


if __name__ == "__main__":
    unittest.main()
