#!/usr/bin/env python3
"""prepare.py: text -> token shards that train_gpt reads (HDF5; the format is described in data/shards.h and data/vocab.h).

    data/prepare.py books/ --tokenizer sentencepiece --vocab-size 4096 --out shards
    zcat corpus.gz | data/prepare.py - --tokenizer bytes --split-on blank-lines --out shards
    data/prepare.py data.jsonl --field content --tokenizer path/to/tokenizer.json --out shards
    data/prepare.py --convert fineweb_train_000001.bin fineweb_val_000000.bin --out shards

Documents are put on the training or the validation side by a hash of their text. One single text without separators is
divided into units of 16 KiB instead, of which evenly spaced ones are for validation. The output is a function of the
input and the options: not of the number of processes, nor of the time.

Needs Python 3.9, numpy and h5py, and for a tokenizer its library.
"""
import argparse
import collections
import concurrent.futures
import multiprocessing
import os
import re
import signal
import sys
import threading
import time

try:
    import h5py  # noqa: F401 (shard_writer uses it; a missing package should be named, not traced)
    import numpy as np
except ImportError as missing:
    sys.exit("prepare.py: error: the Python package %s is missing in %s (Debian, Ubuntu: apt-get install python3-h5py "
             "python3-numpy, which are for /usr/bin/python3; elsewhere: pip install h5py numpy)"
             % (missing.name, sys.executable))

from documents import find_sources, json_text, read_parts, sample_lines
from shard_writer import SIDES, ShardWriter, find_old_shards
from text_tokenizers import PrepareError, Spec, find_gpt2, make_tokenizer, train_sentencepiece
from token_bins import open_bin, read_blocks

BATCH_BYTES = 256 << 10   # text that a worker gets at a time
BATCH_PARTS = 4096
PLAIN_SECONDS = 10        # between progress lines when stderr is not a terminal


# ---- what a worker process does ----

worker_tokenizer = None


def end_with_parent():
    multiprocessing.parent_process().join()
    os._exit(1)


def start_worker(spec):
    global worker_tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops the workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=end_with_parent, daemon=True).start()  # also when it was killed
    worker_tokenizer = make_tokenizer(spec)


def token_dtype(vocab_size):
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def encode_batch(parts):
    """{side: tokens} of a list of Parts."""
    tokenizer = worker_tokenizer
    dtype = token_dtype(tokenizer.vocab_size)
    pieces = {side: [] for side in SIDES}
    eot = np.array([tokenizer.eot], dtype)
    for part in parts:
        data = part.data if part.field is None else json_text(part.data, part.field, part.where)
        pieces[part.side].append(np.array(tokenizer.encode(data), dtype))
        if part.end:
            pieces[part.side].append(eot)
    return {side: np.concatenate(pieces[side]) if pieces[side] else np.empty(0, dtype) for side in SIDES}


# ---- the pipeline ----

class Progress:
    """A redrawn bar on a terminal, a line now and then elsewhere."""

    def __init__(self, total_bytes):
        self.total, self.done, self.tokens = total_bytes, 0, 0
        self.start = time.monotonic()
        self.terminal = sys.stderr.isatty()
        self.last = self.start

    def update(self, n_bytes, n_tokens):
        self.done += n_bytes
        self.tokens += n_tokens
        now = time.monotonic()
        if now - self.last < (0.1 if self.terminal else PLAIN_SECONDS):
            return
        self.last = now
        rate = self.done / (now - self.start)
        text = "%.1f MB, %.1f M tokens, %.1f MB/s" % (self.done / 1e6, self.tokens / 1e6, rate / 1e6)
        if self.total:
            fraction = min(1.0, self.done / self.total)
            left = int((self.total - self.done) / rate)
            bar = "#" * int(30 * fraction)
            text = "[%-30s] %3d%%  %s, %d:%02d left" % (bar, 100 * fraction, text, left // 60, left % 60)
        if self.terminal:
            sys.stderr.write("\r\x1b[K" + text)
        else:
            sys.stderr.write("prepare.py: " + text + "\n")
        sys.stderr.flush()

    def finish(self):
        if self.terminal:
            sys.stderr.write("\r\x1b[K")


def batches(parts):
    batch, n_bytes = [], 0
    for part in parts:
        batch.append(part)
        n_bytes += len(part.data)
        if n_bytes >= BATCH_BYTES or len(batch) >= BATCH_PARTS:
            yield batch, n_bytes
            batch, n_bytes = [], 0
    if batch:
        yield batch, n_bytes


def encode_all(parts, spec, workers):
    """(tokens by side, bytes of text) batch by batch, in order; a bounded number of batches is in flight."""
    if workers == 1:
        global worker_tokenizer
        worker_tokenizer = make_tokenizer(spec)
        for batch, n_bytes in batches(parts):
            yield encode_batch(batch), n_bytes
        return
    pool = concurrent.futures.ProcessPoolExecutor(workers, initializer=start_worker, initargs=(spec,))
    try:
        flying = collections.deque()
        for batch, n_bytes in batches(parts):
            flying.append((pool.submit(encode_batch, batch), n_bytes))
            if len(flying) > 2 * workers:
                future, done = flying.popleft()
                yield future.result(), done
        for future, done in flying:
            yield future.result(), done
    except concurrent.futures.process.BrokenProcessPool:
        raise PrepareError("a worker process died (out of memory?); try fewer with --workers") from None
    finally:
        pool.shutdown(cancel_futures=True)


def find_spec(args, sources):
    """The tokenizer that the options ask for, as (Spec, files to keep beside the shards)."""
    name = args.tokenizer
    if name == "bytes":
        return Spec("bytes"), {}
    if name == "gpt2":
        return find_gpt2(), {}
    if name == "sentencepiece" and args.model:
        return Spec("sentencepiece", read_file(args.model), args.eot), {}
    if name == "sentencepiece":
        print("prepare.py: training a sentencepiece vocabulary of %d …" % args.vocab_size, file=sys.stderr)
        model = train_sentencepiece(sample_lines(sources), args.vocab_size, args.model_type)
        return Spec("sentencepiece", model), {"tokenizer.model": model}
    return Spec("huggingface", read_file(name), args.eot), {}


def read_file(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise PrepareError("cannot read %s: %s" % (path, error.strerror)) from None


def root_attributes(tokenizer):
    return {"vocab_size": np.int64(tokenizer.vocab_size), "tokenizer": tokenizer.name, "eot_token": np.int64(tokenizer.eot)}


def prepare_text(args):
    sources = find_sources(args.inputs, args.field)
    old = find_old_shards(args.out, args.force)
    spec, files = find_spec(args, sources)
    tokenizer = make_tokenizer(spec)
    tokenizer.encode(b"a")  # a missing library is named before anything is written
    writer = ShardWriter(args.out, old, args.shard_tokens, token_dtype(tokenizer.vocab_size), root_attributes(tokenizer),
                         tokenizer.tables, tokenizer.settings)
    writer.files = files
    sizes = [source.size for source in sources]
    progress = Progress(sum(sizes) if None not in sizes else None)
    parts = read_parts(sources, args.split_on, args.val_fraction)

    def blocks():
        for tokens, n_bytes in encode_all(parts, spec, args.workers):
            progress.update(n_bytes, sum(map(len, tokens.values())))
            yield from tokens.items()
    write_all(writer, blocks(), args)
    progress.finish()
    report(writer, "%s, vocabulary %d, %.2f bytes a token, %.1f s"
           % (tokenizer.name, tokenizer.vocab_size, progress.done / max(1, progress.tokens),
              time.monotonic() - progress.start), args.val_fraction)


def convert_bins(args):
    sources = [open_bin(path) for path in args.inputs]
    if len({source.token_bytes for source in sources}) > 1:
        raise PrepareError("the files hold tokens of different width (uint16 and uint32); convert them one kind at a time")
    attributes, tables, settings = {}, {}, {}
    vocab_size, eot = args.vocab_size or sources[0].vocab_size, sources[0].eot
    if args.tokenizer:
        tokenizer = make_tokenizer(find_spec(args, None)[0])
        vocab_size, tables, settings = tokenizer.vocab_size, tokenizer.tables, tokenizer.settings
        attributes = root_attributes(tokenizer)
    else:
        if vocab_size is not None:
            attributes["vocab_size"] = np.int64(vocab_size)
        if eot is not None and eot < (vocab_size or 0):
            attributes["eot_token"] = np.int64(eot)
    width = sources[0].token_bytes
    if width == 2 and (vocab_size or 0) > 1 << 16:
        raise PrepareError("the files hold tokens of two bytes, which cannot tell a vocabulary of %d apart" % vocab_size)
    old = find_old_shards(args.out, args.force)
    writer = ShardWriter(args.out, old, args.shard_tokens, "<u%d" % width, attributes, tables, settings)
    progress = Progress(sum(source.n_tokens * width for source in sources))

    def blocks():
        for source in sources:
            for tokens in read_blocks(source, vocab_size):
                progress.update(len(tokens) * width, len(tokens))
                yield source.side, tokens
    write_all(writer, blocks(), args)
    progress.finish()
    report(writer, "converted from %s, vocabulary %s"
           % (" and ".join(sorted({s.kind for s in sources})), vocab_size or "not recorded (give --vocab-size)"), 0)


def write_all(writer, blocks, args):
    """All blocks (side, tokens) into shards; nothing stays behind when that fails."""
    try:
        for side, tokens in blocks:
            writer.write(side, tokens)
        if not any(writer.n_tokens.values()):
            raise PrepareError("the input holds no text")
        writer.paths = writer.commit()
    except (OSError, RuntimeError) as error:  # h5py raises either on a full disk
        raise PrepareError("cannot make the shards in %s: %s" % (args.out, error)) from None
    finally:
        blocks.close()
        writer.discard()


def report(writer, text, val_fraction):
    for side in SIDES:
        paths = writer.paths[side]
        if paths:
            print("%-5s %15s tokens in %s%s" % (side, format(writer.n_tokens[side], ","), paths[0],
                                                " … %s (%d shards)" % (os.path.basename(paths[-1]), len(paths))
                                                if len(paths) > 1 else ""))
    print(text)
    for side, empty in (("val", val_fraction > 0), ("train", val_fraction < 1)):
        if empty and not writer.paths[side]:
            print("prepare.py: warning: too little text for --val-fraction %g: no document fell to %s; choose another "
                  "fraction" % (val_fraction, "validation" if side == "val" else "training"), file=sys.stderr)


# ---- options ----

def parse_count(text):
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    value = int(match[1]) * {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}[match[2]] if match else 0
    if not 0 < value < 1 << 48:
        raise argparse.ArgumentTypeError("%r is not a number such as 4096, 100M or 1G" % text)
    return value


def count_cores():
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse_fraction(text):
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError("%r is not a number from 0 to 1" % text)
    return value


def parse_pattern(text):
    pattern = {"blank-lines": r"\r?\n(?:[ \t]*\r?\n)+"}.get(text, text)
    try:
        compiled = re.compile(pattern.encode(), re.MULTILINE)
    except re.error as error:
        raise argparse.ArgumentTypeError("%r is not a regular expression: %s" % (text, error)) from None
    if compiled.match(b""):
        raise argparse.ArgumentTypeError("%r matches an empty text" % text)
    return compiled


def parse_options(arguments):
    parser = argparse.ArgumentParser(
        prog="prepare.py", formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__.split("\n\n")[0],
        epilog=__doc__.split("\n\n", 1)[1])
    parser.add_argument("inputs", nargs="+", metavar="INPUT",
                        help="text files, .jsonl files, directories of them, or - for standard input")
    parser.add_argument("--out", required=True, metavar="DIR", help="where train_00000.h5 … and val_00000.h5 … go")
    parser.add_argument("--tokenizer", metavar="NAME",
                        help="bytes, sentencepiece, gpt2, or the path of a Hugging Face tokenizer.json")
    parser.add_argument("--vocab-size", type=parse_count, metavar="N", help="train a sentencepiece vocabulary of this size")
    parser.add_argument("--model-type", choices=["bpe", "unigram"], default="bpe", help="its kind (default: bpe)")
    parser.add_argument("--model", metavar="FILE", help="use this sentencepiece .model instead of training one")
    parser.add_argument("--eot", metavar="TOKEN", help="the token that ends a document, where the tokenizer's is not found")
    parser.add_argument("--field", metavar="NAME",
                        help="the field with the text in .jsonl files (default: text); with it, - is JSON lines too")
    parser.add_argument("--split-on", type=parse_pattern, metavar="REGEX",
                        help="cut text files into documents where this matches; blank-lines is a name for one or more of them")
    parser.add_argument("--val-fraction", type=parse_fraction, default=0.01, metavar="F",
                        help="part of the documents for validation (default: 0.01)")
    parser.add_argument("--shard-tokens", type=parse_count, default=100_000_000, metavar="N",
                        help="tokens a shard, at most (default: 100M)")
    parser.add_argument("--workers", type=parse_count, default=count_cores(), metavar="N",
                        help="processes that tokenize (default: the cores: %(default)s)")
    parser.add_argument("--convert", action="store_true",
                        help="INPUTs are .bin files of llm.c or nanoGPT; those with \"val\" in their name go to val shards")
    parser.add_argument("--force", action="store_true", help="replace the shards that are in DIR")
    args = parser.parse_args(arguments)
    check_options(parser, args)
    return args


def check_options(parser, args):
    trains = args.tokenizer == "sentencepiece" and not args.model
    if args.convert:
        if trains:
            parser.error("--convert cannot train a vocabulary; give the one the tokens were made with, or none")
        for name in ("field", "split_on"):
            if getattr(args, name) is not None:
                parser.error("--%s has no meaning with --convert" % name.replace("_", "-"))
        for name in ("model", "eot"):
            if getattr(args, name) is not None and not args.tokenizer:
                parser.error("--%s goes with --tokenizer" % name)
        if args.tokenizer and args.vocab_size:
            parser.error("--convert takes the vocabulary's size from --tokenizer; leave --vocab-size out")
        return
    if not args.tokenizer:
        parser.error("--tokenizer is missing: bytes, sentencepiece, gpt2, or the path of a tokenizer.json")
    if trains and not args.vocab_size:
        parser.error("--tokenizer sentencepiece needs --vocab-size (to train a vocabulary) or --model FILE")
    if args.vocab_size and not trains:
        parser.error("--vocab-size is for training a vocabulary: %s has its own" % (args.model or args.tokenizer))
    if args.model and args.tokenizer != "sentencepiece":
        parser.error("--model is a sentencepiece model; use it with --tokenizer sentencepiece")
    if args.eot and (trains or args.tokenizer in ("bytes", "gpt2")):
        parser.error("--eot is for a --model or a tokenizer.json; this tokenizer has its own")


def main(arguments=None):
    sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that cannot show a character is no reason to fail
    args = parse_options(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that temporary files go
    try:
        (convert_bins if args.convert else prepare_text)(args)
    except PrepareError as error:
        sys.exit("prepare.py: error: %s" % error)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
