#!/usr/bin/env python3
"""run_mpirun.sh across two hosts, which are network namespaces with TCP between them (scripts/hosts.sh); needs root."""
import atexit
import json
import os
import random
import shutil
import string
import subprocess
import unittest

from launching import PATIENCE, ROOT, RUN_MPIRUN, SCRIPTS, Scratch, build_trainer, wait_for

HOSTS = os.path.join(SCRIPTS, "hosts.sh")
TRAIN_GPT = os.path.abspath(os.path.join(ROOT, os.environ.get("BUILD", "build/release"), "train_gpt"))
SUBNET = "10.88.0.0/24"


def hosts(*arguments):
    return subprocess.run([HOSTS, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=True).stdout


def why_not():
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program, package in (("mpirun", "openmpi-bin"), ("ip", "iproute2"), ("tc", "iproute2")):
        if not shutil.which(program):
            return f"there is no {program} (package {package})"
    process = subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True, text=True, timeout=10)
    return f"no network namespaces here: {process.stderr.strip()}" if process.returncode else None


@unittest.skipIf(why_not(), why_not())
class OnHosts(Scratch):
    @classmethod
    def setUpClass(cls):
        cls.name = "".join(random.choices(string.ascii_lowercase, k=8))
        cls.addClassCleanup(cls.remove_hosts)
        atexit.register(cls.remove_hosts)
        hosts(cls.name, "up", "2")

    @classmethod
    def remove_hosts(cls):
        atexit.unregister(cls.remove_hosts)
        hosts(cls.name, "down")

    def setUp(self):
        super().setUp()
        os.mkdir(self.path("run"))

    def launcher(self, *options):
        """run_mpirun.sh on the first host, for one rank on each of the two."""
        return [HOSTS, "exec", self.name + "1", RUN_MPIRUN, "--hosts", f"{self.name}1,{self.name}2",
                "--interface", SUBNET, "--ssh-agent", f"{HOSTS} agent", "--threads", "1", "--bind", "none",
                "--backoff", "0", *options]

    def sent_bytes(self, host):
        text = subprocess.run(["ip", "-n", f"{self.name}{host}", "-json", "-s", "link", "show", "e0"], timeout=10,
                              capture_output=True, text=True, check=True).stdout
        return json.loads(text)[0]["stats64"]["tx"]["bytes"]


class Launched(OnHosts):
    def trainer(self, steps, *options):
        return [build_trainer(), "--out", "run", "--steps", str(steps), *options]

    def test_ranks_on_two_hosts_talk_over_tcp(self):
        before = self.sent_bytes(2)
        self.assert_status(0, self.run_to_end(*self.launcher(), *self.trainer(100)))
        self.assertEqual([self.name + "1", self.name + "2"], self.read("run/hosts").split())
        self.assertGreater(self.sent_bytes(2) - before, 100 * 8000)  # the rank's part of 100 sums of 1,000 doubles

    def test_interrupted_and_resumed(self):
        process = self.start(*self.launcher(), *self.trainer(150, "--pause-ms", "20"))
        wait_for(lambda: os.path.isdir(self.path("run/step_00000010")), "the first steps")
        process.terminate()
        self.assert_status(3, process.wait(timeout=PATIENCE))
        self.assert_status(0, self.run_to_end(*self.launcher(), *self.trainer(150)))
        self.assertEqual(["start 0", "saved after signal 12", "start N", "done 150"], self.events())

    def test_a_killed_rank_ends_all_and_the_run_starts_again(self):
        self.assert_status(0, self.run_to_end(*self.launcher(), *self.trainer(30, "--kill-at", "25")))
        self.assertEqual(["start 0", "start N", "done 30"], self.events())
        self.assertIn("start 20", self.read("run/log"))
        self.assertIn("from run/step_00000020", self.read("output"))

    def test_a_host_that_is_cut_off_is_noticed(self):
        process = self.start(*self.launcher("--max-restarts", "0"), *self.trainer(10000, "--pause-ms", "20"))
        wait_for(lambda: os.path.isdir(self.path("run/step_00000010")), "the first steps")
        hosts(self.name, "cut", "2")
        try:
            self.assert_status(1, process.wait(timeout=PATIENCE))  # 5 + 3 · 2 s, and mpirun's own end
        finally:
            hosts(self.name, "mend", "2")
        self.assertIn("giving up at failure 1", self.read("output"))


class Shaped(OnHosts):
    def seconds_to_send(self, n_bytes):
        """Time to send so many bytes from the first host to the second, through a TCP socket."""
        receive = ("import socket, sys\ns = socket.create_server(('10.88.0.2', 7000))\nprint(flush=True)\n"
                   "c = s.accept()[0]\nwhile c.recv(1 << 20): pass\nc.send(b'x')")
        send = ("import socket, sys, time\nn = int(sys.argv[1])\nc = socket.create_connection(('10.88.0.2', 7000))\n"
                "t = time.monotonic()\nc.sendall(bytes(n))\nc.shutdown(socket.SHUT_WR)\nc.recv(1)\n"
                "print(time.monotonic() - t)")
        receiver = subprocess.Popen([HOSTS, "exec", self.name + "2", "/usr/bin/python3", "-c", receive],
                                    stdout=subprocess.PIPE, text=True)
        self.addCleanup(receiver.stdout.close)
        self.addCleanup(self.end, receiver)
        receiver.stdout.readline()
        return float(subprocess.run([HOSTS, "exec", self.name + "1", "/usr/bin/python3", "-c", send, str(n_bytes)],
                                    capture_output=True, text=True, timeout=60, check=True).stdout)

    def test_shape_keeps_the_rate(self):
        n_bytes = 25_000_000
        hosts(self.name, "shape", "200mbit")
        self.assertAlmostEqual(1.0, self.seconds_to_send(n_bytes), delta=0.15)
        hosts(self.name, "shape", "off")
        self.assertLess(self.seconds_to_send(n_bytes), 0.5)


class TrainGpt(OnHosts):
    """The real program: same bits on one host and on two, and through an interruption."""
    STEPS = 24

    def setUp(self):
        super().setUp()
        if not os.access(TRAIN_GPT, os.X_OK):
            self.skipTest(f"there is no {TRAIN_GPT}: make builds it")
        import h5py
        import numpy as np
        with h5py.File(self.path("train.h5"), "w") as file:
            file["tokens"] = (np.arange(20000) ** 2 // 7 % 251).astype(np.uint16)
            file.attrs["vocab_size"] = 257

    def train(self, out):
        return [TRAIN_GPT, "--model", "gpt2-tiny", "--layers", "2", "--channels", "64", "--seq-len", "64",
                "--micro-batch", "2", "--grad-accum", "2", "--lr", "1e-3", "--zero", "3", "--device", "cpu",
                "--train", "train.h5", "--steps", str(self.STEPS), "--checkpoint-every", "8", "--out", out]

    def log(self, out, event):
        return [e for e in map(json.loads, self.read(f"{out}/log.jsonl").splitlines()) if e["event"] == event]

    def hashes(self, out):
        return [self.log(out, "end")[-1][key] for key in ("weights_hash", "state_hash")]

    def test_same_bits_on_two_hosts_and_through_an_interruption(self):
        one = [RUN_MPIRUN, "-n", "2", "--threads", "1", "--bind", "none", *self.train("one")]
        status = self.run_to_end(*one)
        if "no MPI" in self.read("output") or (status == 0 and self.log("one", "start")[0]["ranks"] != 2):
            self.skipTest(f"{TRAIN_GPT} is built without MPI")
        self.assert_status(0, status)

        self.assert_status(0, self.run_to_end(*self.launcher(), *self.train("two")))
        self.assertEqual(self.hashes("one"), self.hashes("two"))

        process = self.start(*self.launcher(), *self.train("cut"))
        wait_for(lambda: len(self.log("cut", "step")) >= 3, "the first steps")
        process.terminate()
        self.assert_status(3, process.wait(timeout=PATIENCE))
        stopped_at = self.log("cut", "end")[-1]["step"]
        self.assertLess(stopped_at, self.STEPS, "it was not interrupted")
        self.assert_status(0, self.run_to_end(*self.launcher(), *self.train("cut")))
        self.assertIn(f"at step {stopped_at}", self.read("output"))
        self.assertEqual(self.hashes("one"), self.hashes("cut"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
