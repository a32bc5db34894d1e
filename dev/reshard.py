#!/usr/bin/env python3
"""Runs what test/test_reshard.py takes a sample of: every checkpoint loaded by every number of ranks in every stage."""
import argparse
import os
import random
import shutil
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "test"))
import test_reshard as reshard  # noqa: E402
import zero_runs  # noqa: E402


def check_all(cases, train, directory):
    """The faults of all cases of one checkpoint."""
    saved = os.path.join(directory, "saved")
    whole, hashes = reshard.save(cases[0], train, saved)
    if whole.code != 0:
        return [whole.error] * len(cases)

    def check_one(item):
        number, case = item
        return reshard.check(case, train, saved, whole, hashes, os.path.join(directory, str(number)))

    return zero_runs.in_parallel(check_one, enumerate(cases))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="1/1", help="part I of K of the checkpoints, a mixture of all kinds")
    part, parts = map(int, parser.parse_args().part.split("/"))
    everything = reshard.full_product()
    random.Random(1).shuffle(everything)
    everything = everything[part - 1::parts]
    root = tempfile.mkdtemp(prefix="reshard_")
    good = bad = 0
    try:
        train, _ = zero_runs.make_data(root)
        for number, cases in enumerate(everything):
            directory = os.path.join(root, "one")
            os.mkdir(directory)
            for case, fault in zip(cases, check_all(cases, train, directory)):
                good += fault == ""
                bad += fault != ""
                if fault:
                    print(f"  ✗ {case}: {fault}", flush=True)
            shutil.rmtree(directory)
            print(f"checkpoint {number + 1}/{len(everything)}: {good} loads good, {bad} bad", flush=True)
    finally:
        shutil.rmtree(root)
    print(f"{len(everything)} checkpoints, {good + bad} loads: {good} good, {bad} bad")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
