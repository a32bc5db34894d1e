#!/usr/bin/env python3
"""Makes the fixtures of test/test_data_shards.c and test/test_vocab.c, which are committed: test/fixtures/h5py_tokens.h5, as
someone without prepare.py would write it, and vocab_*.h5, small shards with vocabularies and what the Python libraries
encode texts to.

Needs sentencepiece and tokenizers (pip install tokenizers).
"""
import io
import os
import random
import shutil
import sys
import tempfile

import h5py
import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "data"))
from shard_writer import ShardWriter  # noqa: E402
from text_tokenizers import HuggingFaceTokenizer, SentencePieceTokenizer  # noqa: E402

WORDS = ("the of and to in is it's you're they'll he'd I'm we've don't Don'T dictionary naïve café Straße größer Москва "
         "мир 東京 日本語 العربية हिन्दी שלום 12 1999 3.14 x² ½ Ⅷ hello world training tokens gradient shards").split()
GAPS = [" ", " ", " ", "  ", "\n", "\n\n", "\t", " \n ", "\u3000", "\u00a0", "", "'", "''", ", ", ". ", "!?", "--", "🙂", "🙂🙂",
        "e\u0301", "_", "<|endoftext|>"]


def random_text(rng, n):
    return "".join(rng.choice(WORDS) + rng.choice(GAPS) for _ in range(n))


def texts(rng):
    yield from ["", " ", "  ", "\n", "a", " a", "a ", "Hello world", "\u00e9", "'s", "' s", "\r\n\r\n x", "\x01\x02"]
    for _ in range(150):
        text = random_text(rng, rng.randint(1, 12))
        yield rng.choice(["", " ", "\n  "]) + text


def write(name, tokenizer, encode):
    folder = tempfile.mkdtemp()
    attributes = {"vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer.name, "eot_token": tokenizer.eot}
    writer = ShardWriter(folder, [], 100, "<u2", attributes, tokenizer.tables, tokenizer.settings)
    writer.write("train", np.arange(10, dtype="<u2"))
    path = writer.commit()["train"][0]
    cases = list(texts(random.Random(name)))
    with h5py.File(path, "a") as file:
        group = file.create_group("cases")
        data = [text.encode() + b"\0" for text in cases]
        ids = [encode(text) for text in cases]
        group["text"] = np.frombuffer(b"".join(data), np.uint8)
        group["text_offsets"] = np.cumsum([0] + [len(d) for d in data], dtype=np.int64)
        group["tokens"] = np.array([i for case in ids for i in case], np.int32)
        group["token_offsets"] = np.cumsum([0] + [len(case) for case in ids], dtype=np.int64)
    target = os.path.join(ROOT, "test", "fixtures", "vocab_%s.h5" % name)
    shutil.move(path, target)
    shutil.rmtree(folder)
    print(target, os.path.getsize(target), "bytes,", len(cases), "texts")


def make_sentencepiece(name, **options):
    import sentencepiece
    rng = random.Random(1)
    lines = [random_text(rng, 8).replace("\n", " ").replace("<|endoftext|>", "") for _ in range(800)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, minloglevel=2,
                                             hard_vocab_limit=False, character_coverage=0.999, **options)
    tokenizer = SentencePieceTokenizer(model.getvalue())
    write(name, tokenizer, tokenizer.processor.encode)


def make_bpe():
    import tokenizers
    rng = random.Random(2)
    hf = tokenizers.Tokenizer(tokenizers.models.BPE())
    hf.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    hf.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=700, special_tokens=["<|endoftext|>"], show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    hf.train_from_iterator([random_text(rng, 30).replace("<|endoftext|>", "") for _ in range(500)], trainer)
    tokenizer = HuggingFaceTokenizer(hf.to_str().encode())
    write("bpe", tokenizer, lambda text: hf.encode(text, add_special_tokens=False).ids)


if __name__ == "__main__":
    os.makedirs(os.path.join(ROOT, "test", "fixtures"), exist_ok=True)
    with h5py.File(os.path.join(ROOT, "test", "fixtures", "h5py_tokens.h5"), "w") as plain:
        plain["tokens"] = (np.arange(1000) * 7 % 500).astype("uint16")
    make_bpe()
    # As prepare.py trains them; as LLaMA's; with the library's defaults, where unknown characters stay unknown.
    make_sentencepiece("sp_bpe", model_type="bpe", vocab_size=700, byte_fallback=True, normalization_rule_name="identity",
                       remove_extra_whitespaces=False, add_dummy_prefix=False, allow_whitespace_only_pieces=True,
                       bos_id=-1, pad_id=-1, eos_id=1, unk_id=0)
    make_sentencepiece("sp_bpe_llama", model_type="bpe", vocab_size=700, byte_fallback=True,
                       normalization_rule_name="identity", remove_extra_whitespaces=False)
    make_sentencepiece("sp_unigram", model_type="unigram", vocab_size=500, normalization_rule_name="identity",
                       user_defined_symbols=["<|endoftext|>"])
    make_sentencepiece("sp_unigram_bytes", model_type="unigram", vocab_size=600, byte_fallback=True,
                       normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=False,
                       allow_whitespace_only_pieces=True)
