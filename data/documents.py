"""Cuts files into documents for prepare.py, in constant memory.

A text file is one document, unless a pattern separates several; a line of a .jsonl file is one. A long document travels in
parts that end before a line end, where tokenizers cut anyway. Each part knows whether it goes to training or validation.
"""
import hashlib
import io
import json
import os
import stat
import sys
from typing import NamedTuple, Optional

from text_tokenizers import PrepareError

PART_BYTES = 1 << 20      # a longer document travels in parts of this size
UNIT_BYTES = 16 << 10     # one text without documents: every so many bytes go to training or to validation as one
READ_BYTES = 1 << 20
HEAD_BYTES = 64 << 20     # of a stream: what is held back to draw the sample for a vocabulary from
SAMPLE_BYTES = 5 << 20    # text that a sentencepiece vocabulary is trained on …
SAMPLE_BLOCK = 16 << 10   # … in evenly spaced blocks of this size
LINE_BYTES = 64 << 10     # a longer line of text is taken in pieces for that


class Part(NamedTuple):
    data: bytes             # UTF-8 text, or a line of JSON
    side: str               # "train" or "val"
    end: bool               # the end-of-text token follows
    field: Optional[str]    # JSON: the name of the text's field
    where: str              # for messages


def read_block(stream, n):
    """n bytes of an unbuffered stream, fewer only at its end. A loop here rather than in a buffered stream, which sees no
    signal between two pieces from a pipe."""
    pieces = []
    while n > 0:
        piece = stream.read(n)
        if not piece:
            break
        pieces.append(piece)
        n -= len(piece)
    return b"".join(pieces)


class HeldBack(io.RawIOBase):
    """A stream whose first bytes were read already."""

    def __init__(self, head, rest):
        self.head, self.rest = io.BytesIO(head), rest

    def readable(self):
        return True

    def readinto(self, buffer):
        data = self.head.read(len(buffer)) or self.rest.read(len(buffer))
        buffer[:len(data)] = data
        return len(data)


class Source:
    """A file or, for "-", standard input. size is None where it is not known beforehand."""

    def __init__(self, path, field):
        self.path, self.name = path, "standard input" if path == "-" else path
        self.head = None
        if path == "-":
            self.field, self.size = field, None  # JSON lines when a field is named
        else:
            self.field = (field or "text") if path.endswith(".jsonl") else None
            try:
                info = os.stat(path)
                if not stat.S_ISREG(info.st_mode):  # of a pipe, what is looked at here would be missing afterwards
                    raise PrepareError("%s is not a regular file; pipe its text into the program: … | data/prepare.py - …"
                                       % path)
                self.size = info.st_size
                with open(path, "rb") as file:
                    start = file.read(4096)
            except OSError as error:
                raise PrepareError("cannot read %s: %s" % (path, error.strerror)) from None
            if start[:2] == b"\x1f\x8b" or start[:4] in (b"\x28\xb5\x2f\xfd", b"BZh9", b"\xfd7zX"):
                raise PrepareError("%s is compressed; unpack it into the program: zcat %s | data/prepare.py - …"
                                   % (path, path))
            if b"\0" in start:
                raise PrepareError("%s is not UTF-8 text: it holds zero bytes (.bin token files go with --convert)" % path)

    def open(self):
        """An unbuffered stream."""
        if self.path != "-":
            return open(self.path, "rb", buffering=0)
        return HeldBack(self.head or b"", sys.stdin.buffer.raw)

    def hold_back(self):
        """Read the beginning of a stream, so that a sample can be drawn from it before it is read."""
        if self.path == "-" and self.head is None:
            self.head = read_block(sys.stdin.buffer.raw, HEAD_BYTES)

    def sample_size(self):
        return len(self.head) if self.path == "-" else self.size

    def open_sample(self):
        """What can be sampled, as a stream that can seek: all of a file, the held-back beginning of a stream."""
        return io.BytesIO(self.head) if self.path == "-" else open(self.path, "rb")


def find_sources(inputs, field):
    """Sources for the names on the command line; directories with everything below them, sorted, hidden files left out.
    Links to directories are followed, to each directory once."""
    paths = []
    for name in inputs:
        if name != "-" and os.path.isdir(name):
            below, seen = [], set()
            for folder, folders, files in os.walk(name, followlinks=True):
                folders[:] = sorted(f for f in folders if not f.startswith("."))
                if os.path.realpath(folder) in seen:
                    folders[:] = []
                    continue
                seen.add(os.path.realpath(folder))
                below += [os.path.join(folder, f) for f in files if not f.startswith(".")]
            if not below:
                raise PrepareError("directory %s holds no file" % name)
            paths += sorted(below)
        else:
            paths.append(name)
    if paths.count("-") > 1:
        raise PrepareError("standard input (-) can be read only once")
    sources = [Source(path, field) for path in paths]
    if field is not None and all(source.field is None for source in sources):
        raise PrepareError("--field %s is for JSON lines, but no input is a .jsonl file; pipe others into the program: "
                           "data/prepare.py - --field %s … < FILE" % (field, field))
    return sources


def find_cut(data, start, end):
    """Where to cut data[start:end] so that tokens are hardly disturbed: before the last single line end, else before a
    space, else between two characters of UTF-8."""
    for mark in (b"\n", b" "):
        at = data.rfind(mark, start + 1, end)
        while at > start and data[at - 1:at].isspace():  # keep a run of white space in one piece
            at = data.rfind(mark, start + 1, at)
        if at > start:
            return at
    at = end
    while at > end - 4 and data[at] & 0xC0 == 0x80:
        at -= 1
    return at


def split_text(stream, separator, part_bytes):
    """(data, is it the document's last part?) of a text; documents lie between matches of `separator` (None: one)."""
    data, at, open_document = b"", 0, False
    while True:
        block = read_block(stream, READ_BYTES)
        data, at = data[at:] + block, 0
        if separator:
            for match in separator.finditer(data):
                if match.end() == len(data) and block:
                    break  # the separator may go on
                while match.start() - at > part_bytes:
                    cut = find_cut(data, at, at + part_bytes)
                    yield data[at:cut], False
                    at = cut
                yield data[at:match.start()], True
                at, open_document = match.end(), False
        # The last 4 KiB wait: a separator may have begun there.
        while len(data) - at > part_bytes + (4096 if separator and block else 0):
            cut = find_cut(data, at, at + part_bytes)
            yield data[at:cut], False
            at, open_document = cut, True
        if not block:
            if at < len(data) or open_document:
                yield data[at:], True
            return


def hash_side(data, val_fraction):
    """The side of a document is a function of its text, so it does not depend on the other documents."""
    value = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
    return "val" if value < val_fraction * 2.0**64 else "train"


def unit_side(i, val_fraction):
    """The side of the i-th unit of one long text: validation's units are evenly spaced."""
    return "val" if int((i + 1) * val_fraction + 0.5) > int(i * val_fraction + 0.5) else "train"


def read_parts(sources, separator, val_fraction):
    """All Parts of all sources, in order."""
    one_text = len(sources) == 1 and sources[0].field is None and separator is None
    for source in sources:
        with source.open() as stream:
            if source.field is not None:
                for number, line in enumerate(io.BufferedReader(stream, READ_BYTES), 1):
                    if line.strip():
                        yield Part(line, hash_side(line, val_fraction), True, source.field,
                                   "%s, line %d" % (source.name, number))
            elif one_text:
                for i, (data, last) in enumerate(split_text(stream, None, UNIT_BYTES)):
                    side = unit_side(i, val_fraction)
                    yield Part(data, side, last or unit_side(i + 1, val_fraction) != side, None, source.name)
            else:
                side = None
                for data, last in split_text(stream, separator, PART_BYTES):
                    if side is None and last and not data.strip():
                        continue  # nothing between two separators
                    side = side or hash_side(data, val_fraction)
                    yield Part(data, side, last, None, source.name)
                    side = None if last else side


def json_text(line, field, where):
    try:
        record = json.loads(line)
        text = record[field]
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, KeyError):
            raise PrepareError("%s: no field %r; it has: %s (choose with --field)"
                               % (where, field, ", ".join(map(repr, record)))) from None
        raise PrepareError("%s is not a JSON object with a field %r: %s" % (where, field, error)) from None
    if not isinstance(text, str):
        raise PrepareError("%s: field %r is not a text but %s" % (where, field, type(text).__name__))
    return text.encode("utf-8", "replace")


def sample_lines(sources):
    """Lines of about SAMPLE_BYTES of text, from blocks evenly spaced over all sources. A function of the input alone."""
    for source in sources:
        source.hold_back()
    step = max(SAMPLE_BLOCK, sum(s.sample_size() for s in sources) * SAMPLE_BLOCK // SAMPLE_BYTES)
    base = target = 0  # bytes before this source; where the next block begins
    for source in sources:
        end = base + source.sample_size()
        if target < end:
            with source.open_sample() as stream:
                while target < end:
                    stream.seek(target - base)
                    yield from block_lines(stream, source, skip_first=target > base)
                    target += step
        base = end


def block_lines(stream, source, skip_first):
    limit = LINE_BYTES if source.field is None else -1
    if skip_first:
        stream.readline(limit)  # the rest of a line that began before
    taken = 0
    while taken < SAMPLE_BLOCK:
        line = stream.readline(limit)
        if not line:
            return
        taken += len(line)
        if source.field is not None and line.strip():
            line = json_text(line, source.field, source.name)
        for text in line.decode("utf-8", "replace").split("\n"):
            if text.strip() and "\0" not in text:
                yield text
