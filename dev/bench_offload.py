#!/usr/bin/env python3
"""make bench-offload: what offload costs in time, as ratios within one run.

    dev/bench_offload.py [--build DIR] [--path DIR] [adamw] [nvme] [rest]       default: all three

adamw  The host's AdamW beside an in-place x[i] += c over the same arrays, bytes/s. Goal: at least 0.90.
nvme   The optimizer phase with --offload-optimizer nvme beside its bytes over the mixed rate that fio gets on the same file
       system with the same size of requests, depth and direct I/O, before and after (gpt2-124m). Goal: at most 1.15.
rest   The rest of a step (all but the optimizer phase) with --offload-optimizer cpu beside a step without offload, in turn
       (gpt2-124m in bf16, 8 sequences of 1,024 tokens). Goal: at most 1.02.

The machine should be quiet. --path is on the disk that is measured; fio is a Debian package.
"""
import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile

from benches import Goals, make_shard, run

DEPTH = 8  # OFFLOAD_BUFFERS of zero/offload_state.h
BUFFER = 8 << 20
RECORD = BUFFER // 4 // 3 // 2048 * 2048 * 12  # bytes of a request of three kinds


class Bench(Goals):
    def __init__(self, args, work):
        self.args, self.work = args, work
        self.shard = os.path.join(work, "bench.h5")
        make_shard(self.shard, 50257)

    def train(self, options, steps):
        """The step events of a run but the first."""
        out = os.path.join(self.work, "out")
        shutil.rmtree(out, ignore_errors=True)
        run([os.path.join(self.args.build, "train_gpt"), "--train", self.shard, "--model", "gpt2-124m", "--vocab-size", "50257",
             "--dtype", "bf16", "--steps", str(steps + 1), "--checkpoint-every", "0", "--out", out, *options])
        with open(os.path.join(out, "log.jsonl"), encoding="utf-8") as file:
            return [event for event in map(json.loads, file) if event["event"] == "step"][1:]

    def adamw(self):
        update, plain, ratio = run([os.path.join(self.args.build, "dev/bench_adamw")]).split()
        print(f"adamw: {float(update) / 1e9:.2f} GB/s, in-place addition {float(plain) / 1e9:.2f} GB/s: "
              f"{self.verdict(float(ratio), 0.90, float(ratio) >= 0.90)}", flush=True)

    def fio(self):
        """Bytes/s, read and written together, of a file as long as the optimizer's that was written once."""
        path = os.path.join(self.work, "fio")
        common = ["fio", f"--filename={path}", f"--size={RECORD * 179}", f"--bs={RECORD}", f"--iodepth={DEPTH}",
                  "--ioengine=io_uring", "--direct=1", "--output-format=json"]
        run(common + ["--name=before", "--rw=write"])
        report = json.loads(run(common + ["--name=mixed", "--rw=rw", "--rwmixread=50", "--overwrite=1", "--time_based",
                                          f"--runtime={self.args.seconds}"]))
        os.remove(path)
        job = report["jobs"][0]
        return job["read"]["bw_bytes"] + job["write"]["bw_bytes"]

    def nvme(self):
        ratios = []
        options = ["--micro-batch", "1", "--seq-len", "64", "--offload-optimizer", "nvme", "--nvme-path", self.work,
                   "--nvme-buffer", str(BUFFER)]
        for _ in range(self.args.rounds):
            before = self.fio()
            steps = self.train(options, 6)
            rate = (before + self.fio()) / 2
            moved = steps[0]["offload"]["nvme_bytes_read"] + steps[0]["offload"]["nvme_bytes_written"]
            seconds = statistics.median(step["offload"]["update_s"] for step in steps)
            ratios.append(seconds / (moved / rate))
            print(f"nvme: {moved / 1e9:.2f} GB in {seconds:.2f} s ({moved / seconds / 1e9:.2f} GB/s); fio gets {rate / 1e9:.2f} "
                  f"GB/s: {ratios[-1]:.3f}", flush=True)
        ratio = statistics.median(ratios)
        print(f"nvme: optimizer phase over bytes ÷ fio's rate, median: {self.verdict(ratio, 1.15, ratio <= 1.15)}", flush=True)

    def rest(self):
        """The shortest steps of all rounds are compared: what else runs on a machine only ever adds to a step."""
        batch = ["--micro-batch", "8", "--seq-len", "1024"]
        plain, rest = [], []
        for _ in range(self.args.rounds):
            plain += [step["seconds"] for step in self.train(batch, 2)]
            rest += [step["seconds"] - step["offload"]["update_s"]
                     for step in self.train(batch + ["--offload-optimizer", "cpu"], 2)]
            print(f"rest: steps without offload {plain[-2]:.2f} and {plain[-1]:.2f} s, the rest of those with it "
                  f"{rest[-2]:.2f} and {rest[-1]:.2f} s", flush=True)
        ratio = min(rest) / min(plain)
        print(f"rest: {min(rest):.2f} s over {min(plain):.2f} s: {self.verdict(ratio, 1.02, ratio <= 1.02)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], "adamw", "nvme", "rest"], help="default: all")
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--path", default="build", help="directory on the disk to measure")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=10, help="of each run of fio")
    args = parser.parse_args()
    work = tempfile.mkdtemp(prefix="bench_offload_", dir=args.path)
    try:
        bench = Bench(args, work)
        for part in args.parts or ["adamw", "nvme", "rest"]:
            getattr(bench, part)()
    finally:
        shutil.rmtree(work)
    return 1 if bench.missed else 0


if __name__ == "__main__":
    sys.exit(main())
