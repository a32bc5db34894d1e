#!/usr/bin/env python3
"""dev/cudasim catches what it is there to catch, and is silent about programs that are right.

Each planted bug must be found by the mechanism that is named for it, in every order of blocks and threads; bugs between
streams in nearly every order of streams, and always in the race build. Needs the CUDA headers (no GPU, no nvcc run).
"""
import os
import re
import subprocess
import tempfile
import unittest

from simulated import ROOT, SIM, build

ORDERS = [{"CUDASIM_ORDER": "inorder"}, {"CUDASIM_ORDER": "reverse"}, {"CUDASIM_ORDER": "random", "CUDASIM_SEED": "7"}]
SEEDS = 20
MODES = ("plain", "sanitize", "race")


def run(mode, program, *arguments, **settings):
    """Exit status and all output of a test program; settings without their prefix, in lower case."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CUDASIM_")}
    environment["ASAN_OPTIONS"] = "detect_leaks=0"  # test programs need not clean up
    environment.update({k if k.startswith("CUDASIM_") else "CUDASIM_" + k.upper(): str(v) for k, v in settings.items()})
    done = subprocess.run([os.path.join(SIM, mode, "test", "cudasim", program), *arguments], env=environment, timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    return done.returncode, done.stdout


def setUpModule():
    build("cudasim_tests")


class Correct(unittest.TestCase):
    """Programs without a bug: right results and not a word, in all modes and orders."""

    def silent(self, mode, program, *arguments, **settings):
        status, output = run(mode, program, *arguments, **settings)
        self.assertEqual((status, output), (0, "ok\n"), f"{mode} {program} {arguments} {settings}")

    def test_kernels(self):
        for mode in MODES:
            for order in ORDERS:
                self.silent(mode, "kernels", **order)
                self.silent(mode, "kernel_bugs", "none", **order)

    def test_streams(self):
        for mode in MODES:
            for order in ORDERS:
                self.silent(mode, "stream_bugs", "none", **order)
            for seed in range(3):
                self.silent(mode, "stream_bugs", "none", seed=seed)

    def test_matmul(self):
        for mode in MODES:
            status, output = run(mode, "matmul")
            self.assertEqual((status, output), (0, "cudasim: cublasLt: epilogue (130) is not supported\nok\n"), mode)

    def test_protected_memory(self):
        self.silent("plain", "kernels", protect=1)
        self.silent("plain", "kernel_bugs", "none", protect=1)
        self.silent("plain", "stream_bugs", "none", protect=1)

    def test_communication(self):
        for mode in MODES:
            for n_ranks in ("1", "4"):
                self.silent(mode, "comm", n_ranks, "all")
        for seed in range(3):
            self.silent("plain", "comm", "2", "all", seed=seed, streams="random", protect=1)


class KernelBugs(unittest.TestCase):
    def caught(self, mode, bug, pattern, orders=ORDERS, **settings):
        for order in orders:
            status, output = run(mode, "kernel_bugs", bug, **{**order, **settings})
            self.assertNotEqual(status, 0, f"{mode} {bug} {order}: not found\n{output}")
            self.assertRegex(output, pattern, f"{mode} {bug} {order}")

    def test_by_the_rendezvous_of_a_warp(self):
        self.caught("plain", "wrong_mask", "lanes of a warp do not agree: lane .* __shfl_xor_sync|deadlock: ")
        self.caught("plain", "alien_mask", "__shfl_xor_sync: lane .* is not in its own mask 0000ffff")

    def test_by_barriers(self):
        self.caught("plain", "divergent_barrier", r"divergent barrier: .*kernel_bugs.cu:\d+, thread .*kernel_bugs.cu:\d+")
        self.caught("plain", "barrier_and_shuffle", "(?s)threads 0 to 15 wait in __shfl_xor_sync .*threads 16 to 31 wait .*deadlock: ")

    def test_by_the_watchdog(self):
        self.caught("plain", "endless", "(?s)has not ended in 1 s.*in kernel square_rows", ORDERS[:1], timeout=1)

    def test_by_poison(self):
        self.caught("plain", "uninitialised", "WRONG")

    def test_by_red_zones(self):
        for bug in ("past_end", "past_tensor"):
            self.caught("plain", bug, "a red zone was overwritten", ORDERS[:1])
            self.caught("sanitize", bug, "AddressSanitizer: use-after-poison")
            self.caught("race", bug, "write outside of any allocation.*\n.*square_rows.*kernel_bugs.cu", ORDERS[:1])

    def test_use_after_free(self):
        self.caught("plain", "use_after_free", "is in no allocation of device memory", ORDERS[:1])
        self.caught("sanitize", "use_after_free", "AddressSanitizer: use-after-poison", ORDERS[:1])
        self.caught("race", "use_after_free", "read outside of any allocation", ORDERS[:1])

    def test_by_the_race_build(self):
        self.caught("race", "no_barrier", "read without order after a write, shared|write without order after a read, shared")
        self.caught("race", "no_trailing_barrier", "write without order after a read, shared|after a write, shared")
        self.caught("race", "no_syncwarp", "without order after a (read|write), shared")
        self.caught("race", "uninitialised", "read of uninitialised memory, shared")
        self.caught("race", "no_fence", "(?s)read without order after a write, device.*of another block")
        self.caught("race", "host_touches_device", "host code touches device memory")

    def test_by_protected_memory(self):
        self.caught("plain", "host_touches_device", "host code touches device memory", ORDERS[:1], protect=1)

    def test_leaks(self):
        self.assertEqual(run("plain", "kernel_bugs", "none", leaks=1), (0, "ok\n"))
        self.assertEqual(run("plain", "stream_bugs", "none", leaks=1), (0, "ok\n"))
        self.caught("plain", "out_of_memory", r"\d+ bytes of device memory are not freed", ORDERS[:1], mem="512K", leaks=1)

    def test_by_checks_of_arguments_and_limits(self):
        self.caught("plain", "copy_too_long", "20 bytes .* go 4 bytes past the end of an allocation of 16 bytes", ORDERS[:1])
        self.caught("plain", "static_shared_too_large", "52000 bytes of static arrays .limit 49152", ORDERS[:1])
        self.caught("plain", "dynamic_shared_not_allowed", "cudaErrorInvalidValue", ORDERS[:1])
        self.caught("plain", "out_of_memory", "cudaErrorMemoryAllocation", ORDERS[:1], mem="512K")


class StreamBugs(unittest.TestCase):
    BUGS = {"no_wait": "device", "event_too_early": "device", "reused_too_early": "device",
            "host_reads_too_early": "pinned", "host_writes_too_early": "pinned"}

    def test_in_nearly_every_order(self):
        for bug in self.BUGS:
            found = sum(run("plain", "stream_bugs", bug, seed=seed)[0] != 0 for seed in range(SEEDS))
            self.assertGreaterEqual(found, SEEDS * 9 // 10, f"{bug}: wrong results in {found} of {SEEDS} orders")

    def test_always_by_vector_clocks(self):
        for bug, memory in self.BUGS.items():
            for settings in ({"streams": "inorder"}, {"streams": "reverse"}, {"streams": "random", "seed": 3}):
                status, output = run("race", "stream_bugs", bug, **settings)
                self.assertEqual(status, 66, f"{bug} {settings}: {output}")
                self.assertRegex(output, f"==CUDASIM RACE: .*without.* order.*, {memory} memory", f"{bug} {settings}")


class Communication(unittest.TestCase):
    def test_ranks_that_make_different_calls(self):
        status, output = run("plain", "comm", "2", "different_calls")
        self.assertNotEqual(status, 0)
        self.assertRegex(output, "do not make the same calls: rank . is in all_reduce of (1000|999) elements")

    def test_a_rank_that_does_not_come(self):
        status, output = run("plain", "comm", "3", "missing_rank", timeout=1)
        self.assertNotEqual(status, 0)
        self.assertRegex(output, r"has been in all_reduce \(call 1\) for 1 s without a message; it waits for rank.* 2\.")

    def test_asynchronous_errors(self):
        for mode in ("plain", "sanitize"):
            self.assertEqual(run(mode, "comm", "2", "async_error", nccl_fail=1), (0, "ok\n"))
            self.assertEqual(run(mode, "comm", "3", "lost_peer"), (0, "ok\n"))

    def test_race_with_a_kernel(self):
        status, output = run("race", "comm", "2", "race")
        self.assertNotEqual(status, 0)
        self.assertRegex(output, "(?s)without order.*, device memory.*(fill|all_reduce).*(fill|all_reduce)")


class Statistics(unittest.TestCase):
    def test_bytes_are_counted_by_loads_and_stores(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "stats.tsv")
            self.assertEqual(run("race", "stream_bugs", "none", stats=path), (0, "ok\n"))
            with open(path, encoding="utf-8") as file:
                header, *lines = [line.rstrip("\n").split("\t") for line in file]
        rows = {line[0]: dict(zip(header, line)) for line in lines}
        n, steps = 256, 6
        want = {"launches": steps, "threads": steps * n, "load_bytes": steps * 2 * n * 4, "store_bytes": steps * n * 4,
                "loads": steps * 2 * n, "stores": steps * n, "distinct_load_bytes": steps * 2 * n * 4,
                "distinct_store_bytes": steps * n * 4}
        self.assertEqual({key: int(rows["consume"][key]) for key in want}, want)

    def test_settings_are_checked(self):
        status, output = run("plain", "kernels", order="sideways")
        self.assertNotEqual(status, 0)
        self.assertIn("CUDASIM_ORDER=sideways: inorder, reverse or random", output)


class Documentation(unittest.TestCase):
    def test_every_setting_is_in_one_place(self):
        with open(os.path.join(ROOT, "dev", "cudasim", "settings.h"), encoding="utf-8") as file:
            documented = set(re.findall(r"^//   (CUDASIM_\w+)", file.read(), re.MULTILINE))
        with open(os.path.join(ROOT, "dev", "cudasim", "settings.cpp"), encoding="utf-8") as file:
            read = set(re.findall(r'"(CUDASIM_\w+)"', file.read()))
        self.assertEqual(documented, read)


if __name__ == "__main__":
    unittest.main()
