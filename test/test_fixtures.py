#!/usr/bin/env python3
"""The fixtures of test/test_parity.c, checked without PyTorch: a forward pass written a second time in numpy, in double
precision, gives the stored loss, and differences of it along random directions give the stored gradients."""
import glob
import os
import unittest

import h5py
import numpy as np

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")


class Case:
    def __init__(self, path):
        with h5py.File(path) as f:
            self.config = {key: value.item() for key, value in f.attrs.items()}
            self.loss = self.config["loss"]
            self.tokens, self.targets = f["tokens"][0], f["targets"][0]
            self.names = [n.decode() for n in f["names"]]
            self.shapes = [tuple(int(d) for d in s if d) for s in f["shapes"]]
            self.weights, self.gradients = self.split(f["weights"][:]), self.split(f["gradients"][:])

    def split(self, flat):
        ends = np.cumsum([np.prod(s) for s in self.shapes])
        assert ends[-1] == flat.size
        pieces = np.split(flat.astype(np.float64), ends[:-1])
        return {n: p.reshape(s) for n, s, p in zip(self.names, self.shapes, pieces)}


def norm(x, c, w, name):
    if not c["llama"]:
        x = x - x.mean(-1, keepdims=True)
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + c["norm_eps"]) * w[name + ".weight"]
    return y + w.get(name + ".bias", 0)


def rotate(x, c):  # x (T, heads, D): pairs (i, i + D/2) as complex numbers, turned by position · frequency
    T, half = x.shape[0], c["head_dim"] // 2
    frequency = c["rope_theta"] ** (-np.arange(half) / half)
    if c["rope_llama3"]:
        for i, f in enumerate(frequency):
            turns = c["rope_original_len"] * f / (2 * np.pi)  # in the original context
            if turns < c["rope_low_freq"]:
                frequency[i] = f / c["rope_factor"]
            elif turns < c["rope_high_freq"]:
                keep = (turns - c["rope_low_freq"]) / (c["rope_high_freq"] - c["rope_low_freq"])
                frequency[i] = keep * f + (1 - keep) * f / c["rope_factor"]
    z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * np.outer(np.arange(T), frequency))[:, None, :]
    return np.concatenate((z.real, z.imag), -1)


def loss(c, w, tokens, targets):
    total = 0.0
    for sequence, target in zip(tokens, targets):
        T, H, K, D = len(sequence), c["heads"], c["kv_heads"], c["head_dim"]
        x = w["wte"][sequence] + (0 if c["llama"] else w["wpe"][:T])
        for l in range(c["layers"]):
            h = f"h.{l}."
            n = norm(x, c, w, h + ("norm_1" if c["llama"] else "ln_1"))
            qkv = (n @ w[h + "attn.qkv.weight"].T + w.get(h + "attn.qkv.bias", 0)).reshape(T, H + 2 * K, D)
            if c["llama"]:
                qkv[:, :H + K] = rotate(qkv[:, :H + K], c)
            heads = []
            for head in range(H):
                q, k, v = qkv[:, head], qkv[:, H + head * K // H], qkv[:, H + K + head * K // H]
                score = np.where(np.tri(T, dtype=bool), q @ k.T / np.sqrt(D), -np.inf)
                p = np.exp(score - score.max(-1, keepdims=True))
                heads.append(p / p.sum(-1, keepdims=True) @ v)
            x = x + np.concatenate(heads, -1) @ w[h + "attn.proj.weight"].T + w.get(h + "attn.proj.bias", 0)
            n = norm(x, c, w, h + ("norm_2" if c["llama"] else "ln_2"))
            if c["llama"]:
                gate, up = np.split(n @ w[h + "mlp.gate_up.weight"].T, 2, -1)
                x = x + (gate / (1 + np.exp(-gate)) * up) @ w[h + "mlp.down.weight"].T
            else:
                f = n @ w[h + "mlp.fc.weight"].T + w[h + "mlp.fc.bias"]
                gelu = 0.5 * f * (1 + np.tanh(np.sqrt(2 / np.pi) * (f + 0.044715 * f**3)))
                x = x + gelu @ w[h + "mlp.proj.weight"].T + w[h + "mlp.proj.bias"]
        logits = norm(x, c, w, "norm_f" if c["llama"] else "ln_f") @ w["wte" if c["tied"] else "head.weight"].T
        top = logits.max(-1)
        total += np.sum(top + np.log(np.exp(logits - top[:, None]).sum(-1)) - logits[np.arange(T), target])
    return total / targets.size


class Fixtures(unittest.TestCase):
    def cases(self):
        paths = sorted(path for arch in ("gpt2", "llama") for path in glob.glob(os.path.join(FIXTURES, arch + "_*.h5")))
        self.assertTrue(paths, f"no fixtures in {FIXTURES}: make them with dev/make_fixtures.py")
        for path in paths:
            with self.subTest(os.path.basename(path)):
                yield Case(path)

    def test_loss(self):
        for case in self.cases():
            found = loss(case.config, case.weights, case.tokens, case.targets)
            self.assertAlmostEqual(found / case.loss, 1, delta=2e-6)

    def test_gradients(self):
        rng = np.random.default_rng(0)
        for case in self.cases():
            for name, gradient in case.gradients.items():
                # Along the gradient itself, bent at random, so that a wrong element cannot hide.
                noise = rng.standard_normal(gradient.shape) / np.sqrt(gradient.size)
                direction = gradient / np.linalg.norm(gradient) + noise

                def along(step):
                    moved = {**case.weights, name: case.weights[name] + step * direction}
                    return loss(case.config, moved, case.tokens, case.targets)

                slope = (along(1e-4) - along(-1e-4)) / 2e-4
                self.assertAlmostEqual(slope / np.sum(gradient * direction), 1, delta=1e-4, msg=name)


if __name__ == "__main__":
    unittest.main()
