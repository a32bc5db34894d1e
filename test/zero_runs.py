"""What the tests of ZeRO share: small models, runs of train_gpt on many ranks, and sets of configurations.

A configuration is a dictionary with a value for each of FACTORS. Those in BITS may change the numbers of a run; those in
SAME must not. Runs are compared by the hashes of their end event, which cover weights and optimizer state.
"""
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from test_train import Run, write_shard

BUILD = os.environ.get("BUILD", "build/release")
PROGRAM = os.path.abspath(os.path.join(BUILD, "train_gpt"))
HOOKS = os.path.abspath(os.path.join(BUILD, "train_gpt_hooks"))  # the same with llm/hooks.h
# Ranks share cores here and yield while they wait. Under the sanitizers, what MPI itself leaks is not our business.
ENVIRONMENT = {**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1", "ASAN_OPTIONS": "detect_leaks=0"}
STEPS = 20
# Odd sizes on purpose: nothing divides by the number of ranks, norms are shorter than an aligned shard.
MODELS = {"gpt2": ["--model", "gpt2-tiny", "--layers", "4", "--heads", "3", "--channels", "33", "--ffn", "41"],
          "llama": ["--model", "llama-tiny", "--layers", "3", "--heads", "4", "--kv-heads", "2", "--channels", "24",
                    "--ffn", "37"]}
SMALL = ["--seq-len", "13", "--threads", "1", "--lr", "3e-3", "--warmup", "3", "--checkpoint-every", "0"]

BITS = {"ranks": [4, 3, 2, 1], "dtype": ["bf16", "fp32", "fp16"], "model": ["gpt2", "llama"], "grad": ["fp32", "param"],
        "reduce": ["fp32", "param"], "accum": [1, 3], "tie": ["on", "off"], "group": ["all", "part"], "clip": ["0.3", "0"],
        "optimizer": ["adamw", "sgd"]}
SAME = {"overlap": ["on", "off"], "recompute": ["none", "selective", "full"], "chunk": [None, 5],
        "faults": ["hooks", "delays", "none"], "resume": [False, True]}
STAGES = [0, 1, 2, 3]


def pairs(config):
    """All pairs of (factor, value) that a configuration has."""
    return set(itertools.combinations(sorted(config.items(), key=lambda item: item[0]), 2))


def covering(factors):
    """Few configurations that contain every pair of values of two factors. Deterministic, greedy."""
    everything = [dict(zip(factors, values)) for values in itertools.product(*factors.values())]
    random.Random(7).shuffle(everything)  # else the first factors hardly change
    missing = set().union(*(pairs(config) for config in everything))
    chosen = []
    while missing:
        best = max(everything, key=lambda config: len(pairs(config) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen


def covering_set():
    """[(class, [run, run, run, run])]: every class in each stage; pairs with and among SAME are covered as far as that goes."""
    variants = [dict(zip(SAME, values)) for values in itertools.product(*SAME.values())]
    random.Random(8).shuffle(variants)
    covered, result = set(), []
    for bits in covering(BITS):
        runs = []
        for stage in STAGES:
            best = max(variants, key=lambda same: len(pairs({**bits, **same, "stage": stage}) - covered))
            runs.append({**bits, **best, "stage": stage})
            covered |= pairs(runs[-1])
        result.append((bits, runs))
    return result


def full_product():
    """Every class that differs (fp32 has one gradient dtype, one rank has one group) in every stage, for dev/matrix.py.
    Clipping, optimizer and the variants of SAME take turns."""
    variants = [dict(zip(SAME, values)) for values in itertools.product(*SAME.values())]
    random.Random(9).shuffle(variants)
    variant = itertools.cycle(variants)
    turns = itertools.cycle(itertools.product(BITS["clip"], BITS["optimizer"]))
    factors = {name: values for name, values in BITS.items() if name not in ("clip", "optimizer")}
    for values in itertools.product(*factors.values()):
        bits = dict(zip(factors, values))
        if (bits["dtype"] == "fp32" and "param" in (bits["grad"], bits["reduce"])) or (
                bits["ranks"] == 1 and bits["group"] == "part"):
            continue
        bits["clip"], bits["optimizer"] = next(turns)
        yield bits, [{**bits, **next(variant), "stage": stage} for stage in STAGES]


# Ways to offload optimizer and parameters; the latter goes with stage 3.
WAYS = [("none", "none"), ("cpu", "none"), ("nvme", "none"), ("cpu", "cpu"), ("cpu", "nvme"), ("nvme", "cpu"), ("nvme", "nvme")]


def offload_product():
    """The classes of full_product with one to three ranks, each way to offload in each stage that it goes with, for
    dev/matrix.py --offload: the first of each class runs without."""
    turns = itertools.cycle(itertools.product(["on", "off"], [False, True], ["hooks", "delays", "threads"], [False, "on", "off"]))
    for bits, _ in full_product():
        if bits["ranks"] > 3:
            continue
        runs = []
        for stage, way in itertools.product(STAGES, WAYS):
            if (stage == 0 and bits["ranks"] > 1 and way != WAYS[0]) or (stage < 3 and way[1] != "none"):
                continue
            overlap, activations, faults, resume = next(turns)
            plain = way == WAYS[0]
            runs.append({**bits, "stage": stage, "way": way, "overlap": overlap, "activations": activations and not plain,
                         "recompute": "full" if activations else "none", "faults": "hooks" if plain else faults,
                         "resume": False if plain else resume, "chunk": None})
        yield bits, runs


def same_bits(bits, stage):
    """Stages that must agree have the same key: all with one micro-batch, else 0 with 1 and 2 with 3."""
    return 0 if bits["accum"] == 1 else stage // 2


def offload_flags(way, nvme_path, activations=False):
    """Options of one of WAYS. Small requests, so that each unit has several tiles."""
    result = []
    if way[0] != "none":
        result += ["--offload-optimizer", way[0]]
    if way[1] != "none":
        result += ["--offload-params", way[1]]
    if "nvme" in way:
        result += ["--nvme-path", nvme_path, "--nvme-buffer", "64Ki"]
    return result + (["--offload-activations"] if activations else [])


def flags(config):
    """Command line of a configuration."""
    n = config["ranks"]
    group = {"all": 0, "part": 2 if n == 4 else 1}[config["group"]]
    result = MODELS[config["model"]] + SMALL + [
        "--micro-batch", "1", "--steps", str(STEPS), "--dtype", config["dtype"], "--grad-dtype", config["grad"],
        "--reduce-dtype", config["reduce"], "--grad-accum", str(config["accum"]), "--tie", config["tie"],
        "--shard-group", str(group), "--grad-clip", config["clip"], "--optimizer", config["optimizer"],
        "--zero", str(config["stage"]), "--overlap", config["overlap"], "--recompute", config["recompute"]]
    return result + (["--head-chunk", str(config["chunk"])] if config["chunk"] else [])


def environment(config):
    result = {}
    if config["faults"] == "delays":
        result = {"ZERO_HOOK_DELAY_US": "200", "ZERO_TEST_COMM_DELAY_US": "200"}
    if config["faults"] == "threads":  # instead of io_uring
        result = {"ZERO_HOOK_IO_THREADS": "1"}
    if config.get("skip"):  # one step's gradients are not finite
        result["ZERO_HOOK_GRADIENT"] = "0 1 4 1 0 inf"
    return result


# On simulated GPUs the simulator's builds and orders take the place of hooks and delays.
SIMULATED = {"in order": ("plain", {"CUDASIM_ORDER": "inorder"}),
             "reverse": ("plain", {"CUDASIM_ORDER": "reverse", "CUDASIM_PROTECT": "1"}),
             "random": ("plain", {"CUDASIM_ORDER": "random"}),
             "sanitize": ("sanitize", {"CUDASIM_ORDER": "random"}),
             "race": ("race", {"CUDASIM_STREAMS": "random"})}
SIMULATED_STEPS = 2


def simulated_product():
    """Ranks, dtype, model and accumulation, each in every stage, build and order of the simulator, for dev/matrix.py
    --device cudasim. What else is in BITS and SAME takes turns, but for the head chunk, which on GPUs may change bits."""
    factors = {name: BITS[name] for name in ("ranks", "dtype", "model", "accum")}
    turns = list(itertools.product(*(BITS[name] for name in BITS if name not in factors)))
    variants = [dict(zip(SAME, values)) for values in itertools.product(*SAME.values()) if values[2] is None]
    for these in (turns, variants):  # else they would keep step with the factors
        random.Random(10).shuffle(these)
    turns, variant = itertools.cycle(turns), itertools.cycle(variants)
    for values in itertools.product(*factors.values()):
        bits = dict(zip(factors, values))
        bits.update(zip((name for name in BITS if name not in factors), next(turns)))
        if bits["dtype"] == "fp32":
            bits["grad"] = bits["reduce"] = "fp32"
        if bits["ranks"] == 1:
            bits["group"] = "all"
        yield bits, [{**bits, **next(variant), "faults": faults, "stage": stage}
                     for stage, faults in itertools.product(STAGES, SIMULATED)]


def program_of(config, device):
    """Program, environment, steps and further arguments for a configuration on a device: "cpu" or "cudasim"."""
    if device == "cpu":
        return PROGRAM if config["faults"] == "none" else HOOKS, environment(config), STEPS, []
    mode, env = SIMULATED[config["faults"]]
    env = {**env, "CUDASIM_SEED": str(zlib.crc32(json.dumps(config, sort_keys=True).encode()))}
    return os.path.abspath(f"build/cudasim/{mode}/train_gpt"), env, SIMULATED_STEPS, ["--device", "cuda"]


def mpirun(ranks, command):
    """The command on some ranks of this machine. One rank needs no launcher."""
    if ranks == 1:
        return command
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)] + command


def launch(command, out=None, env=None, timeout=400):
    """Run to its end."""
    process = subprocess.run(command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
                             env={**ENVIRONMENT, **(env or {})})
    return Run(process, out)


def run_config(config, train, out, device="cpu"):
    """Run a configuration, with a stop and a resume in another stage on the way if it says so."""
    program, env, steps, more = program_of(config, device)
    arguments = flags(config) + ["--train", train, "--out", out, "--steps", str(steps)] + more
    arguments[arguments.index("--warmup") + 1] = str(min(3, steps))
    offload = offload_flags(config.get("way", WAYS[0]), os.path.dirname(train), config.get("activations", False))
    if config["resume"]:
        # The first half in another stage, or without offload; the second with it, or the other way round.
        other = config["stage"] ^ 1 if config["accum"] > 1 else 3 - config["stage"]
        first_half = offload if config["resume"] == "off" else ["--zero", str(other)]
        offload = [] if config["resume"] == "off" else offload
        first = launch(mpirun(config["ranks"], [program] + arguments + first_half + [
            "--stop-at", str(steps // 2), "--checkpoint-every", str(steps // 2)]), out, env)
        if first.code != 0:
            return first
        arguments += ["--checkpoint-every", str(steps)]
    return launch(mpirun(config["ranks"], [program] + arguments + offload), out, env)


def in_parallel(function, items):
    """[function(item)], a few at a time: ranks that wait for each other leave cores idle."""
    with ThreadPoolExecutor(max_workers=2 * (os.cpu_count() or 1)) as pool:
        return list(pool.map(function, items))


class Base(unittest.TestCase):
    """A directory with training data: self.root, self.train, self.val."""

    @classmethod
    def setUpClass(cls):
        for path in (PROGRAM, HOOKS):
            if not os.path.exists(path):
                raise AssertionError(f"{path} is missing: make tests")
        cls.root = tempfile.mkdtemp(prefix="zero_runs_")
        cls.train, cls.val = make_data(cls.root)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.root)

    def path(self, name):
        return os.path.join(self.root, self.id().split(".")[-1] + "-" + name)

    def start_up(self, ranks, arguments, out=None, program=PROGRAM):
        command = [program] + SMALL + ["--train", self.train] + arguments + (["--out", out] if out else [])
        return mpirun(ranks, command)

    def run_ranks(self, ranks, arguments, out=None, program=PROGRAM, env=None):
        """A run that may end as it likes."""
        return launch(self.start_up(ranks, arguments, out, program), out, env)

    def run_well(self, ranks, arguments, name, **options):
        """A run that has to end well."""
        run = self.run_ranks(ranks, arguments, self.path(name), **options)
        self.assertEqual(run.code, 0, f"{ranks} ranks, {arguments}:\n{run.error}{run.text[-300:]}")
        return run


def make_data(root):
    """A text with some structure (a random walk over 32 tokens), in shards with a vocabulary of 257."""
    walk = np.cumsum(np.random.default_rng(1).integers(-3, 4, 20000)) % 32
    train, val = os.path.join(root, "train.h5"), os.path.join(root, "val.h5")
    write_shard(train, walk.astype(np.uint16))
    write_shard(val, walk[:300].astype(np.uint16))
    return train, val


def require_mpirun():
    if not shutil.which("mpirun"):
        raise unittest.SkipTest("there is no mpirun (package openmpi-bin)")


if __name__ == "__main__":  # what the covering set looks like
    for number, (_, configs) in enumerate(covering_set()):
        for one in configs:
            print(number, json.dumps(one))
    sys.exit()
