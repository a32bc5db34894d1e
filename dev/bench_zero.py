#!/usr/bin/env python3
"""make bench-zero: what ZeRO costs in time, as ratios within one run.

    dev/bench_zero.py [--build DIR] [scaling] [overlap] [plan]       default: all three

scaling  Two ranks of one thread beside one rank of two threads with twice the grad_accum: the same micro-batch and global
         batch (gpt2-124m in bf16, 2,048 tokens a rank and step). Best of --pairs rounds, in each of which every stage runs
         once. Goals: 0.96 of the tokens/s, 0.95 in stage 3.
overlap  Two hosts (network namespaces) with a link of 1 Gbit/s and a model of 16 equal blocks, its batch chosen so that
         communication takes about as long as compute. A step beside
             max(F, G_f) + max(B, G_b + R) + first gather + last reduction,
         F and B (forward, backward) measured in two ranks that run at the same time without each other, G and R (gathers,
         reductions) between the hosts without compute. Goal: at most 1.10 of it, in stages 1 to 3.
plan     The same model at two bandwidths: seconds of a step that --plan predicts, given the compute speed and the bandwidth
         measured by `overlap`'s means, beside measured ones. Goal: within 20%.

Both hosts of `overlap` and `plan` are this machine, which needs root and should be quiet.
"""
import argparse
import json
import os
import random
import re
import statistics
import string
import subprocess
import sys
import tempfile

from benches import Goals, make_shard, run

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HOSTS = os.path.join(ROOT, "scripts/hosts.sh")
RUN_MPIRUN = os.path.join(ROOT, "scripts/run_mpirun.sh")
SUBNET = "10.88.0.0/24"
TEXTBOOK = ["--dtype", "bf16", "--grad-dtype", "param", "--reduce-dtype", "param"]
WARM_UP = 1  # steps that are not timed


class Bench(Goals):
    def __init__(self, args, work):
        self.args, self.work = args, work
        self.shard = os.path.join(work, "bench.h5")
        make_shard(self.shard, 256)
        self.program = os.path.abspath(os.path.join(args.build, "train_gpt"))
        # Both hosts are this machine: a rank and all its threads on one core, as compute_alone has it
        self.pinned = os.path.join(work, "pinned")
        with open(self.pinned, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec taskset -c $((OMPI_COMM_WORLD_RANK % {os.cpu_count()})) "$@"\n')
        os.chmod(self.pinned, 0o755)

    def train(self, launcher, name, *options, steps):
        """The timed step events of a run."""
        out = os.path.join(self.work, name)
        run(["rm", "-rf", out])
        run([*launcher, self.program, "--train", self.shard, "--steps", str(steps + WARM_UP), "--checkpoint-every", "0",
             "--resume", "never", "--out", out, *options])
        with open(os.path.join(out, "log.jsonl"), encoding="utf-8") as file:
            log = [json.loads(line) for line in file]
        self.start = next(e for e in log if e["event"] == "start")
        return [e for e in log if e["event"] == "step"][WARM_UP:]

    # ---- two ranks beside one ----

    def scaling(self):
        args = self.args
        model = ["--model", args.model, "--vocab-size", "50257", "--seq-len", str(args.seq_len), "--micro-batch",
                 str(2048 // args.seq_len), *TEXTBOOK]
        two_ranks = [RUN_MPIRUN, "-n", "2", "--threads", "1", "--max-restarts", "0"]
        print(f"scaling: {args.model}, bf16, 2,048 tokens a rank and step, sequences of {args.seq_len}; best of {args.pairs}")
        one, two, cpu = [], {s: [] for s in args.stages}, {s: [] for s in args.stages}
        speed = lambda steps: statistics.median(e["tokens_per_s"] for e in steps)
        for _ in range(args.pairs):
            one.append(speed(self.train([], "one", *model, "--grad-accum", "2", "--threads", "2", steps=args.steps)))
            for stage in args.stages:
                steps = self.train(two_ranks, "two", *model, "--grad-accum", "1", "--zero", str(stage), steps=args.steps)
                two[stage].append(speed(steps))
                cpu[stage].append(statistics.median(e["comm_cpu_s"] / e["seconds"] for e in steps))
        print(f"  one rank, two threads      {max(one):9.0f} tokens/s")
        for stage in args.stages:
            ratio, goal = max(two[stage]) / max(one), 0.95 if stage == 3 else 0.96
            print(f"  two ranks, --zero {stage}        {max(two[stage]):9.0f} tokens/s  {self.verdict(ratio, goal, ratio >= goal)}; "
                  f"the MPI thread takes {100 * min(cpu[stage]):.1f}% of a core", flush=True)

    # ---- two hosts ----

    def open_hosts(self):
        if os.geteuid() != 0:
            sys.exit("bench_zero: network namespaces need root; `scaling` alone does not")
        self.hosts = "bz" + "".join(random.choices(string.ascii_lowercase, k=4))
        run([HOSTS, self.hosts, "up", "2"])
        self.launcher = [HOSTS, "exec", self.hosts + "1", RUN_MPIRUN, "--hosts", f"{self.hosts}1,{self.hosts}2",
                         "--ranks-per-host", "1", "--threads", "1", "--interface", SUBNET, "--ssh-agent", f"{HOSTS} agent",
                         "--max-restarts", "0", "--bind", "none", "--mca", "btl_tcp_flags", "send,inplace", "--mca",
                         "btl_tcp_sndbuf", "262144", "--mca", "btl_tcp_rcvbuf", "262144"]

    def close_hosts(self):
        run([HOSTS, self.hosts, "down"])

    def model(self, micro_batch):
        return ["--model", "gpt2-tiny", "--layers", str(self.args.layers), "--channels", str(self.args.channels), "--heads", "4",
                "--vocab-size", "256", "--seq-len", "64", "--micro-batch", str(micro_batch), *TEXTBOOK]

    def compute_alone(self, micro_batch):
        """Seconds of forward and of backward, where two ranks compute at once and do not communicate."""
        processes, traces = [], []
        for core in range(2):
            traces.append(os.path.join(self.work, f"trace{core}.json"))
            command = ["taskset", "-c", str(core % os.cpu_count()), self.program, "--train", self.shard, "--steps",
                       str(self.args.steps + WARM_UP), *self.model(micro_batch), "--threads", "1", "--overlap", "off",
                       "--trace", traces[-1]]
            processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        if any(p.wait() != 0 for p in processes):
            sys.exit("bench_zero: a run by itself failed")
        forward, backward, others = [], [], []
        for path in traces:
            with open(path, encoding="utf-8") as file:
                spans = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X"]
            for step in sorted((e for e in spans if e["name"].startswith("step ")), key=lambda e: e["ts"])[WARM_UP:]:
                sums = {"forward": 0, "gradient": 0, "norm": 0, "update": 0}
                for e in spans:
                    kind = e["name"].split()[0]
                    if kind in sums and step["ts"] <= e["ts"] < step["ts"] + step["dur"]:
                        sums[kind] += 1e-6 * e["dur"]
                forward.append(sums["forward"])
                backward.append(sums["gradient"])
                others.append(sums["norm"] + sums["update"])
        return statistics.median(forward), statistics.median(backward), statistics.median(others)

    def network_alone(self):
        bench = os.path.abspath(os.path.join(self.args.build, "dev/bench_comm"))
        out = run([*self.launcher, self.pinned, bench, "5", *self.model(1)])
        return json.loads(next(line for line in out.splitlines() if line.startswith("{")))

    def choose_batch(self, seconds):
        """The micro-batch whose compute takes about so long, and what its forward and backward take."""
        forward, backward, _ = self.compute_alone(4)
        micro_batch = max(1, round(4 * seconds / (forward + backward)))
        return micro_batch, *self.compute_alone(micro_batch)

    def step_seconds(self, micro_batch, stage):
        steps = self.train([*self.launcher, self.pinned], f"zero{stage}", *self.model(micro_batch), "--zero", str(stage),
                           steps=self.args.steps)
        return statistics.median(e["seconds"] for e in steps)

    def overlap(self):
        run([HOSTS, self.hosts, "shape", self.args.overlap_rate])
        network = self.network_alone()
        gathers, reductions = network["gather_s"], network["reduce_s"]
        micro_batch, forward, backward, rest = self.choose_batch(sum(gathers) + sum(reductions))
        print(f"overlap at {self.args.overlap_rate}: {self.args.layers} blocks, Ψ = {network['n_params'] / 1e6:.1f} M, unit 0 {100 * network['unit_0'] / network['n_params']:.1f}% "
              f"of it; micro-batch {micro_batch} of 64 tokens\n"
              f"  forward {forward:.3f} s, backward {backward:.3f} s, norm and update of all of it {rest:.3f} s; "
              f"gathers {sum(gathers):.3f} s, reductions {sum(reductions):.3f} s")
        for stage in (s for s in self.args.stages if s > 0):
            # Not gathered again for backward: the last two blocks and the ends (zero/traffic.h)
            again = sum(gathers[1:-3]) if stage == 3 else 0
            bound = (max(forward, sum(gathers)) + max(backward, again + sum(reductions)) + gathers[0] + reductions[0])
            seconds = self.step_seconds(micro_batch, stage)
            print(f"  --zero {stage}: a step takes {seconds:.3f} s, the bound is {bound:.3f} s: "
                  f"{self.verdict(seconds / bound, 1.10, seconds / bound <= 1.10)}", flush=True)

    def plan(self):
        print("plan: seconds of a step, predicted and measured")
        micro_batch = None
        for rate in self.args.rates.split(","):
            run([HOSTS, self.hosts, "shape", rate])
            network = self.network_alone()
            bytes_per_s = (network["gather_bytes"] + network["reduce_bytes"]) / (
                sum(network["gather_s"]) + sum(network["reduce_s"]))
            if not micro_batch:
                micro_batch, forward, backward, _ = self.choose_batch(sum(network["gather_s"]) + sum(network["reduce_s"]))
            predicted = None
            for stage in self.args.stages:
                measured = self.step_seconds(micro_batch, stage)
                if not predicted:
                    flops = self.start["flops_per_token"] * micro_batch * 64 / (forward + backward)
                    text = run([self.program, "--plan", "--ranks", "2", *self.model(micro_batch), "--flops", f"{flops:.0f}",
                                "--bandwidth", f"{8 * bytes_per_s:.0f}"])
                    row = next(line for line in text.splitlines() if line.startswith("a step"))
                    predicted = [float(x) * (1e-3 if unit == "ms" else 1) for x, unit in re.findall(r"([\d.]+) (ms|s)", row)]
                ratio = predicted[stage] / measured
                print(f"  {rate} ({8e-9 * bytes_per_s:.3f} Gbit/s), --zero {stage}: {predicted[stage]:.3f} s, {measured:.3f} s: "
                      f"{self.verdict(ratio, '0.8 … 1.2', 0.8 <= ratio <= 1.2)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="scaling, overlap, plan")
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--pairs", type=int, default=5, help="rounds of `scaling` (%(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of a run (%(default)s)")
    parser.add_argument("--stages", type=lambda s: [int(x) for x in s.split(",")], default=[0, 1, 2, 3])
    parser.add_argument("--model", default="gpt2-124m", help="of `scaling` (%(default)s)")
    parser.add_argument("--seq-len", type=int, default=256, help="of `scaling`; divides 2048 (%(default)s)")
    parser.add_argument("--layers", type=int, default=16, help="of the model of `overlap` and `plan` (%(default)s)")
    parser.add_argument("--channels", type=int, default=384, help="of the model of `overlap` and `plan` (%(default)s)")
    parser.add_argument("--overlap-rate", default="1gbit", help="of `overlap` (%(default)s)")
    parser.add_argument("--rates", default="1gbit,300mbit", help="of `plan` (%(default)s)")
    args = parser.parse_args()
    parts = args.parts or ["scaling", "overlap", "plan"]
    if set(parts) - {"scaling", "overlap", "plan"}:
        parser.error(f"there is no part {', '.join(set(parts) - {'scaling', 'overlap', 'plan'})}")
    load = os.getloadavg()[0]
    if load > 0.3:
        print(f"bench_zero: the machine is not quiet (load {load:.1f}): the ratios mean little")
    with tempfile.TemporaryDirectory() as work:
        bench = Bench(args, work)
        if "scaling" in parts:
            bench.scaling()
        if "overlap" in parts or "plan" in parts:
            bench.open_hosts()
            try:
                if "overlap" in parts:
                    bench.overlap()
                if "plan" in parts:
                    bench.plan()
            finally:
                bench.close_hosts()
    sys.exit(1 if bench.missed else 0)


if __name__ == "__main__":
    main()
