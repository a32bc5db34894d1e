#!/usr/bin/env python3
"""All that needs a GPU, in one run: is it right, is it deterministic, how fast is it?

    dev/gpu_check.sh [--only PHASE] [--out DIR] [--build DIR] [--scale X]

Phases have limits of their own, eight minutes in all. The report, DIR/report.md (build/gpu_check), is written again after
each of them, so a run that is cut short leaves what it knows. The exit status is 1 if a phase failed. Needs Python's
standard library only. A phase that needs a GPU says so where there is none.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TINY = ["--layers", "4", "--heads", "4", "--channels", "128", "--seq-len", "128", "--micro-batch", "4", "--vocab-size", "512",
        "--lr", "1e-3", "--device"]
MODELS = {"gpt2": ["--model", "gpt2-tiny", *TINY], "llama": ["--model", "llama-tiny", "--kv-heads", "2", *TINY]}
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 2e-2}  # of each of 50 losses, against the CPU's
SPEED = {  # preset: micro-batch at T = 1024, steps, and the goal
    "gpt2-124m": (32, 14, 0.50),
    "llama-1b": (8, 9, 0.60),
    "gpt2-1558m": (8, 7, None),
}


class Failed(Exception):
    pass


class Check:
    def __init__(self, out, build):
        self.out, self.build = out, build
        self.lines = []
        os.makedirs(out, exist_ok=True)

    def say(self, text):
        print(text, flush=True)
        self.lines.append(text)
        with open(os.path.join(self.out, "report.md"), "w", encoding="utf-8") as file:
            file.write("\n".join(self.lines) + "\n")

    def left(self):
        return max(1.0, self.deadline - time.monotonic())

    def run(self, *command, may_fail=False, **environment):
        """All output of a command, which must succeed within what is left of the phase's time."""
        try:
            done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, timeout=self.left(), text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace")
        except subprocess.TimeoutExpired as e:
            output = e.stdout.decode(errors="replace") if isinstance(e.stdout, bytes) else e.stdout or ""
            raise Failed(f"`{' '.join(command[:6])} …` ran out of the phase's time:\n{output[-1500:]}") from e
        if done.returncode != 0 and not may_fail:
            raise Failed(f"`{' '.join(command)}` ended with status {done.returncode}:\n{done.stdout[-2500:]}")
        return done.stdout

    def program(self, name):
        return os.path.join(self.build, name)

    def train(self, name, *arguments, launcher=()):
        """Terminal output and log of a training run."""
        out = os.path.join(self.out, "runs", name)
        shutil.rmtree(out, ignore_errors=True)
        output = self.run(*launcher, self.program("train_gpt"), *arguments, "--out", out, "--checkpoint-every", "0")
        with open(os.path.join(out, "log.jsonl"), encoding="utf-8") as file:
            return output, [json.loads(line) for line in file]

    def shard(self, vocab, tokens):
        path = os.path.join(self.out, f"tokens-{vocab}.h5")
        if not os.path.exists(path):
            self.run(self.program("dev/make_tokens"), path, str(tokens), str(vocab))
        return path


def events(log, name):
    return [event for event in log if event["event"] == name]


def hashes(log):
    end = events(log, "end")[-1]
    return end["weights_hash"], end["state_hash"]


# ---- phases: the docstring is the heading; what they return is the verdict ----

def build(c):
    """Build for this GPU"""
    targets = ["train_gpt", "dev/make_tokens", "test/test_ops", "test/test_attention", "test/test_device", "dev/bench_peak", "dev/bench_comm"]
    c.run("make", f"-j{os.cpu_count()}", *[os.path.join(c.build, t) for t in targets])
    with open(os.path.join(c.build, "found.mk"), encoding="utf-8") as file:
        if "HAVE_CUDA := 1" not in file.read():
            raise Failed("make found no CUDA: nvcc, cudart and cuBLASLt are needed (CUDA_HOME says where)")
    return f"{c.build} with nvcc"


def ops(c):
    """The table of operations: GPU against the reference"""
    for program in ("test_device", "test_attention", "test_ops"):
        output = c.run(c.program("test/" + program), "--device", "cuda")
    return output.strip().splitlines()[-1].strip("[ ]")


def parity(c):
    """Fifty losses: GPU against CPU"""
    shard = c.shard(512, 400000)
    for model, arguments in MODELS.items():
        for dtype, tolerance in TOLERANCE.items():
            losses = {}
            for device in ("cpu", "cuda"):
                _, log = c.train(f"parity-{model}-{dtype}-{device}", *arguments, device, "--train", shard, "--dtype", dtype,
                                 "--steps", "50")
                losses[device] = [event["loss"] for event in events(log, "step")]
            worst = max(abs(a - b) / b for a, b in zip(losses["cuda"], losses["cpu"]))
            c.say(f"- {model} {dtype}: largest distance {worst:.2e} of {len(losses['cuda'])} losses (allowed {tolerance})")
            if worst > tolerance or len(losses["cuda"]) != 50:
                raise Failed(f"{model} in {dtype} leaves the CPU's losses")
    return "as the CPU's"


def determinism(c):
    """The same bits: run twice, recompute modes, overlap, accumulation"""
    shard = c.shard(512, 400000)
    for model, arguments in MODELS.items():
        for dtype in ("bf16", "fp32"):
            common = [*arguments, "cuda", "--train", shard, "--dtype", dtype, "--steps", "20"]
            runs = {name: hashes(c.train(f"bits-{model}-{dtype}-{name}", *common, *extra)[1])
                    for name, extra in (("once", []), ("again", []), ("selective", ["--recompute", "selective"]),
                                        ("full", ["--recompute", "full"]), ("no overlap", ["--overlap", "off"]),
                                        ("stage 3", ["--zero", "3"]))}
            different = [name for name, value in runs.items() if value != runs["once"]]
            if different:
                raise Failed(f"{model} in {dtype}: other bits with {', '.join(different)}")
    return "the same bits"


def sanitizer(c):
    """NVIDIA's compute-sanitizer"""
    tool = shutil.which("compute-sanitizer") or os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin",
                                                             "compute-sanitizer")
    if not os.path.exists(tool):
        return "left out: compute-sanitizer is not here"
    shard = c.shard(512, 400000)
    for check in ("memcheck", "racecheck"):
        output = c.run(tool, "--tool", check, "--error-exitcode", "9", c.program("train_gpt"), *MODELS["gpt2"], "cuda",
                       "--train", shard, "--dtype", "bf16", "--steps", "1")
        c.say(f"- {check}: {output.strip().splitlines()[-1]}")
    return "silent"


def kernels(c):
    """Time by operation, and bytes a second of those that memory bounds"""
    c.say("```")
    c.say(c.run(c.program("test/test_ops"), "--device", "cuda", "--time").rstrip())
    c.say("```")
    return "measured"


def speed(c):
    """Training speed at T = 1024 in bf16, stage 0"""
    shard = c.shard(50257, 3000000)
    c.say("| model | micro-batch | tokens/s | % of the measured peak | wanted | device memory |")
    c.say("|---|---|---|---|---|---|")
    slow = []
    for model, (micro, steps, wanted) in SPEED.items():
        _, log = c.train(f"speed-{model}", "--model", model, "--vocab-size", "50257", "--train", shard, "--seq-len", "1024",
                         "--micro-batch", str(micro), "--dtype", "bf16", "--device", "cuda", "--steps", str(steps))
        start, run = events(log, "start")[0], events(log, "step")[3:]  # the first steps warm up
        best = max(run, key=lambda event: event["tokens_per_s"])
        memory = sum(best["device_bytes"].values())
        c.say(f"| {model} | {micro} | {best['tokens_per_s']:,.0f} | {100 * best['peak_fraction']:.1f} of "
              f"{start['peak_flops'] / 1e12:.0f} TFLOP/s | {f'{100 * wanted:.0f}' if wanted else ''} | "
              f"{memory / 1e9:.2f} GB, {'as' if start['ranks_as_predicted'] else 'NOT as'} predicted |")
        if wanted and best["peak_fraction"] < wanted:
            slow.append(model)
    return f"slower than wanted: {', '.join(slow)}" if slow else "as wanted"


def profile(c):
    """Time by kernel of a training step (nsys)"""
    if not shutil.which("nsys"):
        return "left out: nsys is not here"
    shard, report = c.shard(50257, 3000000), os.path.join(c.out, "profile")
    c.run("nsys", "profile", "-o", report, "--force-overwrite", "true", c.program("train_gpt"), "--model", "gpt2-124m",
          "--vocab-size", "50257", "--train", shard, "--seq-len", "1024", "--micro-batch", "32", "--dtype", "bf16", "--device",
          "cuda", "--steps", "6")
    c.say("```")
    c.say(c.run("nsys", "stats", "--report", "cuda_gpu_kern_sum", report + ".nsys-rep")[:4000].rstrip())
    c.say("```")
    return "measured"


def stages(c):
    """ZeRO stages across the GPUs of this host"""
    gpus = c.run("nvidia-smi", "-L").count("GPU ")
    if gpus < 2:
        return "left out: one GPU only"
    shard = c.shard(50257, 3000000)
    launcher = ["mpirun", "-q", "--allow-run-as-root", "-np", str(gpus)]
    c.say("| stage | tokens/s | waiting for communication | device memory of rank 0 |")
    c.say("|---|---|---|---|")
    bits = {}
    for stage in range(4):
        _, log = c.train(f"stage-{stage}", "--model", "gpt2-124m", "--vocab-size", "50257", "--train", shard, "--seq-len",
                         "1024", "--micro-batch", "16", "--dtype", "bf16", "--device", "cuda", "--steps", "8", "--zero",
                         str(stage), launcher=launcher)
        best = max(events(log, "step")[2:], key=lambda event: event["tokens_per_s"])
        c.say(f"| {stage} | {best['tokens_per_s']:,.0f} | {100 * best['comm_wait_s'] / best['seconds']:.1f}% | "
              f"{sum(best['device_bytes'].values()) / 1e9:.2f} GB |")
        bits[hashes(log)] = stage
    if len(bits) != 1:
        raise Failed("stages do not have the same bits")
    for how in ("on", "off"):  # in rank order, and NCCL's own
        bench = json.loads(c.run(*launcher, c.program("dev/bench_comm"), "10", "--model", "gpt2-124m", "--device", "cuda",
                                 "--deterministic", how).strip().splitlines()[-1])
        speed = {kind: bench[f"{kind}_bytes"] / sum(bench[f"{kind}_s"]) / 1e9 for kind in ("gather", "reduce")}
        c.say(f"- `--deterministic {how}`: all-gathers {speed['gather']:.1f} GB/s sent by a GPU, reductions "
              f"{speed['reduce']:.1f} GB/s")
    return f"on {gpus} GPUs, the same bits"


PHASES = [(build, 130, False), (ops, 40, True), (parity, 75, True), (determinism, 45, True), (kernels, 30, True),
          (speed, 75, True), (profile, 25, True), (stages, 30, True), (sanitizer, 30, True)]  # seconds; needs a GPU
assert sum(seconds for _, seconds, _ in PHASES) <= 480


def gpu_name():
    """Of this machine's GPUs, or None."""
    if not shutil.which("nvidia-smi"):
        return None
    done = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
                          capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.strip().replace("\n", "; ") if done.returncode == 0 and done.stdout.strip() else None


def main():
    names = [phase.__name__ for phase, _, _ in PHASES]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=names, action="append", help="this phase alone (and those given besides)")
    parser.add_argument("--out", default="build/gpu_check")
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--scale", type=float, default=1, help="of all limits of time, for a slow machine (%(default)s)")
    options = parser.parse_args()
    c = Check(os.path.join(ROOT, options.out), options.build)
    gpu, failed = gpu_name(), []
    c.say(f"# GPU check, {time.strftime('%Y-%m-%d %H:%M')}: {gpu or 'no GPU'}")
    for phase, seconds, needs_gpu in PHASES:
        if options.only and phase.__name__ not in options.only:
            continue
        c.say(f"\n## {phase.__name__}: {phase.__doc__}")
        if needs_gpu and not gpu:
            c.say("left out: needs a GPU, and none answers here")
            continue
        start = time.monotonic()
        c.deadline = start + options.scale * seconds
        try:
            c.say(f"{phase(c)} ({time.monotonic() - start:.0f} s)")
        except (Failed, OSError, KeyError, IndexError, ValueError) as e:
            failed.append(phase.__name__)
            c.say(f"FAILED ({time.monotonic() - start:.0f} s): {e}")
    c.say(f"\n{'FAILED: ' + ', '.join(failed) if failed else 'All that ran is well.'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
