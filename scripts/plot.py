#!/usr/bin/env python3
"""Draw loss, learning rate, gradient norm and speed of one or several runs.

    scripts/plot.py runs/a/log.jsonl runs/b/log.jsonl --out compare.png

A run is a log.jsonl, or a directory that holds one. Needs matplotlib (package python3-matplotlib), and no display.
"""
import argparse
import json
import math
import os
import sys

try:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt  # noqa: E402  (after the choice of backend)
except ImportError as missing:
    sys.exit(f"plot.py: the Python package {missing.name} is missing in {sys.executable} (Debian, Ubuntu: apt-get install "
             "python3-matplotlib, which is for /usr/bin/python3; elsewhere: pip install matplotlib)")


class Run:
    """The step and eval events of a log. A resumed run may repeat steps; the later line holds."""

    def __init__(self, path):
        if os.path.isdir(path):
            path = os.path.join(path, "log.jsonl")
        self.name = os.path.basename(os.path.dirname(os.path.abspath(path)))
        self.directory = os.path.dirname(os.path.abspath(path))
        self.steps, self.evals, n_bad = {}, {}, 0
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    event = json.loads(line)
                    {"step": self.steps, "eval": self.evals}.get(event["event"], {})[event.get("step")] = event
                except (ValueError, KeyError, TypeError):
                    n_bad += 1  # the last line of a run that is still writing, or was killed
        if n_bad:
            print(f"{path}: {n_bad} line(s) are not events and were left out", file=sys.stderr)
        if not self.steps and not self.evals:
            raise ValueError(f"{path}: no step or eval event in it; is it the log.jsonl of a run?")

    def series(self, events, key):
        """Steps and values of a key, in order of steps; null (not finite) becomes a gap in the line."""
        points = sorted((step, event[key]) for step, event in events.items() if key in event)
        return [p[0] for p in points], [math.nan if p[1] is None else float(p[1]) for p in points]


def smoothed(values, window):
    """Mean of the last `window` finite values."""
    result, kept = [], []
    for value in values:
        if math.isfinite(value):
            kept = (kept + [value])[-window:]
        result.append(sum(kept) / len(kept) if kept else math.nan)
    return result


def labels(runs):
    """Names for the legend, as matplotlib shows them: it takes $ for mathematics and a leading _ for "leave out"."""
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [run.directory for run in runs]
    return [" " * name.startswith("_") + name.replace("$", r"\$") for name in names]


def draw(runs, window):
    names = labels(runs)
    figure, axes = plt.subplots(2, 2, figsize=(12, 8), constrained_layout=True)
    panels = [("loss", "loss"), ("lr", "learning rate"), ("norm", "gradient norm"), ("tokens_per_s", "tokens/s")]
    for axis, (key, title) in zip(axes.flat, panels):
        for i, run in enumerate(runs):
            color = f"C{i % 10}"
            steps, values = run.series(run.steps, key)
            width = window or max(1, len(values) // 50)
            if key != "lr" and width > 1:
                axis.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
                values = smoothed(values, width)
            axis.plot(steps, values, color=color, label=names[i] + (", train" if key == "loss" else ""))
            if key == "loss" and run.evals:
                steps, values = run.series(run.evals, "val_loss")
                axis.plot(steps, values, "--o", color=color, markersize=4, label=f"{names[i]}, validation")
                if values:
                    axis.annotate(f"{values[-1]:.3f}", (steps[-1], values[-1]), textcoords="offset points",
                                  xytext=(0, 8), ha="right", color=color)
        axis.set_title(title)
        axis.set_xlabel("step")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
        if key == "tokens_per_s":
            axis.set_ylim(bottom=0)
    if len(runs) > 1 or runs[0].evals:
        axes.flat[0].legend()
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="RUN", help="log.jsonl of a run, or the run's directory")
    parser.add_argument("--out", default="loss.png", help="image to write (default: %(default)s)")
    parser.add_argument("--smooth", type=int, default=0, metavar="N",
                        help="average over N logged steps (default: a fiftieth of the run; 1: none)")
    arguments = parser.parse_args()
    if arguments.smooth < 0:
        parser.error("--smooth must not be negative")
    try:
        runs = [Run(path) for path in arguments.runs]
        draw(runs, arguments.smooth).savefig(arguments.out, dpi=120)
    except (OSError, ValueError) as error:
        sys.exit(f"plot.py: {error}")
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
