"""Bytes: what a run counts is what the formulas say (zero_formulas.py), and what can be seen from outside.

Messages are counted through MPI's profiling interface (mpi/count_bytes.c), memory by the kernel (VmHWM).
"""
import os
import subprocess
import sys
import unittest

import zero_formulas
from zero_runs import MODELS, STAGES, Base, in_parallel, launch, mpirun, require_mpirun

COMMON = ["--micro-batch", "1", "--steps", "3"]


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class Counts(Base):
    @classmethod
    def setUpClass(cls):
        require_mpirun()
        super().setUpClass()

    CASES = [(n, model, stage, more)
             for n, model, more in (
                 (2, "gpt2", []), (3, "llama", ["--dtype", "bf16", "--grad-dtype", "param", "--reduce-dtype", "param"]),
                 (4, "gpt2", ["--shard-group", "2", "--grad-accum", "3", "--dtype", "fp16", "--tie", "off"]),
                 (2, "llama", ["--grad-accum", "2", "--tie", "on", "--layers", "6", "--dtype", "bf16", "--overlap", "off"]),
                 (1, "llama", ["--layers", "1", "--optimizer", "sgd"]))
             for stage in STAGES]

    def test_counters_equal_formulas(self):
        # Evaluation, samples and checkpoints in every stage, with the device sealed: nothing is allocated after the start.
        def run(case):
            n, model, stage, more = case
            name = f"{n}{model}{stage}{len(more)}"
            return self.run_well(n, MODELS[model] + COMMON + more + [
                "--zero", str(stage), "--val", self.val, "--eval-every", "2", "--sample-every", "2", "--sample-tokens", "4",
                "--checkpoint-every", "2"], name)

        for case, run in zip(self.CASES, in_parallel(run, self.CASES)):
            with self.subTest(case=case):
                start, steps = run.events("start")[0], run.events("step")
                self.assertEqual(start["ranks_as_predicted"], case[0])
                self.assertEqual(start["predicted_bytes_sent"], zero_formulas.bytes_sent(start, case[0]))
                self.assertEqual(len(run.events("eval")) + len(run.events("sample")) + len(run.events("checkpoint")), 6)
                memory = zero_formulas.state_bytes(start, case[0])
                for step in steps:
                    sent = zero_formulas.bytes_sent(start, case[0], after_forward=step["step"] == 3)
                    self.assertEqual({name: step["bytes_sent"][name] for name in sent}, sent)
                    self.assertEqual({name: step["device_bytes"][name] for name in memory}, memory)

    def test_textbook(self):
        # A stage's bytes in elements times Ψ·(N-1)/N: 2, 2, 2 and 3 less what stays in slots.
        model = {"arch": "llama", "channels": 64, "ffn": 128, "heads": 4, "kv_heads": 4, "head_dim": 16, "vocab_size": 64,
                 "layers": 40, "tie": True}
        config = {"model": model, "batch": {"grad_accum": 1}, "precision": {"dtype": "bf16", "grad_dtype": "param",
                                                                           "reduce_dtype": "param"}}
        psi, n = sum(zero_formulas.unit_lens(model)), 4
        for stage, textbook in zip(STAGES, (2, 2, 2, 3)):
            sent = zero_formulas.bytes_sent({**config, "zero": {"zero": stage, "shard_group": 0}}, n)
            self.assertAlmostEqual(sum(sent.values()) / (2 * psi * (n - 1) / n), textbook, delta=0.06)

    def test_messages_seen_by_mpi(self):
        library = os.path.join(self.root, "count_bytes.so")
        subprocess.run(["mpicc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror",
                        os.path.join(os.path.dirname(os.path.abspath(__file__)), "mpi/count_bytes.c"), "-o", library],
                       check=True, timeout=120)

        def seen(case):
            n, stage, more, steps = case
            counts = self.path(f"{n}{stage}{steps}")
            flags = MODELS["gpt2"] + ["--micro-batch", "1", "--steps", "9", "--stop-at", str(steps), "--zero", str(stage)] + more
            run = self.run_well(n, flags, f"{n}{stage}{steps}.out", env={"LD_PRELOAD": library, "COUNT_BYTES": counts})
            return [int(read(f"{counts}.{rank}").split()[1]) for rank in range(n)], sum(run.events("step")[-1]["bytes_sent"].values())

        # Between a run of 3 and one of 9 steps: starting and ending cost the same in both. Every rank sends as much as rank 0 says.
        cases = [(2, 1, []), (3, 0, ["--dtype", "bf16"]), (2, 3, ["--grad-accum", "2"]), (4, 2, ["--shard-group", "2"])]
        runs = in_parallel(seen, [case + (steps,) for case in cases for steps in (3, 9)])
        for i, case in enumerate(cases):
            (short, counted), (long, _) = runs[2 * i], runs[2 * i + 1]
            for rank in range(case[0]):
                self.assertAlmostEqual((long[rank] - short[rank]) / 6 / counted, 1, delta=0.02, msg=f"{case} rank {rank}")


class ResidentMemory(Base):
    """Differences between stages as the kernel sees them, of a model that is large beside what else a process needs.

    ZERO_MEMORY_MODEL=gpt2-124m takes that one, on four ranks (dev/matrix.sh --memory). Gradients are fp32, formed in place:
    with --grad-dtype param and one micro-batch, stage 1 never touches the other ranks' cuts, and the kernel sees that.
    """
    MODEL = os.environ.get("ZERO_MEMORY_MODEL")
    RANKS = 4 if MODEL else 2
    FLAGS = ["--model", MODEL] if MODEL else ["--model", "llama-tiny", "--channels", "512", "--layers", "8", "--heads", "8",
                                              "--ffn", "1408", "--vocab-size", "2048"]
    # Runs the program and writes down the peak of its memory.
    MEASURE = ("import os, resource, subprocess, sys\n"
               "code = subprocess.call(sys.argv[2:])\n"
               "peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024\n"
               "open(sys.argv[1] + '.' + os.environ['OMPI_COMM_WORLD_RANK'], 'w').write(str(peak))\n"
               "sys.exit(code)\n")

    def peak(self, stage):
        out = self.path(str(stage))
        command = self.start_up(1, self.FLAGS + ["--micro-batch", "1", "--seq-len", "8", "--steps", "2", "--warmup", "0", "--dtype", "bf16",
                                                 "--zero", str(stage)], out)
        run = launch(mpirun(self.RANKS, [sys.executable, "-c", self.MEASURE, out] + command), out, timeout=1800)
        self.assertEqual(run.code, 0, run.error)
        table = run.events("step")[-1]["device_bytes"]
        peaks = [int(read(f"{out}.{rank}")) for rank in range(self.RANKS)]
        return peaks, sum(table.values())

    def test_differences_between_stages(self):
        require_mpirun()
        results = [self.peak(stage) for stage in STAGES]
        for stage in STAGES[1:]:
            table = results[0][1] - results[stage][1]
            measured = [results[0][0][rank] - results[stage][0][rank] for rank in range(self.RANKS)]
            if self.MODEL:
                print(f"stage 0 - stage {stage}: table {table / 1e6:.1f} MB, VmHWM",
                      " ".join(f"{m / 1e6:.1f}" for m in measured))
            for rank in range(self.RANKS):
                self.assertAlmostEqual(measured[rank] / table, 1, delta=0.05, msg=f"stage {stage}: {measured} {table}")


if __name__ == "__main__":
    unittest.main()
