#!/usr/bin/env python3
"""make bench: how fast train_gpt is on this machine, beside what the machine can do.

Prints, from one run: the matmul peak (best of one-second rounds of large square products, before and after the timed
steps), then for each case tokens/s, the fraction of that peak (model matmul and causal attention FLOPs / time / peak), the
share of time spent waiting for data, and memory. If the two peaks of a case differ by more than 5%, the machine was not
quiet: the bench says so and fails.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from benches import make_shard, run

CASES = {  # name: (model, dtype, T, micro-batch, goal)
    "gpt2-124m bf16 T=256": ("gpt2-124m", "bf16", 256, 4, 0.80),
    "gpt2-124m fp32 T=256": ("gpt2-124m", "fp32", 256, 4, 0.85),
    "gpt2-124m bf16 T=1024": ("gpt2-124m", "bf16", 1024, 4, 0.75),
    "llama-110m bf16 T=1024": ("llama-110m", "bf16", 1024, 4, None),
    "gpt2-124m fp16 T=256": ("gpt2-124m", "fp16", 256, 4, None),
}


def peak(build, dtype, rounds):
    """FLOP/s of large square products; fp16 multiplies in fp32."""
    return float(run([f"{build}/dev/bench_peak", "fp32" if dtype == "fp16" else dtype, str(rounds), "1"]))


def run_case(build, work, model, dtype, seq_len, micro, steps, extra):
    out = os.path.join(work, "run")
    subprocess.run(["rm", "-rf", out], check=True)
    command = [f"{build}/train_gpt", "--model", model, "--vocab-size", "50257" if model.startswith("gpt2") else "32000",
               "--train", os.path.join(work, "bench.h5"), "--dtype", dtype, "--seq-len", str(seq_len), "--micro-batch",
               str(micro), "--grad-accum", "1", "--steps", str(steps), "--warmup", "2", "--lr", "1e-4", "--out", out,
               "--checkpoint-every", "0", "--sample-every", "0"] + extra
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"bench: {' '.join(command)} failed")
    with open(os.path.join(out, "log.jsonl")) as f:
        log = [json.loads(line) for line in f]
    timed = [e for e in log if e["event"] == "step"][2:]  # the first steps touch memory for the first time
    start = next(e for e in log if e["event"] == "start")
    return {
        "tokens_per_s": micro * seq_len / statistics.median(e["seconds"] for e in timed),
        "data_wait": sum(e["data_wait_s"] for e in timed) / sum(e["seconds"] for e in timed),
        "device_bytes": sum(timed[-1]["device_bytes"].values()),
        "max_rss": usage.ru_maxrss * 1024,
        "flops_per_token": start["flops_per_token"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--rounds", type=int, default=5, help="one-second rounds of the peak, before and after each case")
    parser.add_argument("--steps", type=int, default=8, help="steps a case; the first two are not counted")
    parser.add_argument("--only", help="only cases whose name contains this")
    parser.add_argument("flags", nargs="*", help="more flags for train_gpt, after --")
    args = parser.parse_args()
    noisy = missed = False
    with tempfile.TemporaryDirectory() as work:
        make_shard(os.path.join(work, "bench.h5"), 32000)
        print(f"{'case':26} {'tokens/s':>9} {'GFLOP/s':>8} {'of peak':>8} {'goal':>5}  {'peak before, after':>20} "
              f"{'data wait':>9} {'device':>8} {'max RSS':>8}")
        for name, (model, dtype, seq_len, micro, goal) in CASES.items():
            if args.only and args.only not in name:
                continue
            before = peak(args.build, dtype, args.rounds)
            r = run_case(args.build, work, model, dtype, seq_len, micro, args.steps, args.flags)
            after = peak(args.build, dtype, args.rounds)
            best = max(before, after)
            flops = r["tokens_per_s"] * r["flops_per_token"]
            noisy |= min(before, after) < 0.95 * best
            missed |= goal is not None and flops / best < goal
            print(f"{name:26} {r['tokens_per_s']:9.0f} {flops / 1e9:8.1f} {flops / best:8.3f} {goal or '':>5}  "
                  f"{before / 1e9:9.1f}, {after / 1e9:9.1f} {100 * r['data_wait']:8.2f}% {r['device_bytes'] / 1e9:6.2f}GB "
                  f"{r['max_rss'] / 1e9:6.2f}GB", flush=True)
    if noisy:
        print("bench: peaks before and after differ by more than 5%: the machine was not quiet, the fractions mean little")
    if missed:
        print("bench: a goal was missed")
    sys.exit(1 if noisy or missed else 0)


if __name__ == "__main__":
    main()
