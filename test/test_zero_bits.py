"""ZeRO changes no bit: weights and optimizer state after 20 steps, in every stage, whatever must not matter.

A covering set of configurations (every pair of values of two factors that change the numbers, in all four stages); the full
product is dev/matrix.sh. Most runs use train_gpt_hooks: released and unread memory is NaN, ranks compare the order of their
collectives, and streams and messages are delayed at random (llm/hooks.h).
"""
import math
import os
import unittest

import h5py
import numpy as np

from zero_runs import HOOKS, MODELS, STAGES, Base, covering_set, in_parallel, require_mpirun, run_config, same_bits


class SameBits(Base):
    @classmethod
    def setUpClass(cls):
        require_mpirun()
        super().setUpClass()

    def test_covering_set(self):
        classes = covering_set()
        configs = [config for _, configs in classes for config in configs]
        self.assertLessEqual(len(configs), 60)
        runs = in_parallel(lambda i: run_config(configs[i], self.train, self.path(str(i))), range(len(configs)))
        for number, (bits, _) in enumerate(classes):
            with self.subTest(**bits):
                self.compare(bits, configs[4 * number:4 * number + 4], runs[4 * number:4 * number + 4])

    def compare(self, bits, configs, runs):
        first = {}
        for config, run in zip(configs, runs):
            self.assertEqual(run.code, 0, f"{config}\n{run.error}")
            key = same_bits(bits, config["stage"])
            losses = [e["loss"] for e in run.events("step")]
            self.assertEqual(len(losses), 20)
            self.assertTrue(math.isfinite(losses[-1]))
            self.assertLess(run.events("step")[-1]["skipped"], 5)
            if key not in first:
                first[key] = (config, run.hashes, losses)
            self.assertEqual(run.hashes, first[key][1], f"{config}\ndiffers from {first[key][0]}")
            self.assertEqual(losses, first[key][2])

    def test_tensors_smaller_than_the_ranks(self):
        # Two channels: norms of two elements, and shards of blocks that hold nothing but padding.
        flags = ["--model", "gpt2-tiny", "--layers", "1", "--heads", "1", "--channels", "2", "--ffn", "3", "--micro-batch",
                 "1", "--steps", "20"]
        runs = in_parallel(lambda stage: self.run_well(4, flags + ["--zero", str(stage)], str(stage)), STAGES)
        for run in runs:
            self.assertEqual(run.hashes, runs[0].hashes)

    def test_hybrid_sharding_is_zero_in_groups(self):
        # Two groups of two ranks: sharded in each, or over all with the sums made as on two hosts. Clipping is active.
        cases = [(stage, group) for stage in STAGES for group in ("0", "2")]

        def run(case):
            stage, group = case
            flags = MODELS["gpt2"] + ["--dtype", "bf16", "--micro-batch", "1", "--grad-accum", "1", "--grad-clip", "0.25",
                                      "--steps", "20", "--zero", str(stage), "--shard-group", group]
            return self.run_well(4, flags, f"{stage}{group}", program=HOOKS, env={"ZERO_HOOK_HOST_GROUP": "2"})

        runs = in_parallel(run, cases)
        for case, result in zip(cases, runs):
            self.assertEqual(result.hashes, runs[0].hashes, case)
        flat = self.run_well(4, MODELS["gpt2"] + ["--dtype", "bf16", "--micro-batch", "1", "--grad-accum", "1", "--grad-clip",
                                                  "0.25", "--steps", "20"], "flat")
        self.assertNotEqual(flat.hashes, runs[0].hashes, "the order of the sums has changed nothing: the test shows nothing")

    def test_ranks_agree(self):
        # The same global batch on 1 to 4 ranks: the same samples, other orders of addition.
        def losses(case):
            model, n = case
            flags = MODELS[model] + ["--steps", "20", "--global-batch", "12", "--micro-batch", str(12 // n)]
            run = self.run_well(n, flags + ["--zero", str(n - 1)], f"{model}{n}")
            return [e["loss"] for e in run.events("step")]

        for model in MODELS:
            got = in_parallel(losses, [(model, n) for n in (1, 2, 3, 4)])
            for n in (2, 3, 4):
                self.assertLess(abs(got[n - 1][-1] - got[0][-1]), 1e-5 * got[0][-1], f"{model} on {n} ranks")

    @staticmethod
    def weights(out, step):
        """All weights of a checkpoint, one after the other."""
        with h5py.File(os.path.join(out, f"step_{step:08d}", "index.h5"), "r") as f:
            return np.concatenate([np.float64(f[unit]["master"]) for unit in sorted(f)])

    def test_clipping(self):
        # Plain SGD with rate 1: what the weights lose in a step is the clipped gradient.
        limit, model = 0.25, MODELS["gpt2"]
        flags = model + ["--optimizer", "sgd", "--momentum", "0", "--weight-decay", "0", "--schedule", "constant", "--warmup",
                         "0", "--lr", "1", "--global-batch", "6", "--steps", "2", "--checkpoint-every", "1"]
        cases = [(1, 0), (2, 0), (2, 1), (3, 2), (2, 3)]

        def run(case):
            n, stage = case
            more = ["--micro-batch", str(6 // n), "--grad-clip", str(limit), "--zero", str(stage)]
            return self.run_well(n, flags + more, f"{n}{stage}")

        logged = []
        for (n, stage), result in zip(cases, in_parallel(run, cases)):
            out = self.path(f"{n}{stage}")
            applied = np.linalg.norm(self.weights(out, 2) - self.weights(out, 1))
            self.assertAlmostEqual(applied / limit, 1, delta=1e-4, msg=f"{n} ranks, stage {stage}")
            logged.append(result.events("step")[1]["norm"])
            self.assertGreater(logged[-1], 2 * limit)
            self.assertAlmostEqual(logged[-1] / logged[0], 1, delta=1e-5, msg=f"{n} ranks, stage {stage}")


if __name__ == "__main__":
    unittest.main()
