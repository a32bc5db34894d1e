#!/usr/bin/env python3
"""Checkpoints from any number of ranks, in any stage, to any other: the same bits of state; and the run goes on.

A case says who saves (ranks, stage, shard group) and who loads, and what is saved (model, dtype, tying). Here is a set in
which every pair of values occurs; dev/reshard.sh runs all of them.
"""
import itertools
import os
import re
import unittest

import numpy as np

from zero_runs import MODELS, PROGRAM, Base, covering, in_parallel, launch, mpirun, require_mpirun

FACTORS = {"ranks": [1, 2, 3, 4], "to_ranks": [1, 2, 3, 4], "stage": [0, 1, 2, 3], "to_stage": [0, 1, 2, 3],
           "tie": ["on", "off"], "dtype": ["fp32", "bf16", "fp16"], "model": ["gpt2", "llama"],
           "group": ["all", "part"], "to_group": ["all", "part"]}
STEPS, SAVED = 6, 3
CLOSE = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 2e-2}  # losses of other numbers of ranks: other roundings, grown over steps


def shard_group(case, prefix):
    ranks = case[prefix + "ranks"]
    return ranks // 2 if case[prefix + "group"] == "part" and ranks % 2 == 0 else ranks


def flags(case, prefix, train):
    """One micro-batch a step for any number of ranks, so that all stages have the same bits."""
    return MODELS[case["model"]] + ["--seq-len", "13", "--threads", "1", "--lr", "3e-3", "--warmup", "1", "--steps", str(STEPS),
                                    "--global-batch", "12", "--grad-accum", "1", "--tie", case["tie"], "--dtype",
                                    case["dtype"], "--zero", str(case[prefix + "stage"]), "--shard-group",
                                    str(shard_group(case, prefix)),
                                    "--keep", "0", "--train", train]


def source(case):
    """What a saving run depends on."""
    return tuple(case[key] for key in ("ranks", "stage", "group", "tie", "dtype", "model"))


def save(case, train, out):
    """A run that saves on its way: itself, and the hashes of what it saved."""
    run = launch(mpirun(case["ranks"], [PROGRAM] + flags(case, "", train) + ["--checkpoint-every", str(SAVED), "--out", out]),
                 out)
    hashed = launch([PROGRAM, "--hash", f"{out}/step_{SAVED:08d}"])
    return run, tuple(re.findall(r"\b[0-9a-f]{32}\b", hashed.text)[:2])


def load(case, train, saved, out, go_on):
    """A run that loads it and ends there, or goes on."""
    command = [PROGRAM] + flags(case, "to_", train) + ["--checkpoint-every", "0", "--resume", f"{saved}/step_{SAVED:08d}",
                                                        "--out", out]
    return launch(mpirun(case["to_ranks"], command + ([] if go_on else ["--stop-at", str(SAVED)])), out)


def check(case, train, saved, whole, hashes, out):
    """What is wrong with a case; "" if nothing."""
    loaded = load(case, train, saved, out + "-loaded", False)
    if loaded.code != 0:
        return loaded.error
    if not hashes or loaded.hashes != hashes:
        return f"the state loaded, {loaded.hashes}, is not the state saved, {hashes}"
    further = load(case, train, saved, out + "-further", True)
    if further.code != 0:
        return further.error
    if case["ranks"] == case["to_ranks"] and shard_group(case, "") == shard_group(case, "to_"):
        return "" if further.hashes == whole.hashes else f"it goes on to {further.hashes}, not {whole.hashes}"
    losses = [[e["loss"] for e in run.events("step")][-(STEPS - SAVED):] for run in (whole, further)]
    close = np.allclose(losses[0], losses[1], rtol=CLOSE[case["dtype"]])
    return "" if close else f"losses go on as {losses[1]}, not {losses[0]}"


class Reshard(Base):
    def test_covering_set(self):
        require_mpirun()
        cases = covering(FACTORS)
        sources = {source(case): case for case in cases}

        def save_one(item):
            number, case = item
            return save(case, self.train, self.path(f"source{number}"))

        runs = dict(zip(sources, in_parallel(save_one, enumerate(sources.values()))))
        for run, _ in runs.values():
            self.assertEqual(0, run.code, run.error)

        def check_one(item):
            number, case = item
            whole, hashes = runs[source(case)]
            saved = self.path(f"source{list(sources).index(source(case))}")
            return check(case, self.train, saved, whole, hashes, self.path(str(number)))

        faults = in_parallel(check_one, enumerate(cases))
        print(f"{len(cases)} cases cover all pairs of {len(FACTORS)} factors; {len(sources)} checkpoints")
        for case, fault in zip(cases, faults):
            self.assertEqual("", fault, case)


def full_product():
    """[cases with one source]: all ranks × ranks × stages × stages × tying × dtypes; the other factors take turns."""
    result = []
    turns = itertools.cycle(itertools.product(FACTORS["model"], FACTORS["group"]))
    names = ["ranks", "stage", "tie", "dtype"]
    for values in itertools.product(*(FACTORS[name] for name in names)):
        case = dict(zip(names, values))
        case["model"], case["group"] = next(turns)
        groups = itertools.cycle(FACTORS["to_group"])
        result.append([{**case, "to_ranks": ranks, "to_stage": stage, "to_group": next(groups)}
                       for ranks, stage in itertools.product(FACTORS["to_ranks"], FACTORS["to_stage"])])
    return result


if __name__ == "__main__":
    unittest.main()
