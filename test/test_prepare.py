"""data/prepare.py: what it writes for every kind of input, and what it says when it cannot."""
import json
import os
import pty
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import h5py
import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PREPARE = os.path.join(ROOT, "data", "prepare.py")
sys.path.insert(0, os.path.join(ROOT, "data"))
from documents import PART_BYTES, find_cut, split_text, unit_side  # noqa: E402
from text_tokenizers import HuggingFaceTokenizer, byte_alphabet, merges_of_ranks  # noqa: E402

try:
    import sentencepiece
except ImportError:
    sentencepiece = None
try:
    import tokenizers
except ImportError:
    tokenizers = None


def read_file(path):
    with open(path, "rb") as file:
        return file.read()


def make_text(n_words, seed=1):
    """English-like text with lines and blank lines."""
    rng = random.Random(seed)
    words = ["".join(rng.choice("etaoinshrdlu") for _ in range(rng.randint(1, 9))) for _ in range(400)]
    return "".join(rng.choice(words) + rng.choice("      \n,.") for _ in range(n_words))


def small_tokenizer_json():
    """A byte-level BPE with three merges, as Hugging Face writes it."""
    alphabet = sorted(byte_alphabet())
    vocab = {c: i for i, c in enumerate(alphabet)}
    merges = ["h e", "l l", "he ll"]
    for merge in merges:
        vocab[merge.replace(" ", "")] = len(vocab)
    return {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
            "added_tokens": [{"id": len(vocab), "content": "<|endoftext|>", "single_word": False, "lstrip": False,
                              "rstrip": False, "normalized": False, "special": True}],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                      "merges": merges}}


class PrepareTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="zero_test_")
        self.addCleanup(shutil.rmtree, self.dir)
        self.out = self.path("shards")

    def path(self, name):
        return os.path.join(self.dir, name)

    def write(self, name, data):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "wb") as file:
            file.write(data if isinstance(data, bytes) else data.encode())
        return self.path(name)

    def prepare(self, *arguments, stdin=b"", expect=0, **options):
        arguments = [str(a) for a in arguments]
        if "--out" not in arguments:
            arguments += ["--out", self.out]
        done = subprocess.run([sys.executable, PREPARE, *arguments], input=stdin, capture_output=True, timeout=300, **options)
        self.assertEqual(done.returncode, expect, done.stderr.decode())
        self.assertNotIn(b"Traceback", done.stderr)
        return done.stdout.decode(), done.stderr.decode()

    def refuse(self, text, *arguments, code=1, **options):
        _, error = self.prepare(*arguments, expect=code, **options)
        self.assertIn(text, error)
        left = os.listdir(self.out) if os.path.isdir(self.out) else []
        self.assertEqual([name for name in left if name.endswith(".tmp")], [])

    def tokens(self, side, out=None):
        out = out or self.out
        names = sorted(n for n in os.listdir(out) if n.startswith(side + "_"))
        shards = []
        for name in names:
            with h5py.File(os.path.join(out, name), "r") as file:
                shards.append(file["tokens"][:])
        return np.concatenate(shards) if shards else np.empty(0, np.uint16)

    def count(self, path):
        with h5py.File(path, "r") as file:
            return len(file["tokens"])

    def documents(self, side):
        """The texts of a side that was made with --tokenizer bytes."""
        tokens = self.tokens(side)
        ends = np.flatnonzero(tokens == 256)
        self.assertEqual(ends[-1], len(tokens) - 1)
        return [bytes(d[d != 256].astype(np.uint8)) for d in np.split(tokens, ends + 1)[:-1]]

    # ---- the format ----

    def test_shard_format(self):
        self.prepare(self.write("a.txt", "héllo"), "--tokenizer", "bytes", "--val-fraction", 0)
        self.assertEqual(os.listdir(self.out), ["train_00000.h5"])
        with h5py.File(os.path.join(self.out, "train_00000.h5"), "r") as file:
            tokens = file["tokens"]
            self.assertEqual((tokens.dtype, tokens.chunks, tokens.compression), (np.dtype("<u2"), None, None))
            self.assertIsNotNone(tokens.id.get_offset())
            self.assertEqual(list(tokens), [*"héllo".encode(), 256])
            self.assertEqual((file.attrs["vocab_size"], file.attrs["tokenizer"], file.attrs["eot_token"]), (257, "bytes", 256))
            offsets, data = file["vocab/offsets"][:], bytes(file["vocab/bytes"][:])
            self.assertEqual((len(offsets), offsets.dtype), (258, np.dtype("u8")))
            self.assertEqual(data[offsets[65]:offsets[66]], b"A")

    def test_documents_are_split_by_their_text(self):
        names = ["d/%03d.txt" % i for i in range(200)]
        texts = [("text number %d\n" % i) * (i + 1) for i in range(200)]
        for name, text in zip(names, texts):
            self.write(name, text)
        self.write("d/.hidden", "not read")
        self.write("d/sub/deep.txt", "deep")
        self.prepare(self.path("d"), "--tokenizer", "bytes", "--val-fraction", 0.2)
        train, val = self.documents("train"), self.documents("val")
        self.assertEqual(sorted(train + val), sorted([t.encode() for t in texts] + [b"deep"]))
        self.assertTrue(20 <= len(val) <= 60)
        kept = [t.encode() for t in texts if t.encode() in train]
        self.assertEqual([t for t in train if t != b"deep"], kept, "the order of files")
        # Fewer documents: each is on the same side as before.
        half = self.path("half")
        self.prepare(*[self.path(n) for n in names[::2]], "--tokenizer", "bytes", "--val-fraction", 0.2, "--out", half)
        self.out = half
        self.assertTrue(set(self.documents("val")) <= set(val) and set(self.documents("train")) <= set(train))

    def test_one_text_has_a_validation_part(self):
        text = make_text(200000).encode()
        out, _ = self.prepare("-", "--tokenizer", "bytes", "--val-fraction", 0.1, stdin=text)
        train, val = self.tokens("train"), self.tokens("val")
        self.assertAlmostEqual(len(val) / (len(train) + len(val)), 0.1, delta=0.02)
        self.assertEqual(sum(len(d) for d in self.documents("train") + self.documents("val")), len(text))
        for document in self.documents("train") + self.documents("val"):
            self.assertIn(document, text)
        self.assertIn("val", out)
        sides = [unit_side(i, 0.01) for i in range(1000)]
        self.assertEqual(sides.count("val"), 10)

    def test_too_little_for_validation_warns(self):
        _, error = self.prepare(self.write("a.txt", "short"), "--tokenizer", "bytes")
        self.assertIn("no document fell to validation", error)

    def test_split_on(self):
        text = "one\n\ntwo\nlines\n \n\n\nthree\r\n\r\nfour"
        self.prepare("-", "--tokenizer", "bytes", "--val-fraction", 0, "--split-on", "blank-lines", stdin=text.encode())
        self.assertEqual(self.documents("train"), [b"one", b"two\nlines", b"three", b"four"])
        self.prepare("-", "--tokenizer", "bytes", "--val-fraction", 0, "--split-on", "<doc[^>]*>", "--force",
                     stdin=b"<doc 1>a<doc 2>b\n<doc 3><doc 4>")
        self.assertEqual(self.documents("train"), [b"a", b"b\n"])

    def test_streaming_pieces_lose_nothing(self):
        import io
        import re
        text = make_text(700000, 3).encode()  # several parts and blocks
        self.assertGreater(len(text), 3 * PART_BYTES)
        pieces = list(split_text(io.BytesIO(text), None, 10000))
        self.assertEqual(b"".join(p for p, _ in pieces), text)
        self.assertEqual([last for _, last in pieces], [False] * (len(pieces) - 1) + [True])
        self.assertTrue(all(len(p) <= 10000 for p, _ in pieces))
        marked = b"@@".join([text[i:i + 77777] for i in range(0, len(text), 77777)])
        documents = [b""]
        for piece, last in split_text(io.BytesIO(marked), re.compile(b"@@"), 5000):
            documents[-1] += piece
            documents += [b""] if last else []
        self.assertEqual(documents[:-1], marked.split(b"@@"))
        for data in ("ä" * 5000, "€" * 5000, "🙂" * 5000):  # no place to cut: characters stay whole
            for piece, _ in split_text(io.BytesIO(data.encode()), None, 997):
                piece.decode()
        self.assertEqual(find_cut(b"aaa\nbbb\n\n ccc ddd", 0, 10), 7, "a run of white space is not cut")

    def test_jsonl(self):
        lines = [json.dumps({"id": i, "body": "text %d \u00fc\n" % i}) for i in range(50)]
        name = self.write("a.jsonl", "\n".join(lines) + "\n\n")
        self.prepare(name, "--tokenizer", "bytes", "--field", "body", "--val-fraction", 0)
        expected = [("text %d \u00fc\n" % i).encode() for i in range(50)]
        self.assertEqual(self.documents("train"), expected)
        self.prepare("-", "--tokenizer", "bytes", "--field", "body", "--val-fraction", 0, "--force",
                     stdin="\n".join(lines).encode())
        self.assertEqual(self.documents("train"), expected)
        self.refuse("no field 'text'; it has: 'id', 'body'", name, "--tokenizer", "bytes", "--force")
        self.refuse("line 2 is not a JSON object", self.write("b.jsonl", '{"text":"a"}\n{"text":\n'), "--tokenizer", "bytes",
                    "--force", "--workers", 2)
        self.refuse("is not a text but int", self.write("c.jsonl", '{"text":7}\n'), "--tokenizer", "bytes", "--force")

    def test_output_does_not_depend_on_workers_or_time(self):
        name = self.write("a.txt", make_text(200000, 5))
        results = []
        for workers in (1, 3):
            out = self.path("w%d" % workers)
            self.prepare(name, "--tokenizer", "bytes", "--workers", workers, "--shard-tokens", "300K", "--out", out)
            results.append({n: read_file(os.path.join(out, n)) for n in sorted(os.listdir(out))})
            time.sleep(1.1)  # HDF5's time stamps are in seconds
        self.assertEqual(list(results[0]), list(results[1]))
        self.assertEqual(results[0], results[1])
        sizes = [self.count(os.path.join(out, n)) for n in results[0] if n.startswith("train")]
        self.assertEqual(set(sizes[:-1]), {300000})
        self.assertGreater(len(sizes), 3)

    # ---- tokenizers ----

    @unittest.skipUnless(sentencepiece, "sentencepiece is not installed")
    def test_sentencepiece(self):
        text = make_text(60000, 7).replace(".", "é €\t")
        for kind in ("bpe", "unigram"):
            out = self.path(kind)
            self.prepare("-", "--tokenizer", "sentencepiece", "--vocab-size", 500, "--model-type", kind, "--out", out,
                         stdin=text.encode())
            model = os.path.join(out, "tokenizer.model")
            processor = sentencepiece.SentencePieceProcessor(model_file=model)
            with h5py.File(os.path.join(out, "train_00000.h5"), "r") as file:
                self.assertEqual(file.attrs["tokenizer"], "sentencepiece-" + kind)
                self.assertEqual((file.attrs["vocab_size"], file.attrs["eot_token"]), (500, processor.eos_id()))
                self.assertEqual(len(file["vocab/scores"]), 500)
                tokens = file["tokens"][:]
                data, offsets = bytes(file["vocab/bytes"][:]), file["vocab/offsets"][:].astype(int)
            printed = b"".join(data[offsets[t]:offsets[t + 1]] for t in tokens if t != processor.eos_id())
            self.assertEqual(printed.decode(), text, "the text comes back as it was")
            # The model again, from its file: the same shard.
            again = self.path(kind + "2")
            self.prepare("-", "--tokenizer", "sentencepiece", "--model", model, "--out", again, stdin=text.encode())
            np.testing.assert_array_equal(tokens, self.tokens("train", again))
        self.refuse("cannot train a vocabulary of 100000", "-", "--tokenizer", "sentencepiece", "--vocab-size", 100000,
                    stdin=text.encode())
        self.refuse("model cannot be read", "-", "--tokenizer", "sentencepiece", "--model", self.write("x.model", "junk"))

    def test_tokenizer_json_tables(self):
        tokenizer = HuggingFaceTokenizer(json.dumps(small_tokenizer_json()).encode())
        self.assertEqual((tokenizer.name, tokenizer.vocab_size, tokenizer.eot), ("bpe", 260, 259))
        pieces = [bytes(tokenizer.tables["bytes"][a:b]) for a, b in
                  zip(tokenizer.tables["offsets"].astype(int), tokenizer.tables["offsets"].astype(int)[1:])]
        self.assertEqual(pieces[256:], [b"he", b"ll", b"hell", b"<|endoftext|>"])
        self.assertEqual(sorted(pieces[:256]), [bytes([b]) for b in range(256)])
        merges = [(pieces[a], pieces[b], pieces[c]) for a, b, c in tokenizer.tables["merges"]]
        self.assertEqual(merges, [(b"h", b"e", b"he"), (b"l", b"l", b"ll"), (b"he", b"ll", b"hell")])
        # tiktoken's way to say the same
        ranks = {piece: i for i, piece in enumerate(pieces[:259])}
        np.testing.assert_array_equal(merges_of_ranks(ranks), tokenizer.tables["merges"])
        # Another way of cutting words: it prints, but the C program must not encode with it.
        other = small_tokenizer_json()
        other["normalizer"] = {"type": "Lowercase"}
        self.assertNotIn("merges", HuggingFaceTokenizer(json.dumps(other).encode()).tables)

    def test_tokenizer_json(self):
        name = self.write("tokenizer.json", json.dumps(small_tokenizer_json()))
        text = "hello <|endoftext|> hé"
        if tokenizers is None:
            self.refuse("pip install tokenizers", "-", "--tokenizer", name, stdin=text.encode())
        else:
            self.prepare("-", "--tokenizer", name, "--val-fraction", 0, stdin=text.encode())
            tokens = list(self.tokens("train"))
            self.assertEqual(tokens.count(259), 1, "a document cannot end itself")
            self.assertEqual((tokens[0], tokens[-1]), (258, 259))
        self.refuse("is not a Hugging Face tokenizer.json", "-", "--tokenizer", self.write("b.json", "[1,2"), "--force")
        if tokenizers is not None:  # a file that holds the limits of its model's inputs loses no text
            limits = {"truncation": {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0},
                      "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                                  "pad_type_id": 0, "pad_token": "!"}}
            name = self.write("limits.json", json.dumps({**small_tokenizer_json(), **limits}))
            for text in "hello " * 20, "a":
                self.prepare("-", "--tokenizer", name, "--val-fraction", 0, "--force", stdin=text.encode())
                self.assertEqual(len(self.tokens("train")), (60 if len(text) > 1 else 1) + 1)
        self.refuse("cannot read", "-", "--tokenizer", self.path("none.json"), "--force")
        self.refuse("no '<stop>'", "-", "--tokenizer", self.path("tokenizer.json"), "--eot", "<stop>", "--force")

    def test_gpt2_without_its_libraries(self):
        blocked = "".join("import sys; sys.modules[%r] = None\n" % m for m in ("tiktoken", "tokenizers"))
        self.write("site/sitecustomize.py", blocked)
        self.refuse("needs the Python package tiktoken or tokenizers", "-", "--tokenizer", "gpt2", stdin=b"text",
                    env=dict(os.environ, PYTHONPATH=self.path("site")))

    # ---- .bin files ----

    def llmc(self, magic, version, tokens):
        header = np.zeros(256, "<i4")
        header[:3] = magic, version, len(tokens)
        return header.tobytes() + tokens.tobytes()

    def test_convert_llmc(self):
        rng = np.random.default_rng(1)
        a, b = rng.integers(0, 50257, 5000).astype("<u2"), rng.integers(0, 50257, 300).astype("<u2")
        self.prepare("--convert", self.write("tiny_train.bin", self.llmc(20240520, 1, a)),
                     self.write("tiny_val.bin", self.llmc(20240520, 1, b)), "--shard-tokens", 2000)
        np.testing.assert_array_equal(self.tokens("train"), a)
        np.testing.assert_array_equal(self.tokens("val"), b)
        with h5py.File(os.path.join(self.out, "train_00002.h5"), "r") as file:
            self.assertEqual((file.attrs["vocab_size"], file.attrs["eot_token"]), (50257, 50256))
            self.assertEqual(len(file["tokens"]), 1000)
        wide = rng.integers(0, 128256, 3000).astype("<u4")
        self.prepare("--convert", self.write("llama.bin", self.llmc(20240801, 7, wide)), "--force")
        self.assertEqual(os.listdir(self.out), ["train_00000.h5"], "older shards are gone")
        np.testing.assert_array_equal(self.tokens("train"), wide)
        self.assertEqual(self.tokens("train").dtype, np.dtype("<u4"))

    def test_convert_nanogpt(self):
        tokens = np.arange(1000).astype("<u2")
        name = self.write("train.bin", tokens.tobytes())
        self.prepare("--convert", name)
        np.testing.assert_array_equal(self.tokens("train"), tokens)
        self.prepare("--convert", name, "--vocab-size", 1000, "--force")
        self.refuse("token 999 at index 999 is outside of the vocabulary of 999", "--convert", name, "--vocab-size", 999,
                    "--force")
        tokenizer = self.write("tokenizer.json", json.dumps(small_tokenizer_json()))
        self.prepare("--convert", self.write("x.bin", (tokens % 260).tobytes()), "--tokenizer", tokenizer, "--force")
        with h5py.File(os.path.join(self.out, "train_00000.h5"), "r") as file:
            self.assertEqual((file.attrs["tokenizer"], file.attrs["vocab_size"]), ("bpe", 260))
            self.assertEqual(len(file["vocab/merges"]), 3)

    def test_convert_refuses(self):
        data = self.llmc(20240520, 1, np.zeros(100, "<u2"))
        self.refuse("truncated or damaged", "--convert", self.write("a.bin", data[:-2]))
        self.refuse("version 3", "--convert", self.write("b.bin", struct.pack("<2i", 20240520, 3) + data[8:]))
        self.refuse("neither llm.c's header", "--convert", self.write("c.bin", b"abc"))
        self.refuse("different width", "--convert", self.write("d.bin", data),
                    self.write("e.bin", self.llmc(20240801, 7, np.zeros(9, "<u4"))))
        self.refuse("cannot read", "--convert", self.path("none.bin"))

    # ---- what can go wrong ----

    def test_refuses_to_overwrite(self):
        name = self.write("a.txt", "first")
        self.prepare(name, "--tokenizer", "bytes", "--val-fraction", 0)
        self.refuse("replace them with --force", self.write("b.txt", "second"), "--tokenizer", "bytes")
        self.assertEqual(self.documents("train"), [b"first"])
        self.prepare(self.path("b.txt"), "--tokenizer", "bytes", "--val-fraction", 0, "--force")
        self.assertEqual(self.documents("train"), [b"second"])

    def test_wrong_input(self):
        self.refuse("cannot read", self.path("none.txt"), "--tokenizer", "bytes")
        self.refuse("is compressed", self.write("a.gz", b"\x1f\x8b\x08"), "--tokenizer", "bytes")
        self.refuse("not UTF-8 text", self.write("b.txt", b"\x89HDF\r\n\x1a\n\0\0"), "--tokenizer", "bytes")
        self.refuse("holds no text", "-", "--tokenizer", "bytes")
        os.mkdir(self.path("empty"))
        self.refuse("holds no file", self.path("empty"), "--tokenizer", "bytes")
        self.refuse("cannot make the directory", "-", "--tokenizer", "bytes", "--out", self.write("file", "") + "/x")
        self.refuse("no input is a .jsonl file", self.write("c.ndjson", '{"body":"a"}\n'), "--tokenizer", "bytes", "--field",
                    "body")

    def test_pipes_with_a_name_are_refused(self):
        """As in <(zcat …): what is read to look at them would be missing."""
        self.refuse("is not a regular file", "/dev/stdin", "--tokenizer", "bytes", stdin=b"text")
        os.makedirs(self.path("d"))
        os.mkfifo(self.path("d/pipe"))
        self.refuse("is not a regular file", self.path("d"), "--tokenizer", "bytes")

    def test_links_to_directories_are_followed_once(self):
        self.write("d/a.txt", "a")
        self.write("elsewhere/b.txt", "b")
        os.symlink(self.path("elsewhere"), self.path("d/link"))
        os.symlink(self.path("d"), self.path("d/loop"))
        self.prepare(self.path("d"), "--tokenizer", "bytes", "--val-fraction", 0)
        self.assertEqual(self.documents("train"), [b"a", b"b"])

    def test_wrong_options(self):
        text = self.write("a.txt", "text")
        for message, *options in [
                ("--tokenizer is missing",), ("needs --vocab-size", "--tokenizer", "sentencepiece"),
                ("has its own", "--tokenizer", "bytes", "--vocab-size", 300),
                ("not a number from 0 to 1", "--tokenizer", "bytes", "--val-fraction", 2),
                ("not a number such as", "--tokenizer", "bytes", "--shard-tokens", "1T"),
                ("matches an empty text", "--tokenizer", "bytes", "--split-on", "x*"),
                ("not a regular expression", "--tokenizer", "bytes", "--split-on", "("),
                ("is a sentencepiece model", "--tokenizer", "bytes", "--model", "m"),
                ("no meaning with --convert", "--convert", "--field", "x"),
                ("--model goes with --tokenizer", "--convert", "--model", "m")]:
            self.refuse(message, text, *options, code=2)

    def test_two_runs_and_what_a_killed_one_left(self):
        name = self.write("a.txt", "text")
        os.mkdir(self.out)
        for left in (".train_00007.h5.tmp", ".short_val_00000.h5.tmp"):
            self.write("shards/" + left, "left")
        first = subprocess.Popen([sys.executable, PREPARE, "-", "--tokenizer", "bytes", "--out", self.out, "--workers", "1"],
                                 stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            deadline = time.time() + 60
            while os.listdir(self.out) and time.time() < deadline:  # it removes what was left when it has the directory
                time.sleep(0.05)
            _, error = self.prepare(name, "--tokenizer", "bytes", expect=1)
            self.assertIn("another prepare.py is writing to", error)
        finally:
            first.kill()
            first.communicate()
        self.prepare(name, "--tokenizer", "bytes", "--val-fraction", 0)
        self.assertEqual(os.listdir(self.out), ["train_00000.h5"])

    def test_output_in_another_encoding(self):
        self.prepare(self.write("a.txt", "text " * 100), "--tokenizer", "bytes", "--val-fraction", 0, "--shard-tokens", 100,
                     env=dict(os.environ, PYTHONIOENCODING="ascii"))

    def test_full_disk_leaves_nothing(self):
        name = self.write("a.txt", make_text(100000))

        for n_bytes in (100000, 5000):  # too little for the tokens, for the header

            def limit():  # a write beyond fails, as on a full disk
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))
            self.refuse("cannot make the shards", name, "--tokenizer", "bytes", preexec_fn=limit)
            self.refuse("cannot make the shards", name, "--tokenizer", "bytes", "--shard-tokens", 45000, preexec_fn=limit)
        self.assertEqual(os.listdir(self.out), [])

    def test_interrupt_leaves_nothing(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            process = subprocess.Popen([sys.executable, PREPARE, "-", "--tokenizer", "bytes", "--out", self.out],
                                       stdin=subprocess.PIPE, stderr=subprocess.PIPE,
                                       # A shell that runs the tests in the background has SIGINT ignored.
                                       preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
            process.stdin.write(make_text(500000).encode())  # and the end never comes
            process.stdin.flush()
            deadline = time.monotonic() + 120
            while not (os.path.isdir(self.out) and os.listdir(self.out)):
                self.assertLess(time.monotonic(), deadline, "no shard was begun")
                time.sleep(0.02)
            process.send_signal(number)
            self.assertEqual(process.wait(120), 128 + number)
            process.stdin.close()
            self.assertNotIn(b"Traceback", process.stderr.read())
            process.stderr.close()
            self.assertEqual(os.listdir(self.out), [])

    def test_progress_on_a_terminal(self):
        name = self.write("a.txt", make_text(400000))
        master, slave = pty.openpty()
        process = subprocess.Popen([sys.executable, PREPARE, name, "--tokenizer", "bytes", "--out", self.out], stderr=slave,
                                   stdout=subprocess.DEVNULL)
        os.close(slave)
        seen = b""
        try:
            while True:
                block = os.read(master, 4096)
                if not block:
                    break
                seen += block
        except OSError:
            pass  # Linux: the other end was closed
        os.close(master)
        self.assertEqual(process.wait(120), 0)
        self.assertTrue(seen.endswith(b"\r\x1b[K"), "the bar is gone at the end")


if __name__ == "__main__":
    unittest.main()
