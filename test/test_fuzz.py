#!/usr/bin/env python3
"""Everything that reads a file from outside bears what libFuzzer makes up: each target of test/fuzz runs over its corpus,
where earlier findings are, and then for a few seconds. dev/fuzz.sh does it for longer.

The targets are built by `make tests` (or `make fuzz`) where clang has libFuzzer.
"""
import glob
import os
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, "build", "fuzz")
TARGETS = sorted(os.path.basename(path)[:-2] for path in glob.glob(os.path.join(ROOT, "test", "fuzz", "fuzz_*.c")))
SECONDS = 24  # for all targets together, without the time that the corpora take


class Fuzz(unittest.TestCase):
    def fuzz(self, target):
        program = os.path.join(BUILD, target)
        if not os.path.exists(program):
            reason = "not built: run make fuzz" if shutil.which("clang") else "there is no clang, whose libFuzzer it needs"
            print(f"SKIPPED {target}: {reason}")
            self.skipTest(reason)
        findings = tempfile.mkdtemp(prefix="zero_findings_")
        corpus = os.path.join(ROOT, "test", "fuzz", "corpus", target[len("fuzz_"):])
        with tempfile.TemporaryDirectory(prefix="zero_corpus_") as new:
            run = subprocess.run([program, f"-max_total_time={SECONDS // len(TARGETS)}", "-max_len=16384", "-timeout=20",
                                  "-rss_limit_mb=1024", "-malloc_limit_mb=256", f"-artifact_prefix={findings}/",
                                  "-print_final_stats=1", "-verbosity=0", new, corpus], capture_output=True, text=True, timeout=200)
        if run.returncode == 0:
            shutil.rmtree(findings)
        self.assertEqual(run.returncode, 0, f"{target} found an input, which is in {findings}:\n{run.stderr[-4000:]}")


for name in TARGETS:
    setattr(Fuzz, "test_" + name[len("fuzz_"):], lambda self, name=name: self.fuzz(name))

if __name__ == "__main__":
    unittest.main()
