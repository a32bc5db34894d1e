#!/usr/bin/env python3
"""The CUDA backend's device and operations in the simulator (dev/cudasim): test_device and test_ops, which know nothing
of it, in all its modes. Needs the CUDA headers; no GPU.
"""
import unittest

from simulated import ORDERS, build, run


def setUpModule():
    build()


class Programs(unittest.TestCase):
    """test_device, test_ops and test_attention, which know nothing of the simulator, on its device."""

    def passes(self, mode, program, **settings):
        status, output = run(mode, "test/" + program, "--device", "cuda", **settings)
        self.assertEqual(status, 0, f"{mode} {program} {settings}:\n{output[-3000:]}")

    def test_device(self):
        for seed in range(3):
            self.passes("plain", "test_device", seed=seed, protect=1, leaks=1)
        self.passes("sanitize", "test_device")
        self.passes("race", "test_device")

    def test_operations(self):
        for order in ORDERS:
            self.passes("plain", "test_ops", protect=1, **order)
            self.passes("plain", "test_attention", protect=1, leaks=1, **order)

    def test_operations_under_sanitizers(self):
        for order in ORDERS:
            self.passes("sanitize", "test_ops", **order)
            self.passes("sanitize", "test_attention", **order)

    def test_operations_in_the_race_build(self):
        self.passes("race", "test_ops", order="random", seed=3)
        self.passes("race", "test_attention", order="random", seed=3)


if __name__ == "__main__":
    unittest.main()
