"""Reads the .bin token files of other trainers: llm.c's (a header of 256 int32, then uint16 or uint32) and nanoGPT's (raw
uint16)."""
import os
from typing import NamedTuple, Optional

import numpy as np

from text_tokenizers import PrepareError

HEADER_BYTES = 1024
KINDS = {(20240520, 1): (2, 50257, 50256),   # llm.c, GPT-2: magic, version -> bytes a token, vocabulary, end of text
         (20240801, 7): (4, 128256, None)}   # llm.c, LLaMA 3
BLOCK_TOKENS = 1 << 20


class TokenBin(NamedTuple):
    path: str
    side: str                  # train, or val if the name says so
    kind: str
    offset: int                # byte of the first token
    n_tokens: int
    token_bytes: int
    vocab_size: Optional[int]  # what the format implies
    eot: Optional[int]


def open_bin(path):
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            header = np.frombuffer(file.read(HEADER_BYTES)[:HEADER_BYTES // 4 * 4].ljust(12, b"\0"), "<i4")
    except OSError as error:
        raise PrepareError("cannot read %s: %s" % (path, error.strerror)) from None
    side = "val" if "val" in os.path.basename(path) else "train"
    known = KINDS.get((int(header[0]), int(header[1])))
    if known and size >= HEADER_BYTES:
        token_bytes, vocab_size, eot = known
        n = int(header[2])
        if n < 1 or HEADER_BYTES + n * token_bytes != size:
            raise PrepareError("%s: its header says %d tokens of %d bytes, which makes %d bytes, but the file has %d: it is "
                               "truncated or damaged" % (path, n, token_bytes, HEADER_BYTES + n * token_bytes, size))
        return TokenBin(path, side, "llm.c", HEADER_BYTES, n, token_bytes, vocab_size, eot)
    if int(header[0]) in (20240520, 20240801):
        raise PrepareError("%s: llm.c's magic number with version %d, which is not known here (1 for %d, 7 for %d)"
                           % (path, int(header[1]), 20240520, 20240801))
    if size == 0 or size % 2:
        raise PrepareError("%s has %d bytes: neither llm.c's header nor a whole number of uint16 tokens (nanoGPT)"
                           % (path, size))
    return TokenBin(path, side, "nanoGPT", 0, size // 2, 2, None, None)


def read_blocks(source, vocab_size):
    """The tokens of a file, a block at a time, each below vocab_size (None: not known)."""
    with open(source.path, "rb") as file:
        file.seek(source.offset)
        for first in range(0, source.n_tokens, BLOCK_TOKENS):
            n = min(BLOCK_TOKENS, source.n_tokens - first)
            tokens = np.frombuffer(file.read(n * source.token_bytes), "<u%d" % source.token_bytes)
            if len(tokens) != n:
                raise PrepareError("%s became shorter while it was read" % source.path)
            if vocab_size is not None and tokens.max() >= vocab_size:
                at = int(np.argmax(tokens >= vocab_size))
                raise PrepareError("%s: token %d at index %d is outside of the vocabulary of %d; give the right "
                                   "--vocab-size or --tokenizer" % (source.path, tokens[at], first + at, vocab_size))
            yield tokens
