#!/usr/bin/env python3
"""The CUDA backend's device and operations in the simulator (dev/cudasim): test_device and test_ops, which know nothing
of it, in all its modes. Needs the CUDA headers; no GPU.
"""
import os
import unittest
from concurrent.futures import ThreadPoolExecutor

from simulated import ORDERS, build, run

OPERATIONS = ("test_ops", "test_attention")


def setUpModule():
    build()


class Programs(unittest.TestCase):
    """test_device, test_ops and test_attention, which know nothing of the simulator, on its device."""

    def pass_all(self, *runs):
        """Runs of (mode, program, settings), as many at a time as there are cores: the race build takes its time."""
        def outcome(mode, program, settings):
            return (*run(mode, "test/" + program, "--device", "cuda", **settings), f"{mode} {program} {settings}")

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for status, output, what in pool.map(outcome, *zip(*runs)):
                self.assertEqual(status, 0, f"{what}:\n{output[-3000:]}")

    def test_device(self):
        self.pass_all(*[("plain", "test_device", {"seed": seed, "protect": 1, "leaks": 1}) for seed in range(3)],
                      ("sanitize", "test_device", {}), ("race", "test_device", {}))

    def test_operations(self):
        self.pass_all(*[("plain", program, {"protect": 1, "leaks": 1, **order}) for program in OPERATIONS for order in ORDERS])

    def test_operations_under_sanitizers(self):
        self.pass_all(*[("sanitize", program, order) for program in OPERATIONS for order in ORDERS])

    def test_operations_in_the_race_build(self):
        self.pass_all(*[("race", program, {"order": "random", "seed": 3}) for program in OPERATIONS])


if __name__ == "__main__":
    unittest.main()
