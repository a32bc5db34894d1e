#!/usr/bin/env python3
"""Runs what test/test_zero_bits.py takes a sample of: every configuration of test/zero_runs.py, compared class by class.

    dev/matrix.sh [--part I/K] [--ranks N] [--offload] [--again] [--device cudasim]     see dev/matrix.sh
"""
import argparse
import collections
import hashlib
import json
import os
import shutil
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "test"))
import zero_runs  # noqa: E402

RESULTS = os.path.join(ROOT, "build", "matrix.jsonl")


def key_of(config):
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def program_id(device):
    """Changes with any of the programs that are run."""
    digest = hashlib.sha256()
    faults = zero_runs.SIMULATED if device == "cudasim" else zero_runs.SAME["faults"]
    programs = {zero_runs.program_of({"faults": one}, device)[0] for one in faults}
    for program in sorted(programs):
        with open(program, "rb") as f:
            digest.update(f.read())
    return digest.hexdigest()[:16]


def load_done(program):
    """Results of earlier calls with this very program."""
    if not os.path.exists(RESULTS):
        return {}
    with open(RESULTS, encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    return {line["key"]: line for line in lines if line["program"] == program}


def run_one(config, directory, train, program, device):
    out = os.path.join(directory, key_of(config))
    run = zero_runs.run_config(config, train, out, device)
    line = {"key": key_of(config), "program": program, "code": run.code,
            "hashes": list(run.hashes) if run.code == 0 else [], "error": run.error[-500:] if run.code else ""}
    shutil.rmtree(out, ignore_errors=True)
    return line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="1/1", help="part I of K of the classes")
    parser.add_argument("--ranks", type=int, help="only classes of so many ranks")
    parser.add_argument("--offload", action="store_true", help="each way to offload instead of what else must not matter")
    parser.add_argument("--again", action="store_true", help="forget earlier results")
    parser.add_argument("--device", choices=("cpu", "cudasim"), default="cpu")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    if options.again and os.path.exists(RESULTS):
        os.remove(RESULTS)

    product = (zero_runs.simulated_product() if options.device == "cudasim" else
               zero_runs.offload_product() if options.offload else zero_runs.full_product())
    classes = [c for c in product if options.ranks in (None, c[0]["ranks"])][part - 1::parts]
    n = sum(len(configs) for _, configs in classes)
    program = program_id(options.device)
    done = load_done(program)
    print(f"{n} configurations in {len(classes)} classes; {len(done)} results of this program are in {RESULTS}", flush=True)

    counts = collections.Counter()
    directory = tempfile.mkdtemp(prefix="matrix_")
    try:
        train, _ = zero_runs.make_data(directory)
        for number, (bits, configs) in enumerate(classes):
            missing = [config for config in configs if key_of(config) not in done]
            for line in zero_runs.in_parallel(lambda c: run_one(c, directory, train, program, options.device), missing):
                done[line["key"]] = line
                with open(RESULTS, "a", encoding="utf-8") as f:
                    f.write(json.dumps(line) + "\n")
            expected = {}
            for config in configs:
                line, stages = done[key_of(config)], zero_runs.same_bits(bits, config["stage"])
                good = line["code"] == 0 and line["hashes"] == expected.setdefault(stages, line["hashes"])
                counts["same bits" if good else "different" if line["code"] == 0 else "failed"] += 1
                if not good:
                    print(f"  ✗ {json.dumps(config)}: {line['hashes']} {line['error']}", flush=True)
            print(f"class {number + 1}/{len(classes)}: {dict(counts)}", flush=True)
    finally:
        shutil.rmtree(directory)
    bad = counts["different"] + counts["failed"]
    print(f"{n} configurations: {counts['same bits']} with the same bits, {counts['different']} different, "
          f"{counts['failed']} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
