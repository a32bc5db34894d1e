#!/usr/bin/env python3
"""Hugging Face models through the whole program: --init-from computes transformers' loss at any N and stage, --export-hf
gives the same bits back, and what is wrong is named in one message.

Runs build/release/train_gpt (or $BUILD/train_gpt) on the models of test/fixtures/hf_* (dev/make_hf_fixtures.py).
"""
import glob
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

import h5py
import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = os.path.abspath(os.path.join(os.environ.get("BUILD", "build/release"), "train_gpt"))
FIXTURES = os.path.join(ROOT, "test", "fixtures")
MODELS = ["gpt2", "llama_gqa", "llama3_bf16", "qwen2_tied_parts"]
# Ranks share cores here: let them yield while they wait.
ENVIRONMENT = {**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def read_file(path):
    """Tensors of one safetensors file: name → (dtype, shape, bytes)."""
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for name, t in header.items()}


def read_model(directory):
    tensors = {}
    for path in glob.glob(os.path.join(directory, "*.safetensors")):
        tensors.update(read_file(path))
    return tensors


def write_file(path, tensors):
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def as_fp32(tensor):
    dtype, shape, data = tensor
    if dtype == "F32":
        return np.frombuffer(data, np.uint32).reshape(shape)
    assert dtype == "BF16"
    return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).reshape(shape)


class Base(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="zero_hf_")
        self.addCleanup(shutil.rmtree, self.dir)

    def path(self, name):
        return os.path.join(self.dir, name)

    def program(self, *arguments, ranks=1):
        launcher = ["mpirun", "-np", str(ranks), "--oversubscribe"] if ranks > 1 else []
        return subprocess.run(launcher + [PROGRAM, *arguments], capture_output=True, text=True, timeout=120, env=ENVIRONMENT,
                              cwd=self.dir)

    def done(self, *arguments, **options):
        run = self.program(*arguments, **options)
        self.assertEqual(run.returncode, 0, run.stderr + run.stdout[-400:])
        return run.stdout

    def refused(self, arguments, *texts, ranks=1):
        run = self.program(*arguments, ranks=ranks)
        self.assertIn(run.returncode, (1, 2), run.stdout)
        lines = [line for line in run.stderr.splitlines() if line.startswith(("train_gpt: ", "rank "))]
        self.assertEqual(len(lines), 1, run.stderr)
        for text in texts:
            self.assertIn(text, run.stderr)

    def model(self, name):
        return os.path.join(FIXTURES, "hf_" + name)

    def shard(self, model):
        """A shard of the fixture's tokens: one epoch of it is the batch that transformers' loss is of."""
        path = self.path("train.h5")
        with h5py.File(os.path.join(model, "expected.h5")) as f, h5py.File(path, "w") as g:
            g["tokens"] = f["tokens"][:]
            g.attrs["vocab_size"] = f.attrs["vocab_size"]
            return path, int(f.attrs["seq_len"]), int(f.attrs["windows"]), float(f.attrs["loss"])

    def start(self, model, out, *options, ranks=1, source=None):
        """One step at learning rate 0 from `model`; returns the losses, ours and transformers'."""
        train, seq_len, windows, loss = self.shard(source or model)
        self.done("--init-from", model, "--train", train, "--seq-len", str(seq_len), "--micro-batch", "1", "--threads", "1",
                  "--global-batch", str(windows), "--steps", "1", "--lr", "0", "--warmup", "0", "--out", out, *options,
                  ranks=ranks)
        with open(os.path.join(out, "log.jsonl"), encoding="utf-8") as f:
            events = [json.loads(line) for line in f]
        self.hash = [e for e in events if e["event"] == "end"][0]["weights_hash"]
        return [e["loss"] for e in events if e["event"] == "step"][0], loss

    def compare(self, found, expected):
        """Two models, tensor by tensor, bit by bit."""
        self.assertEqual(sorted(found), sorted(expected))
        for name, tensor in expected.items():
            self.assertEqual(found[name][1], tensor[1], name)
            np.testing.assert_array_equal(as_fp32(found[name]), as_fp32(tensor), name)


class RoundTrip(Base):
    def check(self, name, stage, ranks):
        model, out, export = self.model(name), self.path("out-" + name), self.path("export-" + name)
        ours, theirs = self.start(model, out, "--dtype", "fp32", "--zero", str(stage), ranks=ranks)
        self.assertLess(abs(ours - theirs), 1e-5 * theirs, f"{name} stage {stage} ranks {ranks}")
        self.done("--export-hf", export, "--out", out)
        self.compare(read_model(export), read_model(model))
        self.assertTrue(all(tensor[0] == "F32" for tensor in read_model(export).values()))
        with open(os.path.join(model, "config.json")) as f, open(os.path.join(export, "config.json")) as g:
            expected, found = json.load(f), json.load(g)
        for key, value in found.items():
            if expected.get(key) is not None and key != "torch_dtype" and "pdrop" not in key:
                self.assertEqual(value, expected[key], key)
        return export

    def test_one_rank(self):
        for name in MODELS:
            export = self.check(name, 0, 1)
            # The export is a model to start from like any other: the same bits again
            first = self.hash
            self.start(export, self.path("again-" + name), source=self.model(name))
            self.assertEqual(self.hash, first)

    @unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun")
    def test_ranks_and_stages(self):
        for ranks, stage, name in ((2, 0, "llama_gqa"), (4, 3, "gpt2"), (2, 3, "qwen2_tied_parts"), (2, 1, "llama3_bf16")):
            self.check(name, stage, ranks)

    def test_half_precision(self):
        # The master weights are fp32 and hold what came in, whatever the run computes in
        model, out = self.model("gpt2"), self.path("out")
        ours, theirs = self.start(model, out, "--dtype", "bf16", "--zero", "3")
        self.assertLess(abs(ours - theirs), 0.02)
        self.done("--export-hf", self.path("fp32/"), "--resume", os.path.join(out, "step_00000001"))
        self.compare(read_model(self.path("fp32")), read_model(model))
        # --dtype rounds; bf16 files come back as they were
        out = self.path("bf16-run")
        self.start(self.model("llama3_bf16"), out)
        self.done("--export-hf", self.path("new/bf16"), "--out", out, "--dtype", "bf16")
        os.rename(self.path("new/bf16"), self.path("bf16"))
        self.assertEqual(read_model(self.path("bf16")), read_model(self.model("llama3_bf16")))
        with open(self.path("bf16/config.json")) as f:
            self.assertEqual(json.load(f)["torch_dtype"], "bfloat16")

    def test_body_alone_and_buffers(self):
        # GPT-2's first files: no "transformer.", masks among the weights, the tied head stored all the same
        model = self.path("old")
        shutil.copytree(self.model("gpt2"), model)
        tensors = {name.replace("transformer.", ""): tensor for name, tensor in read_model(model).items()}
        tensors["lm_head.weight"] = tensors["wte.weight"]
        tensors["h.0.attn.bias"] = ("BOOL", [1, 1, 2, 3], bytes(6))
        write_file(os.path.join(model, "model.safetensors"), tensors)
        ours, theirs = self.start(model, self.path("out"))
        self.assertLess(abs(ours - theirs), 1e-5 * theirs)

    def test_tokenizer_comes_along(self):
        model = self.path("with tokenizer")
        shutil.copytree(self.model("gpt2"), model)
        for name in ("vocab.json", "merges.txt"):
            with open(os.path.join(model, name), "w") as f:
                f.write(name)
        self.start(model, self.path("out"))
        self.assertIn("with its tokenizer", self.done("--export-hf", self.path("export"), "--out", self.path("out")))
        for name in ("vocab.json", "merges.txt", "generation_config.json"):
            with open(os.path.join(model, name)) as f, open(os.path.join(self.path("export"), name)) as g:
                self.assertEqual(f.read(), g.read())

    def test_trained_from_nothing(self):
        train, _, _, _ = self.shard(self.model("gpt2"))
        for name in ("gpt2-tiny", "llama-tiny"):
            out, export = self.path(name), self.path("export-" + name)
            self.done("--model", name, "--layers", "1", "--seq-len", "24", "--micro-batch", "2", "--steps", "2", "--train",
                      train, "--out", out)
            self.assertIn("no tokenizer", self.done("--export-hf", export, "--out", out))
            with open(os.path.join(export, "generation_config.json")) as f:
                self.assertIsNone(json.load(f)["eos_token_id"])
            self.start(export, self.path("from-" + name), source=self.model("gpt2"))
            self.assertIn(self.hash, self.done("--hash", os.path.join(out, "step_00000002")))


class Vocabulary(Base):
    def test_padded_rows(self):
        """A vocabulary padded for speed (llm.c's 50304 for 50257): the export has the shards' own, and the round trip works."""
        train, _, _, _ = self.shard(self.model("gpt2"))  # vocabulary 101
        with h5py.File(train, "r+") as f:
            f.attrs["eot_token"] = 7
        for name, tie in (("gpt2-tiny", "on"), ("llama-tiny", "off")):
            out, export = self.path(name), self.path("export-" + name)
            rest = ["--seq-len", "24", "--micro-batch", "2", "--train", train]
            self.done("--model", name, "--layers", "1", "--tie", tie, "--vocab-size", "128", "--steps", "2", "--out", out, *rest)
            self.assertIn("of 128 rows the rest is left out", self.done("--export-hf", export, "--out", out))
            tensors = read_model(export)
            tables = [t for n, t in tensors.items() if "wte" in n or "embed_tokens" in n or "lm_head" in n]
            self.assertEqual([shape for _, shape, _ in tables], [[101, 128]] * (1 if tie == "on" else 2))
            with h5py.File(glob.glob(os.path.join(out, "step_00000002", "shards-*", "rank_00000.h5"))[0]) as f:
                table = f["unit_0000/master"][:101 * 128]
            np.testing.assert_array_equal(as_fp32(tables[0]).view(np.float32).ravel(), table)
            for file in ("config.json", "generation_config.json"):
                with open(os.path.join(export, file)) as f:
                    config = json.load(f)
                self.assertEqual((config["eos_token_id"], config["bos_token_id"], config["pad_token_id"]), (7, 7, None))
            with open(os.path.join(export, "config.json")) as f:
                self.assertEqual(json.load(f)["vocab_size"], 101)
            again = self.path("again-" + name)
            self.done("--init-from", export, "--steps", "1", "--lr", "0", "--warmup", "0", "--out", self.path("from-" + name),
                      *rest)
            self.assertNotIn("left out", self.done("--export-hf", again, "--out", self.path("from-" + name)))
            self.compare(read_model(again), tensors)

    def test_rows_that_a_model_came_with_stay(self):
        model, out, export = self.model("gpt2"), self.path("out"), self.path("export")
        train, _, _, _ = self.shard(model)
        with h5py.File(train, "r+") as f:  # as Qwen2, whose table has more rows than its tokenizer has tokens
            f.attrs["vocab_size"] = 100
            f["tokens"][...] = np.minimum(f["tokens"][:], 99)
        self.done("--init-from", model, "--train", train, "--seq-len", "24", "--micro-batch", "1", "--steps", "1", "--lr", "0",
                  "--warmup", "0", "--out", out)
        self.done("--export-hf", export, "--out", out)
        self.compare(read_model(export), read_model(model))


class Wrong(Base):
    def broken(self, change, name="gpt2"):
        """Arguments of a run from a copy of a fixture after change(directory)."""
        model = self.path("broken")
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(self.model(name), model)
        change(model)
        return ["--init-from", model, "--train", self.shard(self.model(name))[0], "--seq-len", "24"]

    def edit_weights(self, edit):
        def change(model):
            path = os.path.join(model, "model.safetensors")
            tensors = read_file(path)
            edit(tensors)
            write_file(path, tensors)
        return change

    def edit_config(self, **fields):
        def change(model):
            path = os.path.join(model, "config.json")
            with open(path) as f:
                config = {**json.load(f), **fields}
            with open(path, "w") as f:
                json.dump(config, f)
        return change

    def test_import(self):
        name = "transformer.h.1.mlp.c_fc.weight"
        turned = self.edit_weights(lambda t: t.update({name: ("F32", [128, 32], t[name][2])}))
        self.refused(self.broken(turned), name, "has the shape (128, 32), but config.json makes it (32, 128)")
        integers = self.edit_weights(lambda t: t.update({name: ("I32", *t[name][1:])}))
        self.refused(self.broken(integers), name, "dtype I32")
        self.refused(self.broken(self.edit_config(vocab_size=200)), "wte.weight has the shape (101, 32)")
        self.refused(self.broken(self.edit_config(activation_function="relu")), "activation_function")
        self.refused(self.broken(lambda m: os.remove(m + "/model.safetensors")), "has no model.safetensors", "pytorch_model")
        self.refused(self.broken(lambda m: os.truncate(m + "/model.safetensors", 122000)), "model.safetensors",
                     "would lie at bytes")
        self.refused(self.broken(lambda m: os.remove(m + "/model-00002-of-00002.safetensors"), "qwen2_tied_parts"),
                     "model-00002-of-00002.safetensors")

    @unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun")
    def test_import_of_many_ranks_ends_with_one_message(self):
        self.refused(self.broken(self.edit_weights(lambda t: t.pop("transformer.wpe.weight"))), "missing: transformer.wpe",
                     ranks=2)

    def test_export(self):
        self.refused(["--export-hf", self.path("x")], "--export-hf needs a checkpoint")
        self.refused(["--export-hf", self.path("x"), "--out", self.path("empty")], "--export-hf needs a checkpoint")
        self.refused(["--export-hf", self.path("x"), "--resume", self.path("none")], "none has no manifest.json")
        self.start(self.model("gpt2"), self.path("out"))
        self.refused(["--export-hf", self.dir, "--out", self.path("out")], "exists already")
        self.refused(["--export-hf", self.path("out/log.jsonl/where"), "--out", self.path("out")], "log.jsonl/where.tmp")
        shard = glob.glob(self.path("out/step_00000001/shards-*/rank_00000.h5"))[0]
        with open(shard, "r+b") as f:
            f.seek(os.path.getsize(shard) // 4)
            byte = f.read(1)
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte[0] ^ 1]))
        self.refused(["--export-hf", self.path("x"), "--out", self.path("out")], "is damaged", "/master")
        self.assertEqual(glob.glob(self.path("x*")), [])  # nothing half-written stays

    def test_full_disk(self):
        self.start(self.model("gpt2"), self.path("out"))

        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (50000, 50000))
            import signal
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        run = subprocess.run([PROGRAM, "--export-hf", self.path("x"), "--out", self.path("out")], capture_output=True, text=True,
                             preexec_fn=small_files, timeout=60)
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertIn("model.safetensors", run.stderr)
        self.assertEqual(glob.glob(self.path("x*")), [])


@unittest.skipIf("sanitize" in PROGRAM, "a sanitizer's memory is not the program's")
class Memory(Base):
    """Peak host memory: at most the largest unit and 10 % more than what the program needs anyway."""

    def peak(self, *arguments):
        script = "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL); " \
                 "print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        run = subprocess.run([sys.executable, "-c", script, PROGRAM, *arguments], capture_output=True, text=True, timeout=120)
        code, kilobytes = run.stdout.split()
        self.assertEqual(code, "0", run.stderr)
        return int(kilobytes) * 1024

    def test_peak(self):
        train, _, _, _ = self.shard(self.model("gpt2"))
        with h5py.File(train, "r+") as f:
            del f.attrs["vocab_size"]  # or the export would have only so many rows
        unit = 4 * 64 * 200000
        shape = ["--model", "gpt2-tiny", "--layers", "2", "--channels", "64", "--vocab-size", "200000"]
        rest = ["--seq-len", "8", "--micro-batch", "1", "--steps", "1", "--train", train, "--threads", "1"]
        without = self.peak(*shape, *rest, "--out", self.path("out"))
        tool = self.peak("--verify", self.path("out/step_00000001"))
        export = self.peak("--export-hf", self.path("x"), "--out", self.path("out"))
        start = self.peak("--init-from", self.path("x"), *rest)
        self.assertLess(export - tool, 1.1 * unit)
        self.assertLess(start - without, 1.1 * unit)


if __name__ == "__main__":
    unittest.main()
