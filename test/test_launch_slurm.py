#!/usr/bin/env python3
"""scripts/train.sbatch under a Slurm of its own with two virtual nodes on this machine; needs root and Slurm.

The jobs of all tests start together, two on a node's two CPUs, because Slurm is slow: it looks at time limits twice a
minute.
"""
import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from launching import PATIENCE, SCRIPTS, build_trainer, wait_for

PROGRAMS = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "munged": "munge"}
JOBS_AT_ONCE = 5


def why_not():
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    missing = sorted({package for program, package in PROGRAMS.items() if not shutil.which(program)})
    return f"Slurm is not installed: apt-get install {' '.join(missing)} slurm-wlm-basic-plugins" if missing else None


def free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Slurm:
    """munged, slurmctld and two slurmd in a directory, apart from any Slurm that this machine may have."""

    def __init__(self, root):
        self.root = root
        self.daemons = []
        self.environment = {**os.environ, "SLURM_CONF": f"{root}/slurm.conf"}
        host = socket.gethostname().split(".")[0]
        ports = free_ports(3)
        os.chmod(root, 0o711)  # munged wants a socket that everybody can reach
        for name in ("state", "spool/n1", "spool/n2", "tmp/n1", "tmp/n2"):
            os.makedirs(f"{root}/{name}")
        with open(f"{root}/munge.key", "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(os.urandom(1024))
        nodes = "".join(f"NodeName=n{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[i]} CPUs={JOBS_AT_ONCE}\n"
                        for i in (1, 2))
        with open(f"{root}/slurm.conf", "w", encoding="utf-8") as file:
            file.write(f"""ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={root}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
StateSaveLocation={root}/state
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmdSpoolDir={root}/spool/%n
TmpFS={root}/tmp/%n
KillWait=5
ReturnToService=2
{nodes}PartitionName=all Nodes=n1,n2 Default=YES
""")

    def start(self):
        self.daemon("munged", "--foreground", f"--socket={self.root}/munge.socket", f"--key-file={self.root}/munge.key",
                    f"--pid-file={self.root}/munged.pid", f"--log-file={self.root}/munged.log",
                    f"--seed-file={self.root}/munged.seed")
        wait_for(lambda: os.path.exists(f"{self.root}/munge.socket"), "munged's socket")
        self.daemon("slurmctld", "-D", "-i", "-f", f"{self.root}/slurm.conf")
        for node in ("n1", "n2"):
            self.daemon("slurmd", "-D", "-N", node, "-f", f"{self.root}/slurm.conf")
        wait_for(lambda: self.run("sinfo", "-h", "-o", "%T %D", check=False).strip() == "idle 2", "two idle nodes")

    def daemon(self, *command):
        with open(f"{self.root}/daemons.log", "a", encoding="utf-8") as log:
            self.daemons.append(subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                                 env=self.environment, cwd=self.root))

    def stop(self):
        """End everything that works in this directory: the daemons, and what is left of their jobs."""
        atexit.unregister(self.stop)
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
                    places = [os.readlink(f"/proc/{pid}/cwd"), file.read()]
                if int(pid) != os.getpid() and any(self.root in place for place in places):
                    os.kill(int(pid), signal.SIGKILL)
            except OSError:
                pass  # it ended meanwhile
        for daemon in self.daemons:
            daemon.wait()

    def run(self, *command, check=True):
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=PATIENCE, check=check, env=self.environment, cwd=self.root).stdout


class Job:
    """A job of train.sbatch with the trainer: one rank on each node."""

    def __init__(self, slurm, name, sbatch_options, *options):
        self.slurm, self.name = slurm, name
        self.out = f"{slurm.root}/{name}"
        os.mkdir(self.out)
        self.id = slurm.run("sbatch", "--parsable", f"--job-name={name}", f"--output={self.out}/output",
                            *sbatch_options, f"{SCRIPTS}/train.sbatch",
                            build_trainer(), "--out", self.out, *options).strip()

    def read(self, file):
        path = f"{self.out}/{file}"
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8") as f:
            return f.read()

    def show(self, key):
        words = self.slurm.run("scontrol", "show", "job", self.id).split()
        return dict(word.split("=", 1) for word in words if "=" in word).get(key)

    def wait_for(self, condition, what):
        try:
            return wait_for(condition, f"job {self.name}: {what}", 2 * PATIENCE)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.show('JobState')}; output:\n{self.read('output')}") from None

    def wait_for_state(self, state):
        self.wait_for(lambda: self.show("JobState") == state, state)

    def wait_for_steps(self):
        self.wait_for(lambda: os.path.exists(f"{self.out}/step_00000010"), "first steps")

    def wait_for_restart(self):
        """Slurm waits two minutes before it starts a job again: hurry."""
        self.wait_for(lambda: self.show("Restarts") == "1" and self.show("JobState") == "PENDING", "queued again")

        def started():
            # Not in the second in which it ended: Slurm takes such a start for a replay and refuses it.
            time.sleep(2)
            self.slurm.run("scontrol", "update", f"jobid={self.id}", "StartTime=now", check=False)
            return self.read("log").count("start") == 2
        self.wait_for(started, "second start")


class WithoutSlurm(unittest.TestCase):
    def test_refused(self):
        for arguments, message in [([], "what shall run"), (["true"], "start it with sbatch")]:
            process = subprocess.run(["bash", f"{SCRIPTS}/train.sbatch", *arguments], capture_output=True, text=True,
                                     timeout=20)
            self.assertEqual(2, process.returncode)
            self.assertIn(message, process.stderr)


@unittest.skipIf(why_not(), why_not())
class TrainSbatch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        root = tempfile.mkdtemp(prefix="zero_slurm_")
        cls.addClassCleanup(shutil.rmtree, root, ignore_errors=True)
        cls.slurm = Slurm(root)
        cls.addClassCleanup(cls.slurm.stop)
        atexit.register(cls.slurm.stop)
        cls.slurm.start()
        if "pmix" not in cls.slurm.run("srun", "--mpi=list"):
            raise unittest.SkipTest("this Slurm has no PMIx plugin")
        endless = ["--steps", "1000000", "--pause-ms", "20"]
        cls.limited = Job(cls.slurm, "limited", ["--time=1", "--signal=B:USR1@20"], *endless)
        cls.failing = Job(cls.slurm, "failing", [], "--steps", "60", "--pause-ms", "20", "--kill-at", "25")
        cls.hopeless = Job(cls.slurm, "hopeless", [], "--no-such-option")
        cls.cancelled = Job(cls.slurm, "cancelled", [], *endless)
        cls.stopped = Job(cls.slurm, "stopped", [], *endless)

    def test_time_limit(self):
        """Slurm's own signal before the limit: save, queue again, go on."""
        job = self.limited
        job.wait_for_restart()
        self.assertIn("saved after signal 12", job.read("log"))
        self.assertEqual("failures:0", job.show("Comment"))
        saved = max(int(name[5:]) for name in os.listdir(job.out) if name.startswith("step_"))
        started = int(job.read("log").split("start")[2].split()[0])
        self.assertGreater(started, 0)
        self.assertLessEqual(started, saved)
        self.assertIn("start 2, 2 ranks on 2 nodes", job.read("output"))

    def test_failure(self):
        """A rank that dies ends all ranks; the job is queued again and finishes."""
        job = self.failing
        job.wait_for_restart()
        self.assertEqual("failures:1", job.show("Comment"))
        job.wait_for_state("COMPLETED")
        self.assertEqual(["start 0", "start 20", "done 60"], job.read("log").splitlines())

    def test_bad_usage(self):
        self.hopeless.wait_for_state("FAILED")
        self.assertEqual("2:0", self.hopeless.show("ExitCode"))
        self.assertEqual("0", self.hopeless.show("Restarts"))

    def test_scancel(self):
        job = self.cancelled
        job.wait_for_steps()
        self.slurm.run("scancel", job.id)
        job.wait_for_state("CANCELLED")
        job.wait_for(lambda: "saved after signal 15" in job.read("log"), "saved")

    def test_stop_without_queueing_again(self):
        job = self.stopped
        job.wait_for_steps()
        self.slurm.run("scancel", "--batch", "--signal=USR2", job.id)
        job.wait_for_state("FAILED")
        self.assertEqual("3:0", job.show("ExitCode"))
        self.assertEqual("0", job.show("Restarts"))
        self.assertIn("saved after signal 12", job.read("log"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
