"""What users and machines do to a run: outputs that close, directories that are in use, paths, sizes and bytes that
nothing could make sense of. A run says what is wrong, once, and harms nothing; what it can bear, it bears."""
import json
import os
import resource
import signal
import subprocess
import time
import unittest

import numpy as np

from launching import wait_for
from test_train import MODELS, PROGRAM, Base, write_shard
from zero_runs import mpirun, require_mpirun

LONG = ["--steps", "1000000", "--checkpoint-every", "1000000", "--threads", "1"]


class Misuse(Base):
    def flags(self, *more):
        return MODELS["gpt2"] + ["--train", self.train, *more]

    def start(self, out, **options):
        """A run that does not end by itself; returns when it has made a step."""
        process = subprocess.Popen([PROGRAM] + self.flags(*LONG, "--out", out), stderr=subprocess.PIPE, **options)
        log = os.path.join(out, "log.jsonl")
        wait_for(lambda: os.path.exists(log) and b'"step"' in self.read(log), "the first step")
        return process

    def read(self, path):
        with open(path, "rb") as f:
            return f.read()

    def assert_log(self, out):
        """Every line is a JSON object in UTF-8."""
        text = self.read(os.path.join(out, "log.jsonl"))
        self.assertTrue(text.endswith(b"\n"), text[-200:])
        return [json.loads(line.decode()) for line in text.splitlines()]

    def assert_saved(self, process, out):
        """It ended as if it had been asked to."""
        error = process.stderr.read()
        process.stderr.close()
        self.assertEqual(process.wait(timeout=60), 3, error)
        self.assert_log(out)
        saved = [name for name in os.listdir(out) if name.startswith("step_")]
        self.assertEqual(len(saved), 1, saved)
        self.assertEqual(self.run_program(["--verify", os.path.join(out, saved[0])]).code, 0)


class Outputs(Misuse):
    def test_standard_files_that_are_closed(self):
        out = self.path("out")

        def close_them():
            for fd in (0, 1, 2):
                os.close(fd)
        process = subprocess.Popen([PROGRAM] + self.flags("--steps", "2", "--out", out), preexec_fn=close_them)
        self.assertEqual(process.wait(timeout=120), 0)
        self.assertEqual([e["event"] for e in self.assert_log(out)], ["start", "step", "step", "checkpoint", "end"])

    def test_nobody_reads_the_output(self):
        out = self.path("out")
        process = self.start(out, stdout=subprocess.PIPE)
        process.stdout.close()
        self.assert_saved(process, out)

    def test_the_terminal_goes_away(self):
        out = self.path("out")
        process = self.start(out, stdout=subprocess.DEVNULL)
        process.send_signal(signal.SIGHUP)
        self.assert_saved(process, out)

    def test_nohup(self):
        out = self.path("out")
        process = self.start(out, stdout=subprocess.DEVNULL, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        process.send_signal(signal.SIGHUP)
        size = len(self.read(os.path.join(out, "log.jsonl")))
        wait_for(lambda: len(self.read(os.path.join(out, "log.jsonl"))) > size + 5000, "more steps")
        process.terminate()
        self.assert_saved(process, out)

    def test_no_room_for_the_log(self):
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writes fail, as on a full disk
            resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
        out = self.path("out")
        run = self.run_program(self.flags("--steps", "20", "--checkpoint-every", "0"), out, preexec=limit)
        self.assertEqual(run.code, 0, run.error)
        self.assertEqual(run.text.count("the log will lack lines"), 1, run.text)
        self.assertIn("step 20/20", run.text)
        self.assertGreater(len(self.assert_log(out)), 2)


class Signals(Misuse):
    def test_one_request_that_comes_as_two_signals(self):
        """timeout(1) signals a process, and then its group."""
        out = self.path("out")
        process = self.start(out, stdout=subprocess.DEVNULL)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        self.assert_saved(process, out)


class Directories(Misuse):
    def test_two_runs_in_one(self):
        out = self.path("out")
        process = self.start(out, stdout=subprocess.DEVNULL)
        self.refused(self.flags(*LONG), "another run", out=out)
        process.terminate()
        self.assert_saved(process, out)

    def halved(self, name):
        """A run that stopped at step 2 of 4."""
        out = self.path(name)
        self.train_run(name, ["--steps", "4", "--checkpoint-every", "2", "--stop-at", "2"])
        return out, os.path.join(out, "log.jsonl")

    def test_lost_log(self):
        out, log = self.halved("out")
        first = self.read(log).splitlines(keepends=True)[0]
        with open(log, "wb") as f:
            f.write(first)
        self.refused(self.flags("--steps", "4"), "log.jsonl", f"{len(first)} bytes", out=out)
        self.assertEqual(self.read(log), first)
        os.remove(log)
        run = self.run_program(self.flags("--steps", "4"), out)
        self.assertEqual(run.code, 0, run.error)
        self.assertEqual([e["step"] for e in run.events("step")], [3, 4])

    def test_checkpoint_of_another_directory(self):
        out, _ = self.halved("out")
        fork = self.path("fork")
        run = self.run_program(self.flags("--steps", "4", "--resume", os.path.join(out, "step_00000002")), fork)
        self.assertEqual(run.code, 0, run.error)
        self.assertEqual([e["step"] for e in run.events("step")], [3, 4])
        # What is in a directory already is not mixed with another run's
        before = self.read(os.path.join(out, "log.jsonl"))
        for resume in ("never", os.path.join(fork, "step_00000004")):
            self.refused(self.flags("--steps", "8", "--resume", resume, "--keep", "1"), "another run", "step_00000002", out=out)
            self.assertEqual(self.read(os.path.join(out, "log.jsonl")), before)
        run = self.run_program(self.flags("--steps", "4", "--resume", os.path.join(out, "step_00000002/")), out)
        self.assertEqual(run.code, 0, run.error)
        self.assertEqual([e["step"] for e in run.events("step")], [1, 2, 3, 4])
        # Going back would leave newer ones, which the next run would take, and which count for --keep
        flags = self.flags("--steps", "8", "--stop-at", "6", "--checkpoint-every", "1", "--resume",
                           os.path.join(out, "step_00000002"))
        self.refused(flags, "newer checkpoints, up to", "step_00000004", out=out)
        self.assertIn("step_00000004", os.listdir(out))
        self.assertEqual(self.run_program(self.flags("--steps", "4", "--stop-at", "2"), out).text.count("nothing is left to do"), 1)

    def test_log_of_a_run_that_saved_nothing(self):
        out = self.path("out")
        for steps in ("3", "2"):
            run = self.train_run("out", ["--steps", steps, "--checkpoint-every", "0"])
        self.assertEqual(len(run.events("step")), 2)
        self.assertEqual(self.read(os.path.join(out, "log.jsonl.old")).count(b'"step"'), 2 * 3 + 1)  # event and number; end
        self.train_run("out", ["--steps", "1", "--checkpoint-every", "0"])
        self.assertEqual(self.read(os.path.join(out, "log.jsonl.old")).count(b'"step"'), 2 * (3 + 2) + 2)

    def test_failure_beside_a_save(self):
        """A run whose data turn bad goes down, and the save that is under way goes well."""
        tokens = np.zeros(4000, np.uint16)
        tokens[2000:] = 300
        bad = self.path("bad.h5")
        write_shard(bad, tokens)
        out = self.path("out")
        run = self.run_program(MODELS["gpt2"] + ["--train", bad, "--steps", "1000", "--checkpoint-every", "1"], out)
        self.assertEqual(run.code, 1)
        self.assertIn("outside of the model's vocabulary", run.error)
        self.assertEqual([name for name in os.listdir(out) if name.endswith(".tmp")], [])


class Values(Misuse):
    def test_bytes_that_are_no_text(self):
        good = self.flags("--steps", "1", "--sample-every", "1")
        self.refused(good + ["--prompt", b"\xff\xfe"], "--prompt", "UTF-8", code=2)
        self.refused(good + ["--out", os.fsencode(self.path("out")) + b"\xc3"], "--out", "UTF-8", code=2)

    def test_options_that_would_be_ignored(self):
        for option, value in (("--prompt", "x"), ("--temperature", "1"), ("--sample-tokens", "9"), ("--top-k", "3")):
            self.refused(self.flags(option, value), option, "--sample-every", code=2)
        self.refused(self.flags("--stop-at", "0"), "--stop-at", code=2)

    def test_tools_one_at_a_time(self):
        self.refused(["--hash", self.root, "--verify", self.root], "give one of them", code=2)
        self.refused(["--hash", self.root, "--print-config"], "give one of them", code=2)
        self.refused(["--verify", self.root, "--verify", self.root], "--verify is given twice", code=2)

    def test_validation_data_of_another_tokenizer(self):
        small = self.path("small.h5")
        write_shard(small, np.zeros(400, np.uint16), vocab=32)
        self.refused(MODELS["gpt2"] + ["--train", small, "--val", self.train], "one tokenizer", code=2)

    def test_stop_without_out(self):
        run = self.run_program(self.flags("--steps", "1000000", "--max-minutes", "0.01"))
        self.assertEqual(run.code, 3, run.error)
        self.assertIn("nothing is saved without --out", run.text)

    def test_more_than_the_host_has(self):
        self.refused(self.flags("--micro-batch", "1048576", "--seq-len", "1024", "--channels", "1024"),
                     "this host's memory", "take more ranks", out=self.path("out"))
        self.assertFalse(os.path.exists(self.path("out")))

    def test_plan_of_absurd_sizes(self):
        run = self.run_program(["--plan", "--model", "llama-tiny", "--layers", "9998", "--channels", "1048576", "--heads",
                                "1024", "--kv-heads", "1024", "--vocab-size", "16777216", "--micro-batch", "1048576",
                                "--seq-len", "2047", "--device-memory", "80G", "--ranks", "1024"])
        self.assertEqual(run.code, 0, run.error)
        self.assertNotIn("yes", run.text)  # sums that wrapped around would fit


class Ranks(Misuse):
    def setUp(self):
        require_mpirun()

    def launch(self, *arguments):
        return subprocess.run(mpirun(2, [PROGRAM, *arguments]), capture_output=True, text=True, timeout=120,
                              stdin=subprocess.DEVNULL)

    def test_one_voice(self):
        run = self.launch("--zero", "9")
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertEqual(run.stderr.count("out of range"), 1, run.stderr)
        for tool in ("--help", "--plan"):
            run = self.launch(tool)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertEqual(run.stdout.count("Memory of one rank" if tool == "--plan" else "Usage:"), 1, run.stdout)
        run = self.launch("--verify", self.root)
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertIn("--verify is the work of one rank", run.stderr)

    def test_lines_are_not_redrawn(self):
        # mpirun gives rank 0 a pseudo-terminal, whatever its own output is
        run = self.launch(*self.flags("--steps", "2", "--threads", "1"))
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("step 2/2", run.stdout)
        self.assertNotIn("\x1b", run.stdout)


if __name__ == "__main__":
    unittest.main()
