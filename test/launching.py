"""What the tests of the launchers share: the stand-in for train_gpt, bounded runs, waiting."""
import atexit
import glob
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCRIPTS = os.path.join(ROOT, "scripts")
RUN_MPIRUN = os.path.join(SCRIPTS, "run_mpirun.sh")
PATIENCE = 60  # seconds: on an idle machine all takes a few, on a busy one much more
_trainer = None


def _interrupt(*_):
    raise KeyboardInterrupt


# A test program that runs into its time limit gets SIGTERM; what it has registered with atexit is then cleaned up.
signal.signal(signal.SIGTERM, _interrupt)


def build_trainer():
    """Path of test/mpi/trainer.c's program, built once."""
    global _trainer
    if not _trainer:
        if not shutil.which("mpicc"):
            raise unittest.SkipTest("there is no mpicc (package libopenmpi-dev)")
        directory = tempfile.mkdtemp(prefix="zero_trainer_")
        atexit.register(shutil.rmtree, directory)
        _trainer = os.path.join(directory, "trainer")
        subprocess.run(["mpicc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Wshadow", "-Werror",
                        os.path.join(ROOT, "test/mpi/trainer.c"), "-o", _trainer], check=True, timeout=60)
    return _trainer


def wait_for(condition, what, seconds=PATIENCE):
    """Poll until condition() is true and return its value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {seconds} s")


def kill_all_of(text):
    """SIGKILL to every process that has the text in its command line, as often as it takes: ranks live on for a while when
    their mpirun is gone."""
    def left():
        pids = []
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                with open(path, "rb") as file:
                    if text.encode() in file.read():
                        pids.append(int(path.split("/")[2]))
                        os.kill(pids[-1], signal.SIGKILL)
            except OSError:  # it has ended meanwhile
                pass
        return pids

    wait_for(lambda: not left(), f"the end of all processes of {text}")


class Scratch(unittest.TestCase):
    """A test with a directory of its own, self.dir, and processes that end with it."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="zero_launch_")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.dir, name)

    def read(self, name):
        path = self.path(name)
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8") as file:
            return file.read()

    def write_program(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(self.path(name), 0o755)
        return self.path(name)

    def start(self, *command, **environment):
        """Start a command; its output goes to the file `output`."""
        with open(self.path("output"), "w", encoding="utf-8") as output:
            process = subprocess.Popen(command, cwd=self.dir, stdout=output, stderr=subprocess.STDOUT,
                                       stdin=subprocess.DEVNULL, env={**os.environ, **environment})
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        """The launcher ends its ranks on a second SIGTERM; killing it at once would leave them."""
        for _ in range(2):
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(timeout=5)
                except subprocess.TimeoutExpired:
                    pass
        if process.poll() is None:
            process.kill()
            process.wait()

    def run_to_end(self, *command, seconds=2 * PATIENCE, **environment):
        """Exit status of a command that has to end by itself."""
        process = self.start(*command, **environment)
        try:
            return process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.fail(f"not ended after {seconds} s:\n{self.read('output')}")

    def assert_status(self, expected, status):
        self.assertEqual(expected, status, "output:\n" + self.read("output"))

    def events(self, name="run/log"):
        """Lines of the trainer's log; the signal's number and steps that depend on time become N."""
        return [re.sub(r"(start) [1-9]\d*", r"\1 N", line) for line in self.read(name).splitlines()]
