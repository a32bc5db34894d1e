#!/usr/bin/env python3
"""Living with a cluster: saves while training goes on, what a resumed run repeats, limits of time, spikes, heartbeat.

Each on real runs of train_gpt. Faults inside a save: test_save_faults.c. Launchers: test_launch.py.
"""
import glob
import json
import os
import signal
import subprocess
import time
import unittest

from launching import RUN_MPIRUN, kill_all_of, wait_for
from test_train import Run
from zero_runs import ENVIRONMENT, HOOKS, MODELS, PROGRAM, Base, in_parallel, launch, require_mpirun

TINY = MODELS["gpt2"] + ["--micro-batch", "1"]
# What a step's line holds that a repetition repeats.
SAME = ["step", "loss", "norm", "lr", "loss_scale", "skipped", "skip_reason", "tokens"]


class Living(Base):
    @classmethod
    def setUpClass(cls):
        require_mpirun()
        super().setUpClass()

    def start(self, ranks, arguments, out, env=None, program=PROGRAM):
        """A run that the test interferes with; its output goes to OUT.text and OUT.error."""
        with open(out + ".text", "w", encoding="utf-8") as text, open(out + ".error", "w", encoding="utf-8") as error:
            process = subprocess.Popen(self.start_up(ranks, arguments, out, program), stdout=text, stderr=error,
                                       stdin=subprocess.DEVNULL, env={**ENVIRONMENT, **(env or {})}, start_new_session=True)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=30)

    @staticmethod
    def read(path):
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8") as file:
            return file.read()

    def verify(self, out):
        """Every checkpoint of a run is good; their steps."""
        steps = sorted(glob.glob(os.path.join(out, "step_*")))
        for step in steps:
            self.assertEqual(0, launch([PROGRAM, "--verify", step]).code, step)
        return [int(step[-8:]) for step in steps]

    def story(self, out):
        """The log without what depends on the clock; and each of its lines is one JSON object."""
        story = []
        for line in self.read(os.path.join(out, "log.jsonl")).splitlines():
            event = json.loads(line)
            if event["event"] == "step":
                event = {"event": "step", **{key: event[key] for key in SAME if key in event}}
            if event["event"] != "start":
                story.append(event)
        return story


class Async(Living):
    def test_same_bits_same_log(self):
        def run(case):
            ranks, how, stage = case
            flags = TINY + ["--steps", "20", "--checkpoint-every", "4", "--keep", "0", "--dtype", "bf16", "--zero", str(stage),
                            "--checkpoint-async", how, "--val", self.val, "--eval-every", "5"]
            return self.run_well(ranks, flags, f"{ranks}-{how}", program=HOOKS, env={"ZERO_HOOK_DELAY_US": "300"})

        cases = [(1, "on", 0), (1, "off", 3), (3, "on", 3), (3, "off", 2)]
        runs = dict(zip(cases, in_parallel(run, cases)))
        for a, b in (cases[:2], cases[2:]):
            self.assertEqual(runs[a].hashes, runs[b].hashes)
            outs = [self.path(f"{ranks}-{how}") for ranks, how, _ in (a, b)]
            self.assertEqual(self.story(outs[0]), self.story(outs[1]))
            for out in outs:
                self.assertEqual([4, 8, 12, 16, 20], self.verify(out))
            hashes = [launch([PROGRAM, "--hash", os.path.join(out, "step_00000012")]).text for out in outs]
            self.assertEqual(hashes[0], hashes[1])
            starts = [runs[case].events("start")[0] for case in (a, b)]
            self.assertGreater(starts[0]["snapshot_bytes"], 0)
            self.assertEqual(0, starts[1]["snapshot_bytes"])
            for start in starts:
                self.assertEqual(start["predicted_snapshot_bytes"], start["snapshot_bytes"])
            self.assertIn("saves    asynchronous: a step waits for a copy", runs[a].text)
            self.assertIn("saves    streamed while the step waits (--checkpoint-async off)", runs[b].text)

    def test_auto_needs_room(self):
        flags = TINY + ["--steps", "4", "--checkpoint-every", "1"]
        run = self.run_well(1, flags + ["--device-memory", "2M"], "little")  # the snapshot has a buffer of 4 MiB
        self.assertEqual(0, run.events("start")[0]["snapshot_bytes"])
        self.assertIn("would leave less than 20% of the host's memory free (--checkpoint-async auto)", run.text)
        refused = self.run_ranks(1, flags + ["--device-memory", "2M", "--checkpoint-async", "on"], self.path("on"))
        self.assertEqual(1, refused.code)
        self.assertIn("leave the option out, and saves are streamed", refused.error)
        self.assertFalse(os.path.exists(self.path("on")))

    def test_full_disk_of_many_ranks(self):
        """One save fails, is reported once, leaves the one before it; training goes on and the next one succeeds."""
        disk = self.path("disk")
        os.mkdir(disk)
        mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True, text=True,
                               check=False)
        if mount.returncode != 0:
            self.skipTest("cannot mount a small tmpfs: " + mount.stderr.strip())
        try:
            out, filler = os.path.join(disk, "run"), os.path.join(disk, "filler")
            flags = TINY + ["--steps", "100000", "--checkpoint-every", "20", "--keep", "2", "--zero", "3", "--log-every", "10",
                            "--checkpoint-async", "on", "--dtype", "bf16", "--schedule", "constant"]
            process = self.start(3, flags, out, {"ZERO_TEST_COMM_DELAY_US": "300"})
            text = out + ".text"
            wait_for(lambda: "checkpoint of step 20 saved" in self.read(text), "the first save")
            with open(filler, "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"0" * 16384)
                except OSError:
                    pass
            os.truncate(filler, os.path.getsize(filler) - 100_000)  # the log goes on, a checkpoint has no room
            wait_for(lambda: "FAILED" in self.read(text), "a save that fails")
            os.remove(filler)
            n = self.read(text).count(" saved in ")
            wait_for(lambda: self.read(text).count(" saved in ") >= n + 2, "saves that succeed again")
            process.send_signal(signal.SIGUSR2)
            self.assertEqual(3, process.wait(timeout=60), self.read(out + ".error"))
            self.assertRegex(self.read(text), r"checkpoint of step \d+ FAILED: cannot save .*No space left on device")
            self.assertIn("checkpoint_failed", [event["event"] for event in self.story(out)])
            self.assertEqual(2, len(self.verify(out)))
            self.assertEqual([], glob.glob(out + "/*.tmp"))
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(timeout=30)
            subprocess.run(["umount", "-l", disk], check=True)


class Resumed(Living):
    def test_killed_runs_repeat_the_log(self):
        """Killed twice at any moment, resumed at other stages: not a line of the log is lost, doubled or different."""
        flags = TINY + ["--steps", "120", "--checkpoint-every", "7", "--keep", "2", "--dtype", "fp16", "--loss-scale", "1024",
                        "--val", self.val, "--eval-every", "10", "--eval-batches", "1", "--lr", "1e-5", "--skip-loss-zscore", "1.5",
                        "--skip-norm-zscore", "1.5"]
        whole = self.run_well(2, flags + ["--zero", "1"], "whole")
        reasons = [e["skip_reason"].split()[0] for e in whole.events("step") if "skip_reason" in e]
        self.assertIn("loss", reasons)
        self.assertIn("norm", reasons)
        out = self.path("killed")
        for kill_at in (40, 80):
            process = self.start(2, flags + ["--zero", "3", "--log-every", "1"], out, {"ZERO_TEST_COMM_DELAY_US": "300"})
            wait_for(lambda at=kill_at: f"step {at}/" in self.read(out + ".text"), f"step {kill_at}")
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=30)
            kill_all_of(out)
        last = self.run_well(2, flags + ["--zero", "2"], "killed")
        self.assertIn("resumed from", last.text)
        self.assertEqual(last.hashes, whole.hashes)
        self.assertEqual(self.story(out), self.story(self.path("whole")))
        self.assertEqual([119, 120], self.verify(out))


class Spikes(Living):
    def test_every_rank_skips(self):
        """A large gradient on one rank in step 40: no rank takes it, in any stage, and it does not count for --max-skips."""
        env = {"ZERO_HOOK_GRADIENT": "1 2 40 3 5 1e4"}
        flags = TINY + ["--steps", "44", "--skip-norm-zscore", "6", "--max-skips", "2", "--keep", "0"]

        def run(stage):
            return self.run_well(2, flags + ["--zero", str(stage), "--checkpoint-every", "39"], str(stage), program=HOOKS,
                                 env=env)

        runs = in_parallel(run, [0, 3])
        for each in runs:
            steps = each.events("step")
            self.assertEqual([0] * 39 + [1, 2, 3, 3, 3], [e["skipped"] for e in steps])
            self.assertRegex(steps[39]["skip_reason"], r"norm .* standard deviations .* above the mean .* of the last 39")
            self.assertIn("SKIPPED: norm", each.text)
            self.assertNotIn("skip_reason", steps[42])
            self.assertEqual(steps[39]["lr"], steps[42]["lr"])  # the schedule counts updates
        self.assertEqual(runs[0].hashes, runs[1].hashes)
        # A run that is resumed right before the spike has the same statistics.
        first = self.run_well(2, flags + ["--zero", "1", "--stop-at", "39", "--checkpoint-every", "39"], "parts",
                              program=HOOKS, env=env)
        self.assertEqual(0, first.events("step")[-1]["skipped"])
        parts = self.run_well(2, flags + ["--zero", "2", "--checkpoint-every", "39"], "parts", program=HOOKS, env=env)
        self.assertEqual(parts.hashes, runs[0].hashes)
        self.assertEqual(self.story(self.path("parts"))[:-2], self.story(self.path("0"))[:-2])
        # The rule is part of the run: another Z is another run.
        other = self.run_ranks(2, flags + ["--skip-norm-zscore", "7"], self.path("parts"), program=HOOKS, env=env)
        self.assertEqual(1, other.code)
        self.assertIn("skip-norm-zscore: saved 6, now 7", other.error)


class Limits(Living):
    def test_max_minutes(self):
        flags = TINY + ["--schedule", "constant", "--steps", "1000000", "--checkpoint-every", "50", "--keep", "2", "--zero",
                        "2", "--grad-accum", "2"]
        out = self.path("out")
        run = self.run_ranks(3, flags + ["--max-minutes", "0.1"], out)
        self.assertEqual(3, run.code, run.error)
        self.assertIn("--max-minutes have passed: saving step", run.text)
        step = run.events("end")[0]["step"]
        self.assertEqual(step, self.verify(out)[-1])
        # It is the run that goes on: the next call starts there, with the bits of a run without a limit.
        more = flags + ["--stop-at", str(step + 5)]
        resumed = self.run_ranks(3, more, out)
        self.assertEqual(0, resumed.code, resumed.error)
        whole = self.run_well(3, more + ["--checkpoint-every", "0"], "whole")
        self.assertEqual(resumed.hashes, whole.hashes)

    def test_launcher_and_signals(self):
        """SIGTERM to the launcher, with a save under way or not: all ranks save and end; the checkpoint is good."""
        out = self.path("out")
        arguments = ["--train", self.train, "--out", out, "--steps", "1000000", "--zero", "1", "--seq-len", "13"]
        command = [RUN_MPIRUN, "-n", "2", "--threads", "1", "--bind", "none", PROGRAM] + TINY + arguments
        with open(out + ".text", "w", encoding="utf-8") as text:
            process = subprocess.Popen(command + ["--checkpoint-every", "3"], stdout=text, stderr=text,
                                       stdin=subprocess.DEVNULL, env=ENVIRONMENT)
        self.addCleanup(process.kill)
        wait_for(lambda: self.read(out + ".text").count(" saved in ") >= 2, "two checkpoints")
        beat = json.loads(self.read(os.path.join(out, "heartbeat.json")))
        wait_for(lambda: json.loads(self.read(os.path.join(out, "heartbeat.json")))["step"] > beat["step"], "a later heartbeat")
        self.assertLess(abs(beat["time"] - time.time()), 60)
        self.assertTrue(os.path.exists(f"/proc/{beat['pid']}"))
        process.terminate()
        self.assertEqual(3, process.wait(timeout=60), self.read(out + ".text")[-1000:])
        step = int(self.read(out + ".text").rsplit("asked to stop: saving step ", 1)[1].split()[0])
        self.assertEqual(step, self.verify(out)[-1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
