#!/usr/bin/env python3
"""Make test/fixtures/*.h5: small models, run in PyTorch, that test/test_parity.c compares with.

    dev/make_fixtures.py [--out test/fixtures]        (PyTorch 1.13 or later, on the CPU)

One file a case. What it holds:

    attributes                   the model's shape, B, T, and the optimizer's settings
    names, shapes (n, 2)         tensors, as llm/model.h names and shapes them; shape[1] = 0: one dimension
    tokens, targets (2, B, T)    two batches; the loss and gradients are of the first, steps use them in turn
    weights, gradients           of the fp32 run, all tensors one after the other
    updates, updates_smooth      weights after 10 AdamW steps - weights, with Adam's eps and with eps_smooth
    bf16_…, fp16_…               PyTorch's own error in that dtype against the fp32 run, |a-b|/|b|: attribute loss,
                                 and gradients (n), updates_smooth (n), a number a tensor

Values are kept to 13 (weights), 15 (gradients) and 12 (updates) significant bits, which gzip turns into small files.
The rounding error is a fifth or less of what the test allows. The rounded weights are what PyTorch runs with.

The models are written out here in plain tensor operations, so that each rounding of a half-precision run is in sight:

    fp32, bf16   PyTorch's own kernels with every parameter and activation in the dtype.
    fp16         PyTorch 1.13 has no fp16 kernels on the CPU. Each operation is computed in fp32 and its result rounded
                 to fp16, forward and backward, which is what a GPU's kernels with fp32 accumulators do.

In half precision, weights are rounded copies of fp32 master weights, gradients arrive in the dtype, and the loss is
scaled in fp16. The cross-entropy is computed in fp32 from logits of the dtype. A key bias adds the same number to all
scores of a query, so its true gradient is zero (with RoPE: nearly, in the slow dimensions), and what a run computes
for it is noise, which Adam turns into full steps. Errors of qkv.bias leave it out.

Half precision has that noise in every tensor. Two things keep its errors from being a matter of luck:
  - Adam's first steps are lr·sign(gradient), so one gradient near zero whose sign rounding turns decides the error of
    a tensor. Updates are compared at eps_smooth, about a typical gradient, where they are smooth functions of it.
  - One run's error is one draw, and a tensor of 16 elements draws wide. The stored error is the largest of 16 runs: the
    first from the stored weights, the others from weights changed at random by 2^-8, each against its own fp32 run.
"""
import argparse
import math
import os

import h5py
import numpy as np
import torch
import torch.nn.functional as F

BASE = dict(layers=2, head_dim=0, tied=1, qkv_bias=0, norm_eps=1e-5, rope_theta=10000.0, rope_llama3=0,
            lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, eps_smooth=1e-2, weight_decay=0.1, grad_clip=0.0, steps=10)
CASES = {
    # one head; one sequence; nothing a multiple of anything
    "gpt2_one_head": dict(llama=0, heads=1, kv_heads=1, channels=16, ffn=50, vocab_size=67, max_seq_len=20, batch=1,
                          seq_len=13),
    # odd channels (24) and vocabulary, T past one tile of 32; clipped
    "gpt2_odd": dict(llama=0, heads=3, kv_heads=3, channels=24, ffn=36, vocab_size=193, max_seq_len=33, batch=2,
                     seq_len=33, grad_clip=0.5),
    # T past one tile of 64 or 128, untied, feed-forward not 4C
    "gpt2_long_untied": dict(llama=0, layers=1, heads=2, kv_heads=2, channels=16, ffn=24, vocab_size=65,
                             max_seq_len=131, batch=1, seq_len=131, tied=0),
    # grouped-query attention with one key/value head, untied
    "llama_gqa": dict(llama=1, heads=3, kv_heads=1, channels=24, ffn=36, vocab_size=97, max_seq_len=33, batch=2,
                      seq_len=33, tied=0),
    # tied head, head_dim 6, two key/value heads for four query heads; clipped
    "llama_tied": dict(llama=1, heads=4, kv_heads=2, channels=24, ffn=36, vocab_size=97, max_seq_len=13, batch=3,
                       seq_len=13, grad_clip=0.5),
    # head_dim 64 that is not channels / heads, a bias on QKV (Qwen2), LLaMA 3.1's frequencies
    "llama_wide_heads": dict(llama=1, layers=1, heads=2, kv_heads=1, head_dim=64, channels=12, ffn=20, vocab_size=65,
                             max_seq_len=67, batch=1, seq_len=67, tied=0, qkv_bias=1, rope_theta=500000.0,
                             rope_llama3=1, rope_factor=8.0, rope_low_freq=1.0, rope_high_freq=4.0,
                             rope_original_len=32),
}
LOSS_SCALE = {"fp64": 1.0, "fp32": 1.0, "bf16": 1.0, "fp16": 1024.0}
NEARBY_RUNS = 16


def tensors(c):
    """(name, shape, kind) of every tensor, in the order of llm/model.h."""
    C, V, width = c["channels"], c["vocab_size"], c["heads"] * c["head_dim"]
    qkv = width + 2 * c["kv_heads"] * c["head_dim"]
    yield "wte", (V, C), "embedding"
    if not c["llama"]:
        yield "wpe", (c["max_seq_len"], C), "embedding"
    for l in range(c["layers"]):
        h = f"h.{l}."
        if c["llama"]:
            yield h + "norm_1.weight", (C,), "norm"
            yield h + "attn.qkv.weight", (qkv, C), "matrix"
            if c["qkv_bias"]:
                yield h + "attn.qkv.bias", (qkv,), "bias"
            yield h + "attn.proj.weight", (C, width), "matrix"
            yield h + "norm_2.weight", (C,), "norm"
            yield h + "mlp.gate_up.weight", (2 * c["ffn"], C), "matrix"
            yield h + "mlp.down.weight", (C, c["ffn"]), "matrix"
        else:
            yield h + "ln_1.weight", (C,), "norm"
            yield h + "ln_1.bias", (C,), "bias"
            yield h + "attn.qkv.weight", (qkv, C), "matrix"
            yield h + "attn.qkv.bias", (qkv,), "bias"
            yield h + "attn.proj.weight", (C, width), "matrix"
            yield h + "attn.proj.bias", (C,), "bias"
            yield h + "ln_2.weight", (C,), "norm"
            yield h + "ln_2.bias", (C,), "bias"
            yield h + "mlp.fc.weight", (c["ffn"], C), "matrix"
            yield h + "mlp.fc.bias", (c["ffn"],), "bias"
            yield h + "mlp.proj.weight", (C, c["ffn"]), "matrix"
            yield h + "mlp.proj.bias", (C,), "bias"
    yield ("norm_f.weight" if c["llama"] else "ln_f.weight"), (C,), "norm"
    if not c["llama"]:
        yield "ln_f.bias", (C,), "bias"
    if not c["tied"]:
        yield "head.weight", (V, C), "embedding"


def keep_bits(a, bits):
    """Round fp32 values to `bits` significant bits."""
    mantissa, exponent = np.frexp(np.asarray(a, np.float32).astype(np.float64))
    return np.ldexp(np.round(np.ldexp(mantissa, bits)), exponent - bits).astype(np.float32)


def initial_weights(c, rng):
    weights = {}
    for name, shape, kind in tensors(c):
        noise = rng.standard_normal(shape)
        value = {"norm": lambda: 1 + 0.2 * noise, "bias": lambda: 0.2 * noise, "embedding": lambda: 0.5 * noise,
                 "matrix": lambda: noise / math.sqrt(shape[-1])}[kind]()
        weights[name] = keep_bits(value, 13)
    return weights


class RoundFp16(torch.autograd.Function):
    """An fp32 value becomes the nearest fp16 value on the way forward, and so does its gradient on the way back."""

    @staticmethod
    def forward(ctx, x):
        return x.half().float()

    @staticmethod
    def backward(ctx, dy):
        return dy.half().float()


def rope_frequencies(c):
    inv = c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2, dtype=torch.float64) / c["head_dim"])
    if c["rope_llama3"]:
        wavelength = 2 * math.pi / inv
        smooth = (c["rope_original_len"] / wavelength - c["rope_low_freq"]) / (c["rope_high_freq"] - c["rope_low_freq"])
        smooth = smooth.clamp(0, 1)  # 0: long wavelengths, divided by the factor; 1: short ones, left alone
        inv = (1 - smooth) * inv / c["rope_factor"] + smooth * inv
    return inv


def forward(c, p, tokens, r):
    """Logits (B, T, V). `r` rounds the result of an operation (the identity where PyTorch's own kernels do)."""
    B, T = tokens.shape
    H, K, D, C = c["heads"], c["kv_heads"], c["head_dim"], c["channels"]
    dtype = p["wte"].dtype

    def linear(x, name):
        return r(F.linear(x, p[name + ".weight"], p.get(name + ".bias")))

    def norm(x, name):
        if not c["llama"]:
            return r(F.layer_norm(x, (C,), p[name + ".weight"], p[name + ".bias"], c["norm_eps"]))
        x32 = x.float() if dtype == torch.bfloat16 else x  # as Hugging Face's LlamaRMSNorm: normalised in fp32
        y = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + c["norm_eps"])
        return r(r(y.to(dtype)) * p[name + ".weight"])

    if c["llama"]:
        angle = torch.outer(torch.arange(T, dtype=torch.float64), rope_frequencies(c))
        cos, sin = (r(f(torch.cat((angle, angle), -1)).to(dtype)) for f in (torch.cos, torch.sin))

    def rope(x):  # (B, heads, T, D)
        half = torch.cat((-x[..., D // 2:], x[..., :D // 2]), -1)
        return r(r(x * cos) + r(half * sin))

    hidden_future = torch.ones(T, T, dtype=torch.bool).triu(1)
    x = p["wte"][tokens]
    if not c["llama"]:
        x = r(x + p["wpe"][:T])
    for l in range(c["layers"]):
        h = f"h.{l}."
        qkv = linear(norm(x, h + ("norm_1" if c["llama"] else "ln_1")), h + "attn.qkv")
        q, k, v = (t.view(B, T, -1, D).transpose(1, 2) for t in qkv.split((H * D, K * D, K * D), -1))
        if c["llama"]:
            q, k = rope(q), rope(k)
        k, v = (t.repeat_interleave(H // K, dim=1) for t in (k, v))
        scores = r(r(q @ k.transpose(-1, -2)) * (1 / math.sqrt(D)))
        att = r(torch.softmax(scores.masked_fill(hidden_future, -math.inf), -1))
        y = r(att @ v).transpose(1, 2).reshape(B, T, H * D)
        x = r(x + linear(y, h + "attn.proj"))
        n = norm(x, h + ("norm_2" if c["llama"] else "ln_2"))
        if c["llama"]:
            gate, up = linear(n, h + "mlp.gate_up").chunk(2, -1)
            x = r(x + linear(r(r(F.silu(gate)) * up), h + "mlp.down"))
        else:
            x = r(x + linear(r(F.gelu(linear(n, h + "mlp.fc"), approximate="tanh")), h + "mlp.proj"))
    x = norm(x, "norm_f" if c["llama"] else "ln_f")
    return r(F.linear(x, p["wte" if c["tied"] else "head.weight"]))


def loss_and_gradients(c, dtype, master, tokens, targets):
    """Forward and backward in `dtype` from fp32 weights; the gradients as fp32 arrays."""
    if dtype == "fp16":
        leaves = {n: w.detach().clone().requires_grad_() for n, w in master.items()}
        r, params = RoundFp16.apply, {n: RoundFp16.apply(w) for n, w in leaves.items()}
    else:
        torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}[dtype]
        leaves = {n: w.detach().to(torch_dtype, copy=True).requires_grad_() for n, w in master.items()}
        r, params = (lambda x: x), leaves
    logits = forward(c, params, tokens, r)
    logits = logits.float() if dtype == "bf16" else logits
    loss = F.cross_entropy(logits.reshape(-1, c["vocab_size"]), targets.reshape(-1))
    scale = LOSS_SCALE[dtype]
    (loss * scale).backward()
    wide = torch.float64 if dtype == "fp64" else torch.float32
    return loss.item(), {n: w.grad.to(wide) / scale for n, w in leaves.items()}


def train(c, dtype, eps, weights, tokens, targets):
    """Loss and gradients of the first batch; the change of the weights after c["steps"] AdamW steps on both in turn."""
    master = {n: torch.tensor(w, dtype=torch.float64 if dtype == "fp64" else torch.float32).requires_grad_()
              for n, w in weights.items()}
    groups = [dict(params=[w for w in master.values() if w.dim() >= 2], weight_decay=c["weight_decay"]),
              dict(params=[w for w in master.values() if w.dim() < 2], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=c["lr"], betas=(c["beta1"], c["beta2"]), eps=eps)
    for step in range(c["steps"]):
        loss, gradients = loss_and_gradients(c, dtype, master, tokens[step % 2], targets[step % 2])
        if step == 0:
            first = loss, {n: g.numpy() for n, g in gradients.items()}
        for n, w in master.items():
            w.grad = gradients[n].clone()
        if c["grad_clip"] > 0:
            torch.nn.utils.clip_grad_norm_(master.values(), c["grad_clip"])
        optimizer.step()
    updates = {n: (w.detach().double() - torch.tensor(weights[n]).double()).numpy() for n, w in master.items()}
    return (*first, updates)


def relative_errors(c, a, b):
    """|a-b|/|b| of every tensor; key biases are left out (see the top)."""
    errors = []
    for name in b:
        x, y = np.asarray(a[name], np.float64), np.asarray(b[name], np.float64)
        if name.endswith("attn.qkv.bias"):
            keys = slice(c["heads"] * c["head_dim"], (c["heads"] + c["kv_heads"]) * c["head_dim"])
            x, y = np.delete(x, keys), np.delete(y, keys)
        errors.append(np.linalg.norm(x - y) / np.linalg.norm(y))
    return np.array(errors)


def half_precision_errors(c, dtype, weights, tokens, targets, rng):
    """PyTorch's errors of loss, gradients and updates in `dtype`: the largest of NEARBY_RUNS runs (see the top)."""
    errors = []
    for run in range(NEARBY_RUNS):
        noise = 0 if run == 0 else 1 / 256
        nearby = {n: np.float32(w * (1 + noise * rng.standard_normal(w.shape))) for n, w in weights.items()}
        loss, gradients, updates = train(c, dtype, c["eps_smooth"], nearby, tokens, targets)
        loss32, gradients32, updates32 = train(c, "fp32", c["eps_smooth"], nearby, tokens, targets)
        errors.append((abs(loss - loss32) / loss32, relative_errors(c, gradients, gradients32),
                       relative_errors(c, updates, updates32)))
    return tuple(np.max(kind, axis=0) for kind in zip(*errors))


def write_case(path, c, rng):
    weights = initial_weights(c, rng)
    stream = rng.integers(0, c["vocab_size"], (2, c["batch"], c["seq_len"] + 1))
    tokens, targets = torch.tensor(stream[..., :-1]), torch.tensor(stream[..., 1:])

    loss, gradients, updates = train(c, "fp32", c["eps"], weights, tokens, targets)
    _, _, updates_smooth = train(c, "fp32", c["eps_smooth"], weights, tokens, targets)
    half = {d: half_precision_errors(c, d, weights, tokens, targets, rng) for d in ("bf16", "fp16")}
    # fp32 against fp64 says how well conditioned the case is: it must be far inside what the test allows.
    loss64, gradients64, updates64 = train(c, "fp64", c["eps"], weights, tokens, targets)
    own = (abs(loss - loss64) / loss64, relative_errors(c, gradients, gradients64).max(),
           relative_errors(c, updates, updates64).max())
    assert own[0] < 2e-6 and own[1] < 2e-5 and own[2] < 2e-4, f"{path}: badly conditioned, fp32 errors {own}"

    names = list(weights)
    with h5py.File(path, "w", libver=("v110", "v110")) as f:
        for key, value in c.items():
            f.attrs[key] = value
        f.attrs["loss"] = loss
        f["names"] = np.array(names, dtype="S40")
        f["shapes"] = np.array([(w.shape + (0,))[:2] for w in weights.values()], np.int64)
        f["tokens"], f["targets"] = tokens.numpy().astype(np.int32), targets.numpy().astype(np.int32)
        for key, values, bits in (("weights", weights, 24), ("gradients", gradients, 15), ("updates", updates, 12),
                                  ("updates_smooth", updates_smooth, 12)):
            flat = keep_bits(np.concatenate([values[n].reshape(-1) for n in names]), bits)
            f.create_dataset(key, data=flat, chunks=flat.shape, compression="gzip", compression_opts=9, shuffle=True)
        for dtype, (loss_error, gradient_errors, update_errors) in half.items():
            f.attrs[dtype + "_loss"], f.attrs[dtype + "_loss_scale"] = loss_error, LOSS_SCALE[dtype]
            f[dtype + "_gradients"], f[dtype + "_updates_smooth"] = gradient_errors, update_errors

    print(f"{os.path.basename(path):20} {sum(w.size for w in weights.values()):5} parameters "
          f"{os.path.getsize(path) / 1e3:5.1f} kB  loss {loss:.4f}  errors (loss, gradients, updates): "
          f"largest in fp32 {own[0]:.0e} {own[1]:.0e} {own[2]:.0e}, median in " + ", ".join(
              f"{d} {e[0]:.0e} {np.median(e[1]):.1e} {np.median(e[2]):.1e}" for d, e in half.items()))


def main():
    parser = argparse.ArgumentParser(description="Make the PyTorch fixtures of test/test_parity.c.")
    parser.add_argument("--out", default=os.path.join(os.path.dirname(__file__), "..", "test", "fixtures"))
    out = parser.parse_args().out
    os.makedirs(out, exist_ok=True)
    torch.set_num_threads(1)  # one order of sums, wherever this runs
    for seed, (name, case) in enumerate(CASES.items()):
        c = {**BASE, **case}
        c["head_dim"] = c["head_dim"] or c["channels"] // c["heads"]
        write_case(os.path.join(out, name + ".h5"), c, np.random.default_rng(seed))


if __name__ == "__main__":
    main()
