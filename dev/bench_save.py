#!/usr/bin/env python3
"""make bench-save: what saving costs a run, as ratios within one run (gpt2-124m, a save every 10 steps).

blocked  Seconds that an asynchronous save holds training up, beside a copy of as many bytes by as many threads in this
         process, made while the run stands still (median of --copies). Goal: at most 1.2.
speed    The time that 10 steps would take at the median of those during which nothing is written, beside what they take
         with the save. Goal: at least 0.95.
"""
import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

from benches import make_shard

EVERY = 10
PIECE = 1 << 20  # elements


def copy_seconds(source, target, threads):
    """Seconds of one copy, cut into pieces as a save does."""
    def part(first):
        for begin in range(first * PIECE, len(source), threads * PIECE):
            np.copyto(target[begin:begin + PIECE], source[begin:begin + PIECE])

    workers = [threading.Thread(target=part, args=(i,)) for i in range(threads)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--model", default="gpt2-124m")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--saves", type=int, default=3, help="saves that are timed; one more comes before them")
    parser.add_argument("--copies", type=int, default=9)
    parser.add_argument("flags", nargs="*", help="more flags for train_gpt, after --")
    args = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(dir=".") as work:  # on a disk
        make_shard(os.path.join(work, "bench.h5"), 50257)
        out = os.path.join(work, "run")
        process = subprocess.Popen(
            [f"{args.build}/train_gpt", "--model", args.model, "--vocab-size", "50257", "--train", f"{work}/bench.h5",
             "--dtype", args.dtype, "--seq-len", "256", "--micro-batch", "4", "--steps", "100000", "--schedule", "constant",
             "--threads", str(threads), "--checkpoint-every", str(EVERY), "--checkpoint-async", "on", "--keep", "1", "--out",
             out] + args.flags, stdout=subprocess.PIPE, text=True)
        writing, text = {}, ""  # seconds of a save, by its step
        for line in process.stdout:
            text += line
            saved = re.match(r"checkpoint of step (\d+) saved in ([\d.]+) s", line)
            if saved:
                writing[int(saved.group(1))] = float(saved.group(2))
            if line.startswith(f"step {(args.saves + 2) * EVERY}/"):
                break
        process.send_signal(signal.SIGSTOP)
        with open(os.path.join(out, "log.jsonl"), encoding="utf-8") as file:
            log = [json.loads(line) for line in file if line.endswith("\n")]
        snapshot = next(e for e in log if e["event"] == "start")["snapshot_bytes"]
        state = np.ones((snapshot // 4) - PIECE, np.float32)  # the rest of it is a buffer
        target = np.zeros_like(state)
        target[:] = 1
        copies = [copy_seconds(state, target, threads) for _ in range(args.copies)]
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()

    steps = {e["step"]: e for e in log if e["event"] == "step"}
    first, last = 2 * EVERY, (args.saves + 2) * EVERY
    blocked = [steps[s]["save_wait_s"] for s in range(first + 1, last + 1, EVERY)]
    alone, clock = [], {}  # steps during which nothing is written
    for step in range(first + 1, last + 1):
        since = clock[step - 1] if (step - 1) % EVERY else 0  # seconds since the save began
        clock[step] = since + steps[step]["seconds"] + steps[step]["save_wait_s"]
        if since > writing.get((step - 1) // EVERY * EVERY, float("inf")):
            alone.append(steps[step]["seconds"])
    if not alone:
        sys.exit(f"bench_save: saves take all of the {EVERY} steps between them: {writing} s")
    with_saves = sum(e["seconds"] + e["save_wait_s"] for step, e in steps.items() if first < step <= last) / (last - first)
    blocked_ratio = statistics.median(blocked) / statistics.median(copies)
    speed_ratio = statistics.median(alone) / with_saves
    print(f"state           {state.nbytes / 1e9:.2f} GB, written in {statistics.median(writing.values()):.1f} s")
    print(f"blocked         {', '.join(f'{b:.3f}' for b in blocked)} s")
    print(f"copied          {', '.join(f'{c:.3f}' for c in copies)} s")
    print(f"blocked / copy  {blocked_ratio:.2f} (medians; goal: at most 1.2)")
    print(f"step alone      {statistics.median(alone):.3f} s (median of {len(alone)}), with saves {with_saves:.3f} s (mean)")
    print(f"speed           {speed_ratio:.3f} of that without saves (goal: at least 0.95)")
    return 0 if blocked_ratio <= 1.2 and speed_ratio >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
