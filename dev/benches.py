"""What the benchmarks in Python share."""
import subprocess
import sys

import h5py
import numpy as np


def run(command):
    """Standard output of a command that must go well."""
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{process.stdout[-1000:]}{process.stderr[-2000:]}")
    return process.stdout


def make_shard(path, vocab_size):
    """A million random tokens."""
    with h5py.File(path, "w") as file:
        file["tokens"] = np.random.default_rng(1).integers(0, vocab_size, 1 << 20, dtype=np.uint16)


class Goals:
    """Ratios beside their goals, and whether one was missed."""
    missed = False

    def verdict(self, ratio, goal, good):
        self.missed |= not good
        return f"{ratio:.3f} (goal {goal}){'' if good else '  MISSED'}"
