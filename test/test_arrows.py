#!/usr/bin/env python3
"""Who includes whom: the arrows between the rooms of the house, checked over the tree, so that the picture stays true.

    train_gpt.c   everything but backends of llm/
    zero/         zero/ and llm/, not data/; what is compiled for GPUs (comm_nccl) also the headers named below
    data/         data/, and of llm/ only the basics below
    llm/          llm/ alone; llm/cpu and llm/cuda are reached through device.h and ops.h only
    test/, dev/   everything

MPI and NCCL stay in zero/, HDF5 in zero/ and data/. Every quoted include is a path from the root of this repository.
"""
import os
import pathlib
import re
import subprocess
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCE = re.compile(r"\.(c|h|cu|cuh|cpp)$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
BASICS = {"llm/config.h", "llm/status.h", "llm/dtype.h", "llm/utf8.h"}  # what data/ may use of llm/
# What zero/comm_nccl may use: the kernels' headers, and how a library is loaded when a GPU is used.
CUDA_HEADERS = {f"llm/cuda/{name}.cuh" for name in ("cuda", "launch", "library", "vec")}
LONG = 400  # lines, before one asks whether a file is two things


def room(path):
    for backend in ("llm/cpu", "llm/cuda"):
        if path.startswith(backend + "/"):
            return backend
    return path.split("/")[0] if "/" in path else "main"


ALLOWED = {
    "main": {"llm", "zero", "data"},
    "zero": {"zero", "llm"},
    "data": {"data"},
    "llm": {"llm"},
    "llm/cpu": {"llm", "llm/cpu"},
    "llm/cuda": {"llm", "llm/cuda"},
    "test": {"main", "llm", "llm/cpu", "llm/cuda", "zero", "data", "test", "dev"},
    "dev": {"main", "llm", "llm/cpu", "llm/cuda", "zero", "data", "test", "dev"},
}
LIBRARIES = {
    "mpi.h": {"zero", "test", "dev"},
    "nccl.h": {"zero", "test", "dev"},
    "hdf5.h": {"zero", "data", "test", "dev"},
}


def sources():
    """Path → text of every source file: those git knows or would add; without git, all."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        paths = listed.stdout.splitlines()
    else:
        paths = [os.path.relpath(os.path.join(d, f), ROOT) for d, _, files in os.walk(ROOT) for f in files]
        paths = [p for p in paths if not p.startswith(("build/", "."))]
    paths = [p for p in paths if SOURCE.search(p) and os.path.exists(os.path.join(ROOT, p))]
    return {p: pathlib.Path(ROOT, p).read_text(encoding="utf-8") for p in sorted(paths)}


class Arrows(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.files = sources()
        cls.includes = {path: INCLUDE.findall(text) for path, text in cls.files.items()}

    def quoted(self):
        for path, includes in self.includes.items():
            for kind, target in includes:
                if kind == '"':
                    yield path, target

    def test_there_is_something_to_check(self):
        self.assertIn("llm/ops.h", self.files)

    def test_every_source_is_in_a_known_room(self):
        self.assertEqual([p for p in self.files if room(p) not in ALLOWED], [])

    def test_includes_are_files_of_this_tree(self):
        wrong = [f"{path} includes \"{target}\"" for path, target in self.quoted()
                 if target.startswith(("/", ".")) or ".." in target.split("/") or target not in self.files]
        self.assertEqual(wrong, [], "quoted includes are paths from the repository's root")

    def test_arrows(self):
        wrong = []
        for path, target in self.quoted():
            allowed = (room(target) in ALLOWED[room(path)] or (room(path) == "data" and target in BASICS)
                       or (path.startswith("zero/comm_nccl") and target in CUDA_HEADERS))
            if not allowed:
                wrong.append(f"{path} includes {target}")
        self.assertEqual(wrong, [])

    def test_libraries_stay_in_their_rooms(self):
        wrong = [f"{path} includes <{target}>" for path, includes in self.includes.items()
                 for kind, target in includes if room(path) not in LIBRARIES.get(target, {room(path)})]
        self.assertEqual(wrong, [])

    def test_no_cycles(self):
        graph = {}
        for path, target in self.quoted():
            graph.setdefault(path, []).append(target)
        done = set()

        def visit(path, trail):
            self.assertNotIn(path, trail, "headers that include each other")
            if path not in done:
                for target in graph.get(path, []):
                    visit(target, trail + [path])
                done.add(path)

        for path in graph:
            visit(path, [])

    def test_length_report(self):
        lengths = sorted(((text.count("\n"), path) for path, text in self.files.items()), reverse=True)
        for lines, path in lengths:
            if lines > LONG:
                print(f"{path}: {lines} lines (more than {LONG}: is it two things?)")


if __name__ == "__main__":
    unittest.main()
