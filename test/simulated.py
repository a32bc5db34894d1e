"""What the tests of the CUDA backend share: programs built with the simulator (dev/cudasim) and how they are run."""
import os
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SIM = os.path.join(ROOT, "build", "cudasim")
ORDERS = [{"order": "inorder"}, {"order": "reverse"}, {"order": "random", "seed": 7}]


def build(target="cuda_tests"):
    """Build in all modes; without the CUDA headers the module is skipped."""
    make = subprocess.run(["make", "-s", "-j2", target], cwd=ROOT, capture_output=True, text=True)
    if "No rule to make target" in make.stderr:
        print("SKIPPED: the CUDA headers are not here, or CUDA=0 leaves them out, so nothing of CUDA can be checked on this "
              "machine (the CUDA toolkit has them; CUDA_HOME says where)", file=sys.stderr)
        raise unittest.SkipTest("no CUDA headers")
    if make.returncode != 0:
        raise RuntimeError(f"make {target}:\n" + make.stdout + make.stderr)


def run(mode, program, *arguments, **settings):
    """Exit status and all output; settings of the simulator without their prefix, in lower case."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CUDASIM_")}
    environment.update({"CUDASIM_" + k.upper(): str(v) for k, v in settings.items()})
    done = subprocess.run([os.path.join(SIM, mode, program), *arguments], env=environment, timeout=230,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    return done.returncode, done.stdout
