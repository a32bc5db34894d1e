#!/usr/bin/env python3
"""The report of compare_stages.sh: report.md, report.json and report.png from the logs of its runs.

    scripts/compare_stages.py DIR      DIR/runs/[RATE/]NAME/log.jsonl: a run; RATE: link speed between its hosts

Every number is one that a run logged, but the textbook's, which follow from Ψ, N and the dtypes.
"""
import argparse
import json
import os
import statistics
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (after the choice of backend)

HEADROOM = 1.45  # of an axis, for its legend
WARM_UP = 2  # steps that are not timed: they touch memory for the first time
STATES = ("parameters", "gradients", "optimizer")
DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


class Run:
    """One run: what it was, and what it logged."""

    def __init__(self, path, rate):
        with open(os.path.join(path, "log.jsonl"), encoding="utf-8") as file:
            log = [json.loads(line) for line in file]
        self.name, self.rate = os.path.basename(path), rate
        self.start = next(e for e in log if e["event"] == "start")
        self.end = next((e for e in log if e["event"] == "end"), None)
        self.steps = [e for e in log if e["event"] == "step"]
        if not self.end or len(self.steps) <= WARM_UP:
            raise ValueError(f"{path}: not a whole run of more than {WARM_UP} steps")
        self.stage = self.start["zero"]["zero"]
        self.ranks = self.start["ranks"]
        self.group = self.start["zero"]["shard_group"] or self.ranks
        timed = self.steps[WARM_UP:]
        self.seconds = statistics.median(e["seconds"] for e in timed)
        self.exposed = statistics.median(e["comm_wait_s"] for e in timed)
        self.data = statistics.median(e["data_wait_s"] for e in timed)
        self.comm_cpu = statistics.median(e["comm_cpu_s"] for e in timed)
        self.tokens_per_s = self.steps[-1]["tokens"] / len(self.steps) / self.seconds
        self.memory = self.steps[-1]["device_bytes"]
        self.predicted_memory = self.start["predicted_bytes"]
        self.predicted_sent = self.start["predicted_bytes_sent"]
        sent = [{name: e["bytes_sent"][name] for name in self.predicted_sent} for e in self.steps]
        self.sent = sent[-1]
        self.sent_as_predicted = all(s == self.predicted_sent for s in sent)
        self.textbook_sent = self.start["textbook_bytes_sent"]
        self.hashes = (self.end["weights_hash"], self.end["state_hash"])

    @property
    def states(self):
        return sum(self.memory[k] for k in STATES)

    def textbook_states(self):
        """Bytes by the formula, and the formula: 4Ψ + 12Ψ/N."""
        precision = self.start["precision"]
        p = DTYPE_BYTES[precision["dtype"]]
        g = 4 if precision["grad_dtype"] == "fp32" else p
        o = (4 if self.start["optimizer"]["optimizer"] == "sgd" else 8) + (0 if p == 4 else 4)
        whole = (p if self.stage < 3 else 0) + (g if self.stage < 2 else 0) + (o if self.stage < 1 else 0)
        shared = p + g + o - whole
        over = "N" if self.group == self.ranks else "S"
        text = " + ".join([f"{whole}Ψ"] * (whole > 0) + [f"{shared}Ψ/{over}"] * (shared > 0))
        return (whole + shared / self.group) * self.start["n_params"], text

    def json(self):
        states, formula = self.textbook_states()
        return {"name": self.name, "rate": self.rate, "stage": self.stage, "ranks": self.ranks, "shard_group": self.group,
                "device_bytes": self.memory, "predicted_bytes": self.predicted_memory, "model_states": self.states,
                "textbook_model_states": states, "textbook_formula": formula, "bytes_sent": self.sent,
                "predicted_bytes_sent": self.predicted_sent, "textbook_bytes_sent": self.textbook_sent,
                "tokens_per_s": self.tokens_per_s, "seconds": self.seconds, "exposed_communication_s": self.exposed,
                "data_wait_s": self.data, "comm_cpu_s": self.comm_cpu, "final_loss": self.steps[-1]["loss"],
                "weights_hash": self.hashes[0], "state_hash": self.hashes[1]}


def find_runs(directory):
    """Runs by rate in the order in which they were made; "" is this machine without shaped links."""
    logs = []
    for path, directories, files in os.walk(os.path.join(directory, "runs")):
        if "log.jsonl" in files:
            logs.append(path)
    logs.sort(key=lambda path: os.stat(os.path.join(path, "log.jsonl")).st_mtime)
    by_rate = {}
    for path in logs:
        rate = os.path.relpath(os.path.dirname(path), os.path.join(directory, "runs"))
        rate = "" if rate == "." else rate
        by_rate.setdefault(rate, []).append(Run(path, rate))
    if not by_rate:
        raise ValueError(f"{directory}/runs holds no log.jsonl")
    return by_rate


# ---- verdicts ----

def bits_verdict(runs):
    """Which runs ended with the same weights and optimizer state, and which should have."""
    classes = {}
    for run in runs:
        classes.setdefault(run.hashes, []).append(run.name)
    accum = runs[0].start["batch"]["grad_accum"]
    # Hybrid sharding adds gradients in other groups. With accumulation stages 0, 1 add before they reduce, 2, 3 after.
    expected = {}
    for run in runs:
        key = (run.group, accum > 1 and run.stage >= 2)
        expected.setdefault(key, set()).add(run.hashes)
    good = all(len(hashes) == 1 for hashes in expected.values())
    if len(classes) == 1:
        text = "yes: all runs end with the same weights and the same optimizer state"
    else:
        groups = "; ".join(", ".join(names) for names in classes.values())
        text = f"{'as expected' if good else 'NO'}: the same are {groups}"
        if good:
            text += (" (with accumulation, stages 0 and 1 add micro-batches before they reduce, 2 and 3 after; groups of "
                     "another size add in another order)")
    return good, text


def exact_verdict(runs):
    memory = [r.name for r in runs if r.memory != r.predicted_memory]
    sent = [r.name for r in runs if not r.sent_as_predicted]
    text = "yes: memory and bytes sent are as predicted, to the byte, in every run and step"
    if memory or sent:
        text = "NO: " + "; ".join(f"{what} of {', '.join(names)}" for what, names in
                                  (("memory", memory), ("bytes sent", sent)) if names)
    return not memory and not sent, text


# ---- text ----

def mb(n_bytes):
    return f"{n_bytes / 1e6:,.2f}"


def table(header, rows):
    """A Markdown table whose columns line up in the source too; the first is text, the others numbers."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [header] + rows) for i in range(len(header))]
    line = lambda row: "| " + " | ".join(c.ljust(w) if i == 0 else c.rjust(w)
                                         for i, (c, w) in enumerate(zip(row, widths))) + " |"
    rule = "|" + "|".join(("-" * (w + 1) + ("-" if i == 0 else ":")) for i, w in enumerate(widths)) + "|"
    return "\n".join([line(header), rule] + [line(row) for row in rows])


def memory_table(runs):
    rows = []
    for r in runs:
        textbook, formula = r.textbook_states()
        rows.append([r.name, *(mb(r.memory[k]) for k in STATES), mb(r.states), mb(textbook), formula, mb(r.memory["slots"]),
                     mb(r.memory["activations"]), mb(sum(r.memory[k] for k in ("workspace", "staging", "data"))),
                     mb(sum(r.memory.values()))])
    return table(["MB a rank", *STATES, "states", "textbook", "formula", "slots", "activations", "other", "total"], rows)


def sent_table(runs):
    rows = [[r.name, *(mb(v) for v in r.sent.values()), mb(sum(r.sent.values())), mb(sum(r.predicted_sent.values())),
             mb(r.textbook_sent), f"{sum(r.sent.values()) / r.textbook_sent:.3f}" if r.textbook_sent else "-"] for r in runs]
    names = [name.replace("_", "-") for name in runs[0].sent]
    return table(["MB a rank and step", *names, "measured", "exact formula", "textbook", "÷ textbook"], rows)


def time_table(runs):
    rows = [[r.name, f"{r.tokens_per_s:,.0f}", *(f"{1e3 * s:,.1f}" for s in (r.seconds, r.seconds - r.exposed - r.data,
             r.exposed, r.data, r.comm_cpu))] for r in runs]
    return table(["", "tokens/s", "step ms", "compute", "exposed communication", "data", "CPU of the MPI thread"], rows)


def loss_table(runs):
    rows = [[r.name, f"{r.steps[-1]['loss']:.6f}", *(h[:16] for h in r.hashes)] for r in runs]
    return table(["", "final loss", "weights hash", "state hash"], rows)


def stages(runs):
    return [r for r in runs if r.name.count("-") == 1]  # zero-0 … zero-3


def bandwidth_table(by_rate):
    rows = []
    for rate, runs in by_rate.items():
        speeds = {r.name: r.tokens_per_s for r in runs}
        best = max(speeds, key=speeds.get)
        second = max((s for name, s in speeds.items() if name != best), default=0)
        rows.append([rate, *(f"{speeds[r.name]:,.0f}" for r in runs), best, f"{100 * (speeds[best] / second - 1):.1f}%"])
    names = [r.name for r in next(iter(by_rate.values()))]
    return table(["tokens/s at", *names, "the fastest", "ahead by"], rows)


def markdown(by_rate):
    runs = next(iter(by_rate.values()))
    start = runs[0].start
    batch, precision = start["batch"], start["precision"]
    kept, sent = (precision["dtype"] if precision[k] == "param" else "fp32" for k in ("grad_dtype", "reduce_dtype"))
    everything = [r for group in by_rate.values() for r in group]
    textbook = ("Textbook for model states: Rajbhandari et al. 2020. Measured states are more by the layout's padding; slots "
                "hold one gathered unit or one unit's gradient each.")
    parts = [
        "# ZeRO stages compared", "",
        f"{start['model']['model']}: Ψ = {start['n_params']:,} parameters, {start['model']['layers']} layers, "
        f"N = {start['ranks']} ranks, {precision['dtype']} (gradients kept in {kept}, sent in {sent}).",
        f"Global batch {batch['global_batch']} = micro {batch['micro_batch']} · grad_accum {batch['grad_accum']} · ranks "
        f"{start['ranks']} sequences of {start['model']['seq_len']} tokens, {len(runs[0].steps)} steps. {start['device']}.", "",
        f"- Same bits? {bits_verdict(everything)[1]}.",
        f"- Exact? {exact_verdict(everything)[1]}.", "",
        "## Memory", "", memory_table(runs), "", textbook, "",
        "## Communication", "", sent_table(runs), "",
        "Textbook: Ψ elements each time that parameters or gradients travel, times (N-1)/N. The exact formula knows padding, "
        "that a unit which is still in a slot is not gathered again, and that sums of a group travel in fp32.", "",
        "## Time", ""]
    for rate, group in by_rate.items():
        parts += ([f"Links of {rate}:", ""] if rate else []) + [time_table(group), ""]
    parts += [f"Medians of the steps after the first {WARM_UP}, on rank 0. Exposed communication is time that compute stood "
              "still for it.", ""]
    if list(by_rate) != [""]:
        parts += ["## Which stage wins at which bandwidth", "", bandwidth_table(by_rate), ""]
    parts += ["## Loss and hashes", "", loss_table(runs), ""]
    return "\n".join(parts)


# ---- picture ----

def draw_bars(axis, runs, parts, scale):
    """Stacked bars: parts is [(label, colour, value of a run)]."""
    bottom = [0.0] * len(runs)
    for label, colour, value in parts:
        heights = [scale * value(r) for r in runs]
        if not any(heights):
            continue
        axis.bar(range(len(runs)), heights, 0.62, bottom=bottom, color=colour, label=label)
        bottom = [a + b for a, b in zip(bottom, heights)]
    axis.set_xticks(range(len(runs)))
    axis.set_xticklabels([r.name for r in runs], rotation=30 if len(runs) > 5 else 0, ha="right" if len(runs) > 5 else "center")
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)
    axis.set_ylim(0, HEADROOM * max(max(bottom), 1e-9))


def mark(axis, values, label):
    for i, value in enumerate(values):
        axis.plot([i - 0.4, i + 0.4], [value, value], "k--", linewidth=1.4, label=label if i == 0 else None)


def draw_memory(axis, runs):
    draw_bars(axis, runs, [
        ("parameters", "C0", lambda r: r.memory["parameters"]), ("gradients", "C1", lambda r: r.memory["gradients"]),
        ("optimizer", "C2", lambda r: r.memory["optimizer"]), ("slots", "C4", lambda r: r.memory["slots"]),
        ("activations", "0.6", lambda r: r.memory["activations"]),
        ("other", "0.8", lambda r: sum(r.memory[k] for k in ("workspace", "staging", "data")))], 1e-6)
    mark(axis, [r.textbook_states()[0] / 1e6 for r in runs], "textbook: parameters, gradients, optimizer")
    for i, r in enumerate(runs):
        axis.annotate(r.textbook_states()[1], (i, sum(r.memory.values()) / 1e6), textcoords="offset points", xytext=(0, 4),
                      ha="center", fontsize=8)
    axis.set_title("memory of a rank")
    axis.set_ylabel("MB")


def draw_sent(axis, runs):
    draw_bars(axis, runs, [
        ("all-gather", "C0", lambda r: r.sent["all_gather"]), ("reduce-scatter", "C1", lambda r: r.sent["reduce_scatter"]),
        ("all-reduce across groups", "C2", lambda r: r.sent["all_reduce"])], 1e-6)
    mark(axis, [r.textbook_sent / 1e6 for r in runs], "textbook")
    axis.set_title("sent by a rank in a step")
    axis.set_ylabel("MB")


def draw_time(axis, runs):
    draw_bars(axis, runs, [
        ("compute", "C0", lambda r: r.seconds - r.exposed - r.data), ("exposed communication", "C3", lambda r: r.exposed),
        ("data", "C5", lambda r: r.data)], 1e3)
    axis.set_title("time of a step" + (f" at {runs[0].rate}" if runs[0].rate else ""))
    axis.set_ylabel("ms")


def draw_loss(axis, runs):
    lines = {}
    for r in runs:
        lines.setdefault(tuple((e["step"], e["loss"]) for e in r.steps), []).append(r.name)
    for points, names in lines.items():
        label = f"all {len(names)} runs: the same" if len(lines) == 1 else ", ".join(names)
        axis.plot(*zip(*points), linewidth=2, label=label)
    axis.set_title("loss")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel("step")
    axis.grid(alpha=0.3)


def draw_bandwidths(axis, by_rate):
    names = [r.name for r in next(iter(by_rate.values()))]
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        values = [next(r.tokens_per_s for r in runs if r.name == name) for runs in by_rate.values()]
        axis.bar([x + (i - (len(names) - 1) / 2) * width for x in range(len(values))], values, width, label=name)
    axis.set_xticks(range(len(by_rate)))
    axis.set_xticklabels(by_rate)
    axis.set_ylim(0, HEADROOM * max(r.tokens_per_s for runs in by_rate.values() for r in runs))
    axis.set_title("tokens/s by bandwidth of the links")
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)


def draw(by_rate):
    figure, axes = plt.subplots(2, 2, figsize=(13, 9), constrained_layout=True)
    runs = next(iter(by_rate.values()))
    start = runs[0].start
    draw_memory(axes[0, 0], runs)
    draw_sent(axes[0, 1], runs)
    draw_time(axes[1, 0], runs)
    if list(by_rate) == [""]:
        draw_loss(axes[1, 1], runs)
    else:
        draw_bandwidths(axes[1, 1], by_rate)
    for axis in axes.flat:
        axis.legend(fontsize=8, ncols=2, loc="upper right", framealpha=1)
    figure.suptitle(f"{start['model']['model']}, Ψ = {start['n_params'] / 1e6:.1f} M, N = {start['ranks']} ranks, "
                    f"{start['precision']['dtype']}")
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", metavar="DIR", help="what compare_stages.sh wrote")
    directory = parser.parse_args().directory
    path = lambda name: os.path.join(directory, name)
    try:
        by_rate = find_runs(directory)
        everything = [r for runs in by_rate.values() for r in runs]
        text = markdown(by_rate)
        with open(path("report.md"), "w", encoding="utf-8") as file:
            file.write(text)
        same, exact = bits_verdict(everything), exact_verdict(everything)
        with open(path("report.json"), "w", encoding="utf-8") as file:
            json.dump({"same_bits": same[0], "exact": exact[0], "runs": [r.json() for r in everything]}, file, indent=1)
        draw(by_rate).savefig(path("report.png"), dpi=110)
    except (OSError, ValueError, KeyError, StopIteration) as error:
        sys.exit(f"compare_stages.py: {type(error).__name__}: {error}")
    print("\n" + text + f"\nwrote {path('report.md')}, {path('report.json')}, {path('report.png')}")
    sys.exit(0 if same[0] and exact[0] else 1)


if __name__ == "__main__":
    main()
