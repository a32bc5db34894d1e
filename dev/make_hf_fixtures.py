#!/usr/bin/env python3
"""Make test/fixtures/hf_*: tiny random models as transformers saves them, with what transformers computes from them.

    dev/make_hf_fixtures.py        needs transformers with Qwen2 and llama3 RoPE (made with 4.45.2 over torch 1.13)

A fixture is a directory: config.json, generation_config.json and the weights by save_pretrained, and expected.h5:
    tokens   (windows·T + 1) uint16; window j is tokens[jT … jT+T], as the data loader cuts it
    logits   (T, V) fp32, of the first window's inputs
    attributes seq_len, windows, vocab_size, and loss: the mean over all targets of all windows, fp32 weights
Weights are larger than models are initialised with, so that attention, biases and norms all matter to the loss.
"""
import os
import shutil
import sys

import h5py
import numpy as np
import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

FIXTURES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "test", "fixtures")
T, WINDOWS = 24, 4

LLAMA = dict(hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64)
LLAMA3_ROPE = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=16)

# name: (model, dtype of the file, longest file)
MODELS = {
    "gpt2": (GPT2LMHeadModel(GPT2Config(vocab_size=101, n_embd=32, n_layer=2, n_head=4, n_positions=40,
                                        bos_token_id=100, eos_token_id=100)), torch.float32, "1GB"),
    "llama_gqa": (LlamaForCausalLM(LlamaConfig(vocab_size=97, rms_norm_eps=1e-5, rope_theta=5000.0, **LLAMA)),
                  torch.float32, "1GB"),
    "llama3_bf16": (LlamaForCausalLM(LlamaConfig(vocab_size=97, head_dim=12, rope_theta=500000.0, rope_scaling=LLAMA3_ROPE,
                                                 **LLAMA)), torch.bfloat16, "1GB"),
    "qwen2_tied_parts": (Qwen2ForCausalLM(Qwen2Config(vocab_size=90, tie_word_embeddings=True, **LLAMA)), torch.float32,
                         "40KB"),
}


def randomize(model):
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            p.copy_(1 + 0.2 * noise if "norm" in name or ".ln_" in name and name.endswith("weight") else 0.15 * noise)
    model.tie_weights()


def main():
    for name, (model, dtype, longest) in MODELS.items():
        path = os.path.join(FIXTURES, "hf_" + name)
        shutil.rmtree(path, ignore_errors=True)
        randomize(model)
        model.to(dtype).save_pretrained(path, max_shard_size=longest, safe_serialization=True)
        model = type(model).from_pretrained(path, torch_dtype=torch.float32).eval()

        vocab = model.config.vocab_size
        tokens = np.random.default_rng(3).integers(0, vocab, WINDOWS * T + 1)
        inputs = torch.tensor(tokens[:-1].reshape(WINDOWS, T))
        targets = torch.tensor(tokens[1:].reshape(WINDOWS, T))
        with torch.no_grad():
            logits = model(inputs).logits.float()
        loss = torch.nn.functional.cross_entropy(logits.double().reshape(-1, vocab), targets.reshape(-1)).item()
        with h5py.File(os.path.join(path, "expected.h5"), "w") as f:
            f["tokens"] = tokens.astype(np.uint16)
            f["logits"] = logits[0].numpy()
            f.attrs.update(seq_len=T, windows=WINDOWS, vocab_size=vocab, loss=loss)
        print(f"{path}: loss {loss:.6f}", file=sys.stderr)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}", file=sys.stderr)


if __name__ == "__main__":
    main()
