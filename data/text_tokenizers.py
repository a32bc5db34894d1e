"""The tokenizers of prepare.py: how each turns text into ids, and the vocabulary tables that go into a shard.

A Tokenizer has
    name        the shard's `tokenizer` attribute: "bytes", "bpe", "sentencepiece-bpe", "sentencepiece-unigram", "huggingface"
    vocab_size  ids are below it
    eot         id that ends a document
    encode      bytes (UTF-8 text) -> array of ids
    tables      {"bytes", "offsets", "types", and "merges" or "scores"}: see data/vocab.h
    settings    attributes of the group /vocab that the C encoder needs

Worker processes make their own from a Spec, which travels between processes.
"""
import json
import os
import struct
from typing import NamedTuple, Optional

import numpy as np

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # piece types, numbered as sentencepiece does
EOT_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")


class PrepareError(Exception):
    """Something that the user can do something about; the message says what."""


class Spec(NamedTuple):
    kind: str               # bytes, sentencepiece, huggingface, tiktoken
    data: bytes = b""       # the .model or tokenizer.json
    eot: Optional[str] = None


def token_tables(pieces, types):
    """Tables of a vocabulary: pieces are bytes objects, in order of id."""
    offsets = np.zeros(len(pieces) + 1, np.uint64)
    np.cumsum([len(p) for p in pieces], out=offsets[1:])
    return {"bytes": np.frombuffer(b"".join(pieces), np.uint8), "offsets": offsets, "types": np.array(types, np.uint8)}


class ByteTokenizer:
    """One id a byte, and 256 between documents."""
    name, vocab_size, eot, settings = "bytes", 257, 256, {}

    def __init__(self):
        self.tables = token_tables([bytes([b]) for b in range(256)] + [b"<|endoftext|>"], [NORMAL] * 256 + [CONTROL])

    def encode(self, data):
        return np.frombuffer(data, np.uint8)


# ---- sentencepiece ----

def protobuf_fields(data):
    """(field number, value) of a protobuf message: ints, 4-byte floats as bytes, byte strings."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        number, wire = key >> 3, key & 7
        if wire == 0:
            yield number, varint()
        elif wire in (1, 2, 5):
            n = varint() if wire == 2 else 8 if wire == 1 else 4
            yield number, data[at:at + n]
            at += n
        else:
            raise ValueError("wire type %d" % wire)


class SentencePieceTokenizer:
    """A sentencepiece model. Field numbers are those of sentencepiece_model.proto."""

    def __init__(self, model, eot=None):
        try:
            import sentencepiece
        except ImportError:
            raise PrepareError("--tokenizer sentencepiece needs the Python package sentencepiece (Debian: "
                               "python3-sentencepiece; pip install sentencepiece)") from None
        try:
            self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            self._read(model)
        except (RuntimeError, ValueError, IndexError, struct.error) as error:
            raise PrepareError("the sentencepiece model cannot be read: %s" % error) from None
        self.vocab_size = self.processor.vocab_size()
        self.eot = self.processor.piece_to_id(eot) if eot else self.processor.eos_id()
        if self.eot < 0 or (eot and self.processor.id_to_piece(self.eot) != eot):
            raise PrepareError("the sentencepiece model has no %s to put between documents; name another piece with --eot"
                               % (repr(eot) if eot else "end-of-sentence piece"))

    def _read(self, model):
        pieces, scores, types = [], [], []
        trainer, normalizer = {}, {}
        for number, value in protobuf_fields(model):
            if number == 1:
                piece = dict(protobuf_fields(value))
                kind = piece.get(3, NORMAL)
                text = piece[1]
                # A byte piece is written "<0x0A>".
                pieces.append(bytes([int(text[3:5], 16)]) if kind == BYTE else text.replace("▁".encode(), b" "))
                scores.append(struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0)
                types.append(kind)
            elif number == 2:
                trainer = dict(protobuf_fields(value))
            elif number == 3:
                normalizer = dict(protobuf_fields(value))
        model_type = trainer.get(3, 1)
        self.name = {1: "sentencepiece-unigram", 2: "sentencepiece-bpe"}.get(model_type, "sentencepiece-other")
        self.tables = dict(token_tables(pieces, types), scores=np.array(scores, np.float32))
        self.settings = {"add_dummy_prefix": normalizer.get(3, 1), "remove_extra_whitespaces": normalizer.get(4, 1),
                         "normalizer": normalizer.get(1, b"identity").decode()}

    def encode(self, data):
        return self.processor.encode(data.decode("utf-8", "replace"))


def train_sentencepiece(lines, vocab_size, model_type):
    """A new model from an iterator of lines. Equal lines give an equal model, however many processes prepare.py uses.

    Text comes back as it was: no Unicode normalisation, all spaces kept, bytes for rare characters (as LLaMA's).
    """
    import io
    try:
        import sentencepiece
    except ImportError:
        return SentencePieceTokenizer(b"")  # says what is missing
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, model_type=model_type, vocab_size=vocab_size,
            normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=False,
            allow_whitespace_only_pieces=True, byte_fallback=True, character_coverage=0.99995,
            unk_id=0, eos_id=1, bos_id=-1, pad_id=-1, eos_piece="<|endoftext|>", max_sentence_length=1 << 20,
            num_threads=4, minloglevel=2)
    except (RuntimeError, OSError) as error:
        raise PrepareError("sentencepiece cannot train a vocabulary of %d on this text: %s (256 bytes and every frequent "
                           "character need a place, and a short text has few distinct pieces: change --vocab-size)"
                           % (vocab_size, str(error).strip())) from None
    return model.getvalue()


# ---- byte-level BPE: Hugging Face's tokenizer.json, tiktoken ----

def byte_alphabet():
    """The characters that byte-level BPE uses for bytes (GPT-2's bytes_to_unicode), as {character: byte}."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {**{chr(b): b for b in plain}, **{chr(256 + i): b for i, b in enumerate(others)}}


def find_pre_tokenizer(config):
    """(is it byte-level?, the settings that let data/encode.c encode a prompt, or None)"""
    pre = config.get("pre_tokenizer") or {}
    steps = pre.get("pretokenizers", []) if pre.get("type") == "Sequence" else [pre]
    levels = [s for s in steps if s.get("type") == "ByteLevel"]
    model = config["model"]
    plain = (len(steps) == 1 and levels and levels[0].get("use_regex", True) and not config.get("normalizer")
             and model.get("type") == "BPE" and not model.get("dropout") and not model.get("ignore_merges")
             and not model.get("continuing_subword_prefix") and not model.get("end_of_word_suffix"))
    return bool(levels), {"pre_tokenizer": "gpt2", "add_dummy_prefix": int(levels[0].get("add_prefix_space", True))} \
        if plain else None


class HuggingFaceTokenizer:
    """A tokenizer.json. Its byte-level BPE (GPT-2's way of cutting words) can be encoded by the C program too."""

    def __init__(self, data, eot=None):
        try:
            self.config = json.loads(data)
            self._read(eot)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise PrepareError("this is not a Hugging Face tokenizer.json: %s %s" % (type(error).__name__, error)) from None
        self.data = data
        self.tokenizer = None

    def _read(self, eot):
        model = self.config["model"]
        vocab = model["vocab"]
        if isinstance(vocab, list):  # Unigram: [piece, score]
            vocab = {piece: i for i, (piece, _) in enumerate(vocab)}
        added = {t["content"]: t["id"] for t in self.config.get("added_tokens", [])}
        byte_level, settings = find_pre_tokenizer(self.config)
        self.vocab_size = max([*vocab.values(), *added.values()]) + 1
        if self.vocab_size > 1 << 24:
            raise ValueError("a token id of %d" % (self.vocab_size - 1))
        pieces, types = [b""] * self.vocab_size, [UNUSED] * self.vocab_size
        alphabet = byte_alphabet()
        for piece, i in vocab.items():
            types[i] = NORMAL
            if byte_level and all(c in alphabet for c in piece):
                pieces[i] = bytes(alphabet[c] for c in piece)
            elif model.get("byte_fallback") and len(piece) == 6 and piece.startswith("<0x"):
                pieces[i], types[i] = bytes([int(piece[3:5], 16)]), BYTE
            else:
                pieces[i] = piece.replace("▁", " ").encode("utf-8", "replace")
        for piece, i in added.items():
            pieces[i], types[i] = piece.encode("utf-8", "replace"), USER_DEFINED
        self.name, self.settings = "huggingface", {}
        self.tables = token_tables(pieces, types)
        if settings:
            pairs = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
            merges = [(vocab[a], vocab[b], vocab[a + b]) for a, b in pairs]
            self.name, self.settings = "bpe", settings
            self.tables["merges"] = np.array(merges, np.uint32).reshape(-1, 3)
        names = [eot] if eot else [name for name in EOT_NAMES if name in added or name in vocab]
        if not names or (names[0] not in added and names[0] not in vocab):
            raise PrepareError("the tokenizer has no %s to put between documents; name a token of it with --eot"
                               % (repr(eot) if eot else "token of a usual name (%s)" % ", ".join(EOT_NAMES)))
        self.eot = added.get(names[0], vocab.get(names[0]))

    def encode(self, data):
        if self.tokenizer is None:
            os.environ["TOKENIZERS_PARALLELISM"] = "false"  # prepare.py has its own processes
            try:
                import tokenizers
            except ImportError:
                raise PrepareError("encoding with a tokenizer.json needs the Python package tokenizers (pip install "
                                   "tokenizers); without it, use --tokenizer sentencepiece or bytes") from None
            try:
                self.tokenizer = tokenizers.Tokenizer.from_str(self.data.decode())
            except Exception as error:  # the library raises bare Exception
                raise PrepareError("the tokenizers library cannot read this tokenizer.json: %s" % error) from None
            self.tokenizer.no_truncation()  # the file may hold the limits of its model's inputs: text would be lost
            self.tokenizer.no_padding()
            if hasattr(self.tokenizer, "encode_special_tokens"):
                self.tokenizer.encode_special_tokens = True  # "<|endoftext|>" in a document is text, not a document's end
        return self.tokenizer.encode(data.decode("utf-8", "replace"), add_special_tokens=False).ids


def merges_of_ranks(ranks):
    """tiktoken's {bytes: rank} as merges (left, right, result): each token is made of what its bytes merge to before it."""
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = [token[i:i + 1] for i in range(len(token))]
        while len(parts) > 2:
            pairs = [ranks.get(a + b, rank) for a, b in zip(parts, parts[1:])]
            best = min(range(len(pairs)), key=pairs.__getitem__)
            if pairs[best] >= rank:
                break
            parts[best:best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) == 2:
            merges.append((ranks[parts[0]], ranks[parts[1]], rank))
    return np.array(merges, np.uint32).reshape(-1, 3)


class TiktokenTokenizer:
    """GPT-2's encoding from tiktoken."""
    name, settings = "bpe", {"pre_tokenizer": "gpt2", "add_dummy_prefix": 0}

    def __init__(self):
        import tiktoken
        self.encoding = tiktoken.get_encoding("gpt2")
        self.vocab_size, self.eot = self.encoding.n_vocab, self.encoding.eot_token
        self._tables = None

    @property
    def tables(self):
        if self._tables is None:
            ranks = self.encoding._mergeable_ranks
            pieces, types = [b""] * self.vocab_size, [UNUSED] * self.vocab_size
            for piece, i in ranks.items():
                pieces[i], types[i] = piece, NORMAL
            for piece, i in self.encoding._special_tokens.items():
                pieces[i], types[i] = piece.encode(), USER_DEFINED
            self._tables = dict(token_tables(pieces, types), merges=merges_of_ranks(ranks))
        return self._tables

    def encode(self, data):
        return self.encoding.encode_ordinary(data.decode("utf-8", "replace"))


def find_gpt2():
    """A Spec of GPT-2's tokenizer from whichever library is installed and has its files."""
    reasons = []
    try:
        TiktokenTokenizer()
        return Spec("tiktoken")
    except ImportError:
        reasons.append("tiktoken is not installed")
    except Exception as error:  # whatever its download raises
        reasons.append("tiktoken is installed, but its GPT-2 files are not here and could not be downloaded (%s)"
                       % type(error).__name__)
    try:
        import tokenizers
        return Spec("huggingface", tokenizers.Tokenizer.from_pretrained("gpt2").to_str().encode())
    except ImportError:
        reasons.append("tokenizers is not installed")
    except Exception as error:
        reasons.append("tokenizers is installed, but GPT-2's tokenizer.json could not be downloaded (%s)"
                       % type(error).__name__)
    raise PrepareError("--tokenizer gpt2 needs the Python package tiktoken or tokenizers, and GPT-2's files: %s. "
                       "Install one (pip install tiktoken) on a machine with internet, or give a file: "
                       "--tokenizer path/to/tokenizer.json" % "; ".join(reasons))


def make_tokenizer(spec):
    if spec.kind == "bytes":
        return ByteTokenizer()
    if spec.kind == "sentencepiece":
        return SentencePieceTokenizer(spec.data, spec.eot)
    if spec.kind == "huggingface":
        return HuggingFaceTokenizer(spec.data, spec.eot)
    return TiktokenTokenizer()
