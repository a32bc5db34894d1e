#!/usr/bin/env python3
"""Many ranks on simulated GPUs (dev/cudasim): collectives, and ZeRO in all its stages.

Builds what it needs in build/cudasim. Needs the CUDA headers and MPI; no GPU. The full product of stages, ranks, modes and
orders is dev/matrix.sh --device cudasim.
"""
import os
import shutil
import subprocess
import tempfile
import unittest

import numpy as np

import zero_formulas
from simulated import SIM, build
from zero_runs import MODELS, SMALL, STAGES, WAYS, in_parallel, launch, make_data, mpirun, offload_flags

STREAM_ORDERS = 10
STEPS = 4


def setUpModule():
    if not shutil.which("mpirun"):
        raise unittest.SkipTest("there is no mpirun (package openmpi-bin)")
    build()


def settings(**values):
    """Environment of the simulator: settings without their prefix, in lower case."""
    return {"CUDASIM_" + name.upper(): str(value) for name, value in values.items()}


class Collectives(unittest.TestCase):
    """test_comm, which compares every bit with a serial reference, as it does on CPUs."""

    def test_against_the_reference(self):
        done = subprocess.run([os.path.join(SIM, "plain", "test", "test_comm"), "--device", "cuda"], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240, errors="replace")
        self.assertEqual(done.returncode, 0, done.stdout[-4000:])

    def test_other_modes(self):
        def run(case):
            mode, ranks, more = case
            return launch(mpirun(ranks, [os.path.join(SIM, mode, "test", "test_comm")]),
                          env={"COMM_TEST": "results", "COMM_DEVICE": "cuda", **more})

        cases = [("race", 2, {}), ("sanitize", 3, settings(order="reverse")), ("plain", 4, settings(protect=1, seed=5))]
        for case, done in zip(cases, in_parallel(run, cases)):
            self.assertEqual(done.code, 0, f"{case}\n{done.text[-2000:]}{done.error[-2000:]}")


class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="cuda_ranks_")
        cls.shard, _ = make_data(cls.root)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.root)

    def run_ranks(self, ranks, model, *arguments, device="cuda", mode="plain", name=None, **values):
        """A run that may end as it likes."""
        out = os.path.join(self.root, self.id().split(".")[-1] + "-" + name) if name else None
        command = [os.path.join(SIM, mode, "train_gpt"), *MODELS[model], *SMALL, "--micro-batch", "1", "--steps", str(STEPS),
                   "--train", self.shard, "--device", device, "--out", out or os.path.join(self.root, "none"), *arguments]
        return launch(mpirun(ranks, command), out, settings(**values))

    def run_well(self, ranks, model, *arguments, **options):
        run = self.run_ranks(ranks, model, *arguments, **options)
        self.assertEqual(run.code, 0, f"{ranks} ranks, {model} {arguments} {options}\n{run.text[-500:]}{run.error[-3000:]}")
        return run

    def losses(self, run):
        return np.array([event["loss"] for event in run.events("step")])

    def check_bytes(self, run, ranks):
        """Counters are what the formulas say, memory is what was predicted."""
        start = run.events("start")[0]
        self.assertEqual(start["ranks_as_predicted"], ranks)
        sent, memory = zero_formulas.bytes_sent(start, ranks), zero_formulas.state_bytes(start, ranks)
        for step in run.events("step"):
            self.assertEqual({name: step["bytes_sent"][name] for name in sent}, sent)
            self.assertEqual({name: step["device_bytes"][name] for name in memory}, memory)

    # What must not change a bit takes turns; each of a class's four runs has another stage.
    VARIANTS = [["--overlap", "off", "--recompute", "full"], ["--recompute", "selective"], [],
                ["--recompute", "full"], ["--overlap", "off"]]
    CLASSES = [(1, "llama", ["--dtype", "bf16"]), (2, "gpt2", ["--dtype", "fp32"]),
               (2, "llama", ["--dtype", "bf16", "--grad-dtype", "param", "--reduce-dtype", "param", "--tie", "on"]),
               (4, "gpt2", ["--dtype", "fp16", "--reduce-dtype", "param"]),
               (4, "llama", ["--dtype", "bf16", "--shard-group", "2"]), (2, "gpt2", ["--dtype", "bf16", "--grad-accum", "3"])]

    def test_stages_have_the_same_bits(self):
        cases = [(number, stage) for number in range(len(self.CLASSES)) for stage in STAGES]

        def run(case):
            number, stage = case
            ranks, model, arguments = self.CLASSES[number]
            variant = self.VARIANTS[(number + stage) % len(self.VARIANTS)]
            return self.run_well(ranks, model, *arguments, *variant, "--zero", str(stage), name=f"{number}-{stage}",
                                 seed=10 * number + stage)

        runs = dict(zip(cases, in_parallel(run, cases)))
        for number, stage in cases:
            ranks, _, arguments = self.CLASSES[number]
            with self.subTest(arguments=arguments, stage=stage):
                same = 2 * (stage // 2) if "--grad-accum" in arguments else 0
                self.assertEqual(runs[number, stage].hashes, runs[number, same].hashes)
                self.check_bytes(runs[number, stage], ranks)

    def test_stream_orders(self):
        def run(seed):
            return self.run_well(2, "gpt2", "--dtype", "bf16", "--zero", "3", "--grad-accum", "2", name=str(seed),
                                 order="random", seed=seed).hashes

        self.assertEqual(len(set(in_parallel(run, range(STREAM_ORDERS)))), 1)

    def test_losses_are_those_of_cpus(self):
        cases = [(model, dtype, device) for model in MODELS for dtype in ("fp32", "bf16") for device in ("cuda", "cpu")]
        runs = in_parallel(lambda case: self.run_well(2, case[0], "--dtype", case[1], "--zero", "2", device=case[2],
                                                      name="-".join(case)), cases)
        for case, cuda, cpu in zip(cases[::2], runs[::2], runs[1::2]):
            tolerance = {"fp32": 1e-5, "bf16": 2e-2}[case[1]]
            np.testing.assert_allclose(self.losses(cuda), self.losses(cpu), rtol=tolerance, err_msg=str(case))

    def test_offload(self):
        # The same bits, with streams in random orders and memory of the device protected from the host. The race build does not
        # see what the CPU's kernels write, so it has nothing to say here.
        ways = [WAYS[0], ("cpu", "none"), ("nvme", "cpu"), ("cpu", "nvme")]

        def run(way):
            return self.run_well(2, "gpt2", "--dtype", "bf16", "--zero", "3", "--grad-accum", "2", "--recompute", "full",
                                 *offload_flags(way, self.root, activations=way != WAYS[0]), name="-".join(way),
                                 seed=ways.index(way), order="random", protect=1)

        runs = in_parallel(run, ways)
        for way, one in zip(ways, runs):
            self.assertEqual(one.hashes, runs[0].hashes, way)
            self.assertEqual(one.events("start")[0]["ranks_as_predicted"], 2, way)

    def test_no_races(self):
        def run(case):
            stage, dtype = case
            self.run_well(2, ("gpt2", "llama")[stage % 2], "--dtype", dtype, "--zero", str(stage), "--stop-at", "2",
                          "--grad-accum", "2", mode="race", name=f"{stage}-{dtype}")

        # In fp32 the parameters are the master weights, which the hashes at the end read while gathers are under way
        in_parallel(run, [(stage, "bf16") for stage in STAGES] + [(2, "fp32")])

    def test_under_sanitizers(self):
        self.run_well(2, "llama", "--dtype", "fp16", "--zero", "3", "--stop-at", "2", mode="sanitize", name="a", order="reverse")

    def test_checkpoint_moves_to_other_ranks_and_devices(self):
        out = os.path.join(self.root, "moves")
        common = ["--zero", "2", "--global-batch", "4", "--out", out, "--checkpoint-every", "2"]
        self.run_well(2, "llama", *common, "--micro-batch", "2", "--stop-at", "2")
        moved = self.run_well(1, "llama", *common, "--micro-batch", "4", "--zero", "3", device="cpu")
        self.assertIn("resumed from", moved.text)
        whole = self.run_well(1, "llama", "--global-batch", "4", "--micro-batch", "4", device="cpu", name="whole")
        last = [line for line in moved.text.splitlines() if line.startswith(f"step {STEPS}/")][0].split("|")[1]
        self.assertAlmostEqual(float(last.split()[1]), self.losses(whole)[-1], delta=1e-3)

    def test_sums_in_the_order_of_nccl(self):
        run = self.run_well(2, "gpt2", "--dtype", "bf16", "--reduce-dtype", "param", "--zero", "2", "--grad-accum", "2",
                            "--deterministic", "off", name="native")
        self.assertIn("in an order of NCCL's choice", run.text)
        self.check_bytes(run, 2)
        ordered = self.run_well(2, "gpt2", "--dtype", "bf16", "--reduce-dtype", "param", "--zero", "2", "--grad-accum", "2",
                                name="ordered")
        np.testing.assert_allclose(self.losses(run), self.losses(ordered), rtol=1e-2)
        for ranks, device, text in ((1, "cuda", "this run has one rank"), (2, "cpu", "this run has no GPU")):
            refused = self.run_ranks(ranks, "gpt2", "--deterministic", "off", device=device)
            self.assertEqual(refused.code, 2, refused.error)
            self.assertIn(text, refused.error)

    def test_faults(self):
        broken = self.run_ranks(2, "gpt2", "--zero", "3", nccl_fail=9)
        self.assertNotEqual(broken.code, 0)
        self.assertRegex(broken.error, r"rank \d: (all_gather|reduce_scatter) of unit \d in step 1 failed: remote process exited")
        few = self.run_ranks(2, "gpt2", devices=1)
        self.assertNotEqual(few.code, 0)
        self.assertIn("2 ranks on this host, but 1 GPU", few.error)


if __name__ == "__main__":
    unittest.main()
