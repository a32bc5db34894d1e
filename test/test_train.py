"""The whole program: the same bits whatever changes no number, wrong input, signals, and memory as predicted.

Runs build/release/train_gpt (or $BUILD/train_gpt) on a small shard that it makes itself.
"""
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import unittest

import h5py
import numpy as np

BUILD = os.environ.get("BUILD", "build/release")
PROGRAM = os.path.abspath(os.path.join(BUILD, "train_gpt"))
TINY = ["--layers", "3", "--heads", "4", "--channels", "64", "--seq-len", "48", "--micro-batch", "3", "--threads", "2",
        "--lr", "3e-3"]
MODELS = {"gpt2": ["--model", "gpt2-tiny"] + TINY,
          "llama": ["--model", "llama-tiny", "--kv-heads", "2"] + TINY}


def write_shard(path, tokens, vocab=257, **attributes):
    with h5py.File(path, "w") as f:
        f["tokens"] = np.asarray(tokens)
        if vocab:
            f.attrs["vocab_size"] = vocab
        for name, value in attributes.items():
            f.attrs[name] = value


class Run:
    def __init__(self, process, out):
        self.code = process.returncode
        self.text = process.stdout
        self.error = process.stderr
        self.log = []
        if out and os.path.exists(os.path.join(out, "log.jsonl")):
            with open(os.path.join(out, "log.jsonl")) as f:
                self.log = [json.loads(line) for line in f]

    def events(self, name):
        return [e for e in self.log if e["event"] == name]

    @property
    def hashes(self):
        end = self.events("end")[-1]
        return end["weights_hash"], end["state_hash"]


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.root = cls.directory.name
        rng = np.random.default_rng(1)
        # Text with some structure, so that the loss falls: a random walk over 32 tokens
        walk = np.cumsum(rng.integers(-3, 4, 40000)) % 32
        cls.train = os.path.join(cls.root, "train.h5")
        cls.val = os.path.join(cls.root, "val.h5")
        write_shard(cls.train, walk.astype(np.uint16))
        write_shard(cls.val, walk[:500].astype(np.uint16))

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def path(self, name):
        return os.path.join(self.root, self.id().split(".")[-1] + "-" + name)

    def run_program(self, arguments, out=None, env=None, preexec=None):
        command = [PROGRAM] + arguments + (["--out", out] if out else [])
        process = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **(env or {})},
                                 preexec_fn=preexec)
        return Run(process, out)

    def train_run(self, name, arguments, model="gpt2", **kwargs):
        run = self.run_program(MODELS[model] + ["--train", self.train] + arguments, self.path(name), **kwargs)
        self.assertEqual(run.code, 0, run.error + run.text[-400:])
        return run

    def refused(self, arguments, *texts, out=None, code=None):
        run = self.run_program(arguments, out)
        self.assertNotEqual(run.code, 0, run.text)
        if code:
            self.assertEqual(run.code, code, run.error)
        self.assertEqual(run.error.count("train_gpt: "), 1, run.error)
        for text in texts:
            self.assertIn(text, run.error)
        return run


class SameBits(Base):
    STEPS = ["--steps", "6", "--checkpoint-every", "3"]

    def check(self, variants, base, model="gpt2"):
        expected = self.train_run("base", self.STEPS + base, model)
        losses = [e["loss"] for e in expected.events("step")]
        self.assertTrue(all(np.isfinite(losses)), losses)
        for i, variant in enumerate(variants):
            got = self.train_run(f"v{i}", self.STEPS + base + variant, model)
            self.assertEqual(got.hashes, expected.hashes, f"{model} {base} {variant}")
            self.assertEqual([e["loss"] for e in got.events("step")], losses)

    VARIANTS = [[], ["--recompute", "selective"], ["--recompute", "full"], ["--head-chunk", "7"],
                ["--head-chunk", "64"], ["--overlap", "off"], ["--zero", "1"], ["--zero", "2"],
                ["--zero", "3", "--recompute", "full"]]

    def test_gpt2_fp32(self):
        self.check(self.VARIANTS, ["--dtype", "fp32"])

    def test_gpt2_bf16(self):
        self.check(self.VARIANTS, ["--dtype", "bf16"])

    def test_gpt2_fp16_param_grads(self):
        self.check(self.VARIANTS, ["--dtype", "fp16", "--grad-dtype", "param", "--reduce-dtype", "param"])

    def test_llama_bf16_param_grads(self):
        self.check(self.VARIANTS, ["--dtype", "bf16", "--grad-dtype", "param"], "llama")

    def test_llama_fp32_tied(self):
        self.check(self.VARIANTS[1:], ["--dtype", "fp32", "--tie", "on"], "llama")

    def test_accumulation(self):
        # Stages 0 and 1 accumulate full gradients, 2 and 3 reduced ones: equal within each pair.
        base = ["--dtype", "bf16", "--grad-accum", "3"]
        self.check([["--zero", "1"], ["--recompute", "full"]], base)
        expected = self.train_run("two", self.STEPS + base + ["--zero", "2"])
        got = self.train_run("three", self.STEPS + base + ["--zero", "3"])
        self.assertEqual(got.hashes, expected.hashes)

    def test_resume(self):
        for model, dtype in (("gpt2", "fp32"), ("gpt2", "fp16"), ("llama", "bf16")):
            base = ["--steps", "8", "--checkpoint-every", "4", "--dtype", dtype, "--grad-accum", "2"]
            whole = self.train_run(f"whole-{model}-{dtype}", base, model)
            self.train_run(f"parts-{model}-{dtype}", base + ["--stop-at", "4"], model)
            parts = self.train_run(f"parts-{model}-{dtype}", base, model)
            self.assertIn("resumed from", parts.text)
            self.assertEqual(parts.hashes, whole.hashes)
            # The log neither lost nor doubled a step
            self.assertEqual([e["step"] for e in parts.events("step")], list(range(1, 9)))
            self.assertEqual([e["loss"] for e in parts.events("step")], [e["loss"] for e in whole.events("step")])
            # --hash prints what the run printed
            hashed = self.run_program(["--hash", os.path.join(self.path(f"whole-{model}-{dtype}"), "step_00000008")])
            for text in whole.hashes:
                self.assertIn(text, hashed.text)

    def test_loss_falls_and_threads_agree(self):
        losses = {}
        for threads in ("1", "2"):
            run = self.train_run(f"t{threads}", ["--steps", "40", "--threads", threads, "--val", self.val])
            losses[threads] = [e["loss"] for e in run.events("step")]
        self.assertLess(losses["2"][-1], losses["2"][0] - 1.0)
        # Sums inside matmuls may be cut differently by other thread counts: fp32 rounding, grown over 40 steps
        np.testing.assert_allclose(losses["1"], losses["2"], rtol=1e-3)


class Memory(Base):
    def test_predicted_is_measured(self):
        configs = [("gpt2", []), ("gpt2", ["--dtype", "bf16"]), ("gpt2", ["--dtype", "fp16", "--grad-dtype", "param"]),
                   ("gpt2", ["--dtype", "bf16", "--zero", "2"]), ("gpt2", ["--zero", "3", "--recompute", "selective"]),
                   ("llama", ["--dtype", "bf16", "--reduce-dtype", "param"]), ("llama", ["--recompute", "full"]),
                   ("llama", ["--zero", "3", "--tie", "on", "--dtype", "bf16"]),
                   ("gpt2", ["--optimizer", "sgd", "--sample-every", "2"]),
                   ("llama", ["--tie", "off", "--zero", "1", "--head-chunk", "5"])]
        for i, (model, flags) in enumerate(configs):
            run = self.train_run(str(i), ["--steps", "2", "--val", self.val, "--eval-every", "1"] + flags, model)
            predicted = run.events("start")[0]["predicted_bytes"]
            self.assertEqual(run.events("step")[-1]["device_bytes"], predicted, f"{model} {flags}")
            self.assertGreater(predicted["parameters"], 0)

    def test_plan(self):
        plan = self.run_program(["--plan", "--model", "gpt2-124m", "--ranks", "8", "--dtype", "bf16", "--micro-batch", "4",
                                 "--grad-dtype", "param"])
        self.assertEqual(plan.code, 0, plan.error)
        for text in ("16Ψ", "4Ψ", "2Ψ", "activations"):
            self.assertIn(text, plan.text)

    def test_libraries_of_gpus_wait(self):
        # cuBLASLt and NCCL take 200 MB of a run as soon as they are loaded: only a GPU is worth that.
        libraries = subprocess.run(["ldd", PROGRAM], capture_output=True, text=True, check=True).stdout
        self.assertNotRegex(libraries, "cublas|nccl|libcuda")

    def test_limit(self):
        run = self.refused(MODELS["gpt2"] + ["--train", self.train, "--device-memory", "1M"], "--recompute")
        self.assertNotIn("step 1/", run.text)


class WrongInput(Base):
    def bad_shard(self, name, write):
        path = self.path(name)
        write(path)
        return MODELS["gpt2"] + ["--train", path, "--steps", "2"]

    def test_shards(self):
        def raw(data):
            def write(path):
                with open(path, "wb") as f:
                    f.write(data)
            return write

        def truncated(path):
            write_shard(path, np.zeros(100000, np.uint16))
            os.truncate(path, 100000)

        def no_tokens(path):
            with h5py.File(path, "w") as f:
                f["text"] = np.zeros(10)

        out = self.path("out")
        self.refused(MODELS["gpt2"] + ["--train", self.path("missing.h5")], "missing.h5", out=out)
        self.refused(self.bad_shard("empty.h5", raw(b"")), "empty.h5", out=out)
        self.refused(self.bad_shard("text.h5", raw(b"hello" * 1000)), "text.h5", "HDF5", out=out)
        self.refused(self.bad_shard("cut.h5", truncated), "cut.h5", out=out)
        self.refused(self.bad_shard("none.h5", no_tokens), "none.h5", "/tokens", out=out)
        self.refused(self.bad_shard("2d.h5", lambda p: write_shard(p, np.zeros((10, 10), np.uint16))), "2d.h5", out=out)
        self.refused(self.bad_shard("float.h5", lambda p: write_shard(p, np.zeros(1000, np.float32))), "float.h5", out=out)
        self.refused(self.bad_shard("short.h5", lambda p: write_shard(p, np.zeros(48, np.uint16))), "short", "49", out=out)
        self.assertFalse(os.path.exists(out), "a refused run must touch nothing")

    def test_token_outside_vocabulary(self):
        tokens = np.zeros(5000, np.uint16)
        tokens[1234] = 300
        self.refused(self.bad_shard("token.h5", lambda p: write_shard(p, tokens)) + ["--steps", "40"], "token.h5", "1234",
                     "300")

    def test_flags(self):
        good = MODELS["gpt2"] + ["--train", self.train]
        self.refused(good + ["--learning-rate", "1"], "--learning-rate", code=2)
        self.refused(good + ["--warmpu", "1"], "--warmup", code=2)
        self.refused(good + ["--heads", "7"], "heads", "7")
        self.refused(good + ["--zero", "4"], "--zero", code=2)
        self.refused(good + ["--global-batch", "7", "--micro-batch", "2"], "7", "2", code=2)
        self.refused(["--steps", "2"], "--train")

    def test_unwritable_output(self):
        blocker = self.path("file")
        open(blocker, "w").close()
        self.refused(MODELS["gpt2"] + ["--train", self.train, "--steps", "2"], "file", out=os.path.join(blocker, "out"))

    def test_small_validation_set(self):
        val = self.path("val.h5")
        write_shard(val, np.arange(120, dtype=np.uint16))  # two windows, less than a batch of three
        run = self.train_run("out", ["--steps", "2", "--val", val, "--eval-every", "1"])
        self.assertEqual(len(run.events("eval")), 2)
        self.assertTrue(np.isfinite(run.events("eval")[0]["val_loss"]))

    def test_other_checkpoints(self):
        self.train_run("run", ["--steps", "4", "--checkpoint-every", "2", "--stop-at", "2"])
        checkpoint = os.path.join(self.path("run"), "step_00000002")
        arguments = ["--train", self.train, "--steps", "4", "--resume", checkpoint]
        self.refused(MODELS["llama"] + arguments, "step_00000002")
        self.refused(MODELS["gpt2"] + arguments + ["--layers", "2"], "step_00000002")
        self.refused(MODELS["gpt2"] + arguments + ["--lr", "1e-5"], "lr", "--resume-changed")
        rank_file = next(os.path.join(d, f) for d, _, files in os.walk(checkpoint) for f in files if f.startswith("rank_"))
        with open(rank_file, "r+b") as f:
            f.seek(200001)
            byte = f.read(1)
            f.seek(200001)
            f.write(bytes([byte[0] ^ 1]))
        self.refused(MODELS["gpt2"] + arguments, "rank_00000.h5")
        self.refused(["--verify", checkpoint], "rank_00000.h5")

    def test_full_disk(self):
        disk = self.path("disk")
        os.mkdir(disk)
        mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", disk], capture_output=True, text=True)
        if mount.returncode != 0:
            self.skipTest("cannot mount a small tmpfs: " + mount.stderr.strip())
        try:
            out = os.path.join(disk, "run")
            flags = MODELS["gpt2"] + ["--train", self.train, "--checkpoint-every", "2", "--steps", "4", "--keep", "0"]
            first = self.run_program(flags + ["--stop-at", "2"], out)
            self.assertEqual(first.code, 0, first.error)
            with open(os.path.join(disk, "filler"), "wb", buffering=0) as f:
                try:
                    while True:
                        f.write(b"0" * 65536)
                except OSError:
                    pass
            size = os.path.getsize(os.path.join(disk, "filler"))
            os.truncate(os.path.join(disk, "filler"), max(0, size - 500_000))  # room for the log, not for a checkpoint
            second = self.run_program(flags, out)
            self.assertEqual(second.code, 1, second.text + second.error)
            self.assertIn("FAILED", second.text)
            self.assertEqual([d for d in os.listdir(out) if d.startswith("step_")], ["step_00000002"])
            os.remove(os.path.join(disk, "filler"))
            third = self.run_program(flags, out)  # from step 2 again, with room
            self.assertEqual(third.code, 0, third.error)
            self.assertEqual([e["step"] for e in third.events("step")], [1, 2, 3, 4])
        finally:
            subprocess.run(["umount", disk], check=True)


class Training(Base):
    def test_skips_end_the_run(self):
        run = self.run_program(MODELS["gpt2"] + ["--train", self.train, "--steps", "50", "--dtype", "fp16", "--loss-scale",
                                                 "1e18", "--max-skips", "4"], self.path("out"))
        self.assertEqual(run.code, 1)
        self.assertRegex(run.error, r"4 steps in a row were skipped")
        self.assertRegex(run.error, r"unit \d")
        self.assertEqual([e["skipped"] for e in run.events("step")], [1, 2, 3, 4])

    def test_skipped_steps_leave_the_weights(self):
        base = ["--dtype", "fp16", "--steps", "3"]
        skipped = self.train_run("skipped", base + ["--loss-scale", "1e18"])
        start = self.train_run("start", base + ["--stop-at", "1", "--lr", "0", "--min-lr", "0"])
        self.assertEqual(skipped.hashes[0], start.hashes[0])

    def test_signals(self):
        flags = MODELS["gpt2"] + ["--train", self.train, "--steps", "100000", "--checkpoint-every", "1000000"]
        out = self.path("out")
        process = subprocess.Popen([PROGRAM] + flags + ["--out", out], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in process.stdout:
            if line.startswith("step 3/"):
                process.send_signal(signal.SIGUSR1)
            if "saved" in line:
                break
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        text, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 3, error)
        step = int(re.search(r"asked to stop: saving step (\d+)", text).group(1))
        self.assertIn("a second signal stops at once", error)
        self.assertIn(f"step_{step:08d}", os.listdir(out))
        self.assertEqual(self.run_program(["--verify", os.path.join(out, f"step_{step:08d}")]).code, 0)
        # A run's directory stands for its newest checkpoint
        tools = [self.run_program(["--hash", where]) for where in (out, os.path.join(out, f"step_{step:08d}"))]
        self.assertEqual(tools[0].text, tools[1].text)
        resumed = self.run_program(flags[:-2] + ["--resume", out, "--stop-at", str(step)])
        self.assertIn(f"at step {step}", resumed.text)
        self.refused(["--verify", self.root], "neither one nor the directory of a run")

    def test_many_signals(self):
        # A signal must never interrupt the code that computes: its frame on the stack broke oneDNN's kernels
        flags = MODELS["gpt2"] + ["--train", self.train, "--steps", "100000", "--log-every", "20"]
        process = subprocess.Popen([PROGRAM] + flags, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in process.stdout:
            if line.startswith("step "):
                break
        for _ in range(5000):
            process.send_signal(signal.SIGUSR1)
            time.sleep(0.0002)
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 3, error)

    def test_sample_from_prompt(self):
        run = self.train_run("out", ["--steps", "2", "--sample-every", "2", "--prompt", "5 6 7", "--sample-tokens", "5"])
        self.assertEqual(len(run.events("sample")), 1)

    def test_print_config(self):
        run = self.run_program(MODELS["gpt2"] + ["--train", self.train, "--print-config", "--lr", "1e-3"])
        self.assertEqual(json.loads(run.text)["optimizer"]["lr"], 1e-3)


if __name__ == "__main__":
    unittest.main()
