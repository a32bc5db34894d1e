#!/usr/bin/env python3
"""The scripts that a user runs, as far as they can be tested without a long run: counting of tests, plots, arguments."""
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCRIPTS = os.path.join(ROOT, "scripts")
OK, SKIPPED, FAILED = "       OK ", "  SKIPPED ", "  FAILED  "  # as cmocka writes them


def run(*command, cwd=ROOT, **environment):
    return subprocess.run(command, cwd=cwd, text=True, capture_output=True, timeout=60, env={**os.environ, **environment})


class Scratch(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="zero_test_")
        self.addCleanup(shutil.rmtree, self.dir)

    def write(self, path, text, executable=False):
        path = os.path.join(self.dir, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        if executable:
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path


class RunTests(Scratch):
    """run_tests.sh in a tree of its own, with shell scripts as test programs that print what cmocka prints."""

    def setUp(self):
        super().setUp()
        os.makedirs(os.path.join(self.dir, "scripts"))
        shutil.copy(os.path.join(SCRIPTS, "run_tests.sh"), os.path.join(self.dir, "scripts"))

    def program(self, name, *lines):
        self.write(f"test/{name}.c", "")
        self.write(f"build/release/test/{name}", "#!/bin/sh\n" + "\n".join(lines) + "\n", executable=True)

    def cmocka(self, name, *results, code=0):
        lines = []
        for i, result in enumerate(results):
            lines += [f"echo '[ RUN      ] case_{i}'", f"echo '[{result}] case_{i}'"]
        self.program(name, *lines, "echo '[  SKIPPED ] 1 test(s), listed below:'", f"exit {code}")

    def last_line(self, *arguments, **environment):
        result = run("scripts/run_tests.sh", *arguments, cwd=self.dir, BUILD="build/release", **environment)
        return result.stdout.splitlines()[-1], result

    def test_counts_single_tests(self):
        self.cmocka("test_a", OK, OK, SKIPPED)
        self.cmocka("test_b", OK)
        line, result = self.last_line()
        self.assertEqual((line, result.returncode), ("3 passed, 0 failed, 1 skipped", 0), result.stdout + result.stderr)

    def test_failure_fails_and_shows_the_output(self):
        self.cmocka("test_a", OK, FAILED, code=1)
        line, result = self.last_line()
        self.assertEqual((line, result.returncode), ("1 passed, 1 failed, 0 skipped", 1), result.stdout)
        self.assertIn("| [ RUN      ] case_1", result.stdout)

    def test_crash_inside_a_test_counts_once(self):
        self.program("test_a", "echo '[ RUN      ] case'", "kill -ABRT $$")
        self.assertEqual(self.last_line()[0], "0 passed, 1 failed, 0 skipped")

    def test_programs_that_run_programs(self):
        inner = [f"echo '[{label}] {name}'" for name in ("a", "b") for label in (" RUN      ", OK)]
        outer = ["echo '[ RUN      ] outer'", *inner, f"echo '[{OK}] outer'"]
        self.program("test_a", *outer)
        self.assertEqual(self.last_line()[0], "3 passed, 0 failed, 0 skipped")
        outer.remove(f"echo '[{OK}] b'")
        self.program("test_a", *outer)
        self.assertEqual(self.last_line()[0], "2 passed, 0 failed, 0 skipped", "an inner program that was meant to die")
        outer.remove(f"echo '[{OK}] outer'")
        self.program("test_a", *outer)
        self.assertEqual(self.last_line()[0], "1 passed, 1 failed, 0 skipped")

    def test_crash_after_the_tests_counts(self):  # a leak found by the sanitizer, for example
        self.cmocka("test_a", OK, code=23)
        self.assertEqual(self.last_line()[0], "1 passed, 1 failed, 0 skipped")

    def test_program_that_is_missing_or_runs_nothing_fails(self):
        self.write("test/test_a.c", "")
        self.program("test_b", "true")
        self.assertEqual(self.last_line()[0], "0 passed, 2 failed, 0 skipped")

    def test_time_limit(self):
        self.program("test_a", "echo '[ RUN      ] case'", "sleep 30")
        line, result = self.last_line(TEST_TIMEOUT="1")
        self.assertEqual(line, "0 passed, 1 failed, 0 skipped")
        self.assertIn("stopped after 1 s", result.stdout)

    def test_python_programs(self):
        bodies = {"a": "pass", "b": "self.fail()", "c": "self.skipTest('why')", "d": "raise ValueError"}
        self.write("test/test_p.py", "import unittest\nclass T(unittest.TestCase):\n" + "".join(
            f"    def test_{name}(self): {body}\n" for name, body in bodies.items()) + "unittest.main()\n")
        line, result = self.last_line(PYTHON=sys.executable)
        self.assertEqual((line, result.returncode), ("1 passed, 2 failed, 1 skipped", 1), result.stdout)
        self.assertEqual(self.last_line("--c-only")[0], "0 passed, 0 failed, 0 skipped")

    def test_slow_programs_run_last_and_can_be_left_out(self):
        self.cmocka("test_a", OK)
        self.cmocka("test_b", OK)
        self.write("build/test_times", "test_a 99.0\n")
        line, result = self.last_line("--max-seconds", "10")
        self.assertEqual(line, "1 passed, 0 failed, 0 skipped")
        self.assertIn("left out", result.stdout)
        names = [text.split()[1] for text in self.last_line()[1].stdout.splitlines()[:-1]]
        self.assertEqual(names, ["test_b", "test_a"])


class Plot(Scratch):
    def plot(self, *arguments):
        out = os.path.join(self.dir, "plot.png")
        result = run(sys.executable, os.path.join(SCRIPTS, "plot.py"), *arguments, "--out", out, DISPLAY="")
        if not os.path.exists(out):
            return result, False
        with open(out, "rb") as file:
            return result, file.read(8) == b"\x89PNG\r\n\x1a\n"

    def log(self, name, n=60):
        events = [{"event": "start", "model": "gpt2-tiny"}]
        for step in range(1, n):
            events.append({"event": "step", "step": step, "loss": 5 / step if step != 7 else None, "norm": 1.0, "lr": 1e-3,
                           "tokens_per_s": 1e4})
        events.append({"event": "eval", "step": n - 1, "val_loss": 1.5})
        text = "\n".join(json.dumps(e) for e in events)
        return self.write(f"{name}/log.jsonl", text + '\n{"event":"step","st')

    def test_one_run(self):
        result, is_png = self.plot(self.log("a"))
        self.assertTrue(is_png and result.returncode == 0, result.stderr)
        self.assertIn("1 line(s)", result.stderr)

    def test_two_runs_by_directory(self):
        result, is_png = self.plot(os.path.dirname(self.log("a")), self.log("b", 5), "--smooth", "3")
        self.assertTrue(is_png and result.returncode == 0, result.stderr)

    def test_names_that_matplotlib_would_read_otherwise(self):
        result, is_png = self.plot(self.log("a$x_{$"), self.log("_b"), self.log("c/_b"))
        self.assertTrue(is_png and result.returncode == 0, result.stderr)

    def test_a_missing_package_is_named(self):
        self.write("site/sitecustomize.py", "import sys; sys.modules['matplotlib'] = None\n")
        result = run(sys.executable, os.path.join(SCRIPTS, "plot.py"), "a", PYTHONPATH=os.path.join(self.dir, "site"))
        self.assertEqual(result.returncode, 1)
        self.assertIn("package matplotlib is missing", result.stderr)
        self.assertNotIn("Traceback", result.stderr)

    def test_what_is_no_log(self):
        for path in (os.path.join(self.dir, "none.jsonl"), self.write("text", "hello\n"), self.write("empty", "")):
            result, is_png = self.plot(path)
            self.assertEqual((result.returncode, is_png), (1, False))
            self.assertIn(path, result.stderr)
            self.assertNotIn("Traceback", result.stderr)


class Arguments(unittest.TestCase):
    def test_unknown_arguments_are_refused(self):
        for script in ("install_deps.sh", "run_tests.sh", "quickstart.sh"):
            result = run(os.path.join(SCRIPTS, script), "--no-such-thing")
            self.assertEqual(result.returncode, 2, script)
            self.assertIn("--no-such-thing", result.stderr)

    def test_help_from_any_directory(self):
        for script in ("install_deps.sh", "quickstart.sh", "compare_stages.sh", "run_mpirun.sh"):
            result = run(os.path.join("..", "scripts", script), "--help", cwd=os.path.join(ROOT, "dev"))
            self.assertEqual((result.returncode, result.stderr), (0, ""), script)
            self.assertIn(script, result.stdout)
            self.assertNotIn("==", result.stdout)  # nothing else is done

    @unittest.skipUnless(shutil.which("dpkg-query") and shutil.which("apt-get"), "not Debian or Ubuntu")
    def test_nothing_is_missing_where_the_tests_run(self):
        result = run(os.path.join(SCRIPTS, "install_deps.sh"), "--check", "test")
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_scripts_parse(self):
        for name in os.listdir(SCRIPTS):
            if name.endswith(".sh"):
                result = run("bash", "-n", os.path.join(SCRIPTS, name))
                self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    unittest.main()
