#!/usr/bin/env python3
"""scripts/run_mpirun.sh on this machine: the mpirun command that it makes, signals, exit statuses, restarts."""
import os
import shlex
import shutil
import signal
import subprocess
import time
import unittest
from unittest import mock

from launching import PATIENCE, RUN_MPIRUN, SCRIPTS, Scratch, wait_for

# Does what mpirun does to one rank, in no time: scenarios with many starts use it.
QUICK_MPIRUN = """#!/bin/sh
[ "$1" != --version ] || { echo "mpirun (Open MPI) 4.1.4"; exit; }
while [ "${1##*/}" != trainer.sh ]; do shift; done
exec "$@"
"""

# Writes down each start, then does as its first argument says.
TRAINER = """#!/bin/bash
trap 'echo USR2 >>log; echo saved; exit 3' USR2
trap 'echo USR1 >>log' USR1
trap 'echo TERM >>log' TERM
echo start >>log
starts=$(grep -c start log)
case $1 in
    exit) exit "$2" ;;
    third) [ "$starts" -ge 3 ] ;;
    progress) mkdir -p "run/step_0000000$starts"; [ "$starts" -ge 4 ] ;;
    wait) while :; do sleep 0.1; done ;;
    deaf) trap '' USR2 TERM; while :; do sleep 0.1; done ;;
    stalls) [ "$starts" -ge 2 ] || { touch run/heartbeat.json; while :; do sleep 0.1; done; } ;;
esac
"""

# Stand-ins for Slurm's commands: srun ends as SRUN_STATUS says after a second, scontrol writes down what it is asked.
SRUN = "#!/bin/sh\nsleep 1\nexit $SRUN_STATUS\n"
SCONTROL = '#!/bin/sh\n[ "$1" = show ] || echo "$*" >>scontrol.log\n'


@unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun (package openmpi-bin)")
class Options(Scratch):
    def command(self, *options, status=0):
        """The mpirun command of --dry-run, or what is said when there is none."""
        process = subprocess.run([RUN_MPIRUN, "--dry-run", *options], capture_output=True, text=True, timeout=PATIENCE,
                                 cwd=self.dir)
        self.assertEqual(status, process.returncode, process.stderr)
        return shlex.split(process.stdout) if status == 0 else process.stderr

    def assert_has(self, command, *words):
        self.assertIn(" ".join(words), " ".join(command))

    def test_one_machine(self):
        command = self.command("-n", "2", "--threads", "1", "sh", "--model", "m", "--device", "cpu")
        self.assert_has(command, "--host", "localhost:2", "-n", "2")
        self.assertEqual([os.path.realpath("/bin/sh"), *"--model m --device cpu --threads 1".split()], command[-7:])

    def test_hosts_and_ranks(self):
        for options, host, n in [
            (["--hosts", "a,b", "-n", "4"], "a:2,b:2", "4"),
            (["--hosts", "a,b", "-n", "3"], "a:2,b:2", "3"),
            (["--hosts", "a:3,b:3"], "a:3,b:3", "6"),
            (["--hosts=a,b", "--ranks-per-host=2"], "a:2,b:2", "4"),
            (["--hostfile", "hosts"], "c:2,d:2", "4"),
            (["--hostfile", "nodes"], "e:2,f:2", "4"),
        ]:
            with open(self.path("hosts"), "w", encoding="utf-8") as file:
                file.write("# two\nc slots=2\n\nd   slots = 2 # the other\n")
            with open(self.path("nodes"), "w", encoding="utf-8") as file:
                file.write("e\ne\nf\nf\n")
            with self.subTest(options):
                self.assert_has(self.command(*options, "sh"), "--host", host, "-n", n)

    def test_threads_and_binding(self):
        cores = len(os.sched_getaffinity(0))
        command = self.command("-n", "1", "--threads", str(cores), "sh")
        if command[command.index("--bind-to") + 1] == "core":  # one hardware thread a core
            self.assert_has(command, "--map-by", f"ppr:1:node:PE={cores}")
        self.assert_has(self.command("-n", str(cores + 1), "sh"), "--bind-to", "none", "--oversubscribe")
        self.assert_has(self.command("--bind", "none", "-n", "1", "sh"), "--map-by", "ppr:1:node", "--bind-to", "none")
        command = self.command("-n", "1", "sh", "--threads=1")
        self.assertEqual(command[-1], "--threads=1")
        self.assert_has(command, "-x", "OMP_NUM_THREADS=1")
        with mock.patch.dict(os.environ, OMP_NUM_THREADS="1"):  # nproc heeds it; the machine has no fewer cores
            command = self.command("--bind", "none", "-n", "1", "sh")
        self.assertEqual(command, self.command("--bind", "none", "-n", "1", "sh"))

    def test_network_and_environment(self):
        command = self.command("--interface", "eth7", "--ssh-agent", "ssh -q", "--env", "A=b c", "--mca", "k", "v",
                               "sh")
        self.assert_has(command, "--mca", "btl_tcp_if_include", "eth7", "--mca", "oob_tcp_if_include", "eth7")
        self.assertIn("NCCL_SOCKET_IFNAME=eth7", command)
        self.assertEqual(command[command.index("plm_rsh_agent") + 1], "ssh -q")
        self.assertEqual(command[command.index("A=b c") - 1], "-x")
        self.assert_has(command, "--mca", "k", "v")
        self.assert_has(command, "--mca", "oob_tcp_keepalive_time", "5")

    def test_bad_usage(self):
        with open(self.path("unequal"), "w", encoding="utf-8") as file:
            file.write("a slots=2\nb slots=4\n")
        for options, message in [
            ([], "what shall run"),
            (["no_such_program"], "there is no program no_such_program"),
            (["--frob", "1", "sh"], "unknown option --frob"),
            (["-n", "none", "sh"], "-n must be a number"),
            (["-n"], "-n needs a value"),
            (["--bind", "socket", "sh"], "--bind must be core or none"),
            (["--stall-timeout", "5", "sh"], "--stall-timeout needs the program's --out"),
            (["--hosts", "a;b", "sh"], "'a;b' is not the name of a host"),
            (["--hosts", "a", "--hostfile", "b", "sh"], "exclude each other"),
            (["--hostfile", "missing", "sh"], "cannot read --hostfile missing"),
            (["--hostfile", "unequal", "sh"], "hosts must be alike"),
            (["--hosts", "a:2,b:2", "-n", "5", "sh"], "5 ranks do not fit"),
        ]:
            with self.subTest(options):
                self.assertIn(message, self.command(*options, status=2))

    def test_pkill_is_needed(self):
        os.mkdir(self.path("bin"))
        for name in ("bash", "mpirun", "realpath", "head", "tail", "sh"):
            os.symlink(shutil.which(name), self.path("bin/" + name))
        with mock.patch.dict(os.environ, PATH=self.path("bin")):
            self.assertIn("needs pkill (package procps)", self.command("sh", status=2))

    def test_help(self):
        text = subprocess.run([RUN_MPIRUN, "--help"], capture_output=True, text=True, timeout=PATIENCE,
                              check=True).stdout
        for option in ("--hostfile", "--interface", "--max-restarts", "--save-timeout", "--dry-run"):
            self.assertIn(option, text)

    def test_shellcheck(self):
        if not shutil.which("shellcheck"):
            self.skipTest("there is no shellcheck")
        scripts = [os.path.join(SCRIPTS, name) for name in ("run_mpirun.sh", "train.sbatch", "hosts.sh")]
        process = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, timeout=60)
        self.assertEqual(0, process.returncode, process.stdout)


class Supervised(Scratch):
    def setUp(self):
        super().setUp()
        self.trainer = self.write_program("trainer.sh", TRAINER)
        os.mkdir(self.path("run"))

    def starts(self):
        return self.read("log").count("start")


class BatchJob(Scratch):
    """What scripts/train.sbatch makes of an exit status, without Slurm (test_launch_slurm.py has it)."""

    def run_job(self, status, *arguments):
        self.write_program("srun", SRUN)
        self.write_program("scontrol", SCONTROL)
        return self.run_to_end("bash", os.path.join(SCRIPTS, "train.sbatch"), "train_gpt", *arguments,
                               SLURM_JOB_ID="7", SRUN_STATUS=str(status), PATH=self.dir + ":" + os.environ["PATH"])

    def test_max_minutes_queues_again(self):
        self.assert_status(0, self.run_job(3, "--out", "run", "--max-minutes", "0.01"))
        self.assertEqual("update jobid=7 comment=failures:0\nrequeue 7\n", self.read("scontrol.log"))
        self.assert_status(0, self.run_job(3, "--max-minutes=.01", "--out", "run"))

    def test_an_earlier_stop_does_not(self):
        self.assert_status(3, self.run_job(3, "--out", "run", "--max-minutes", "60"))
        self.assert_status(3, self.run_job(3, "--out", "run"))
        self.assert_status(0, self.run_job(0, "--max-minutes", "0.01"))
        self.assertEqual("", self.read("scontrol.log"))

    def test_failure_queues_again(self):
        self.assert_status(0, self.run_job(1, "--max-minutes", "0.01"))
        self.assertEqual("update jobid=7 comment=failures:1\nrequeue 7\n", self.read("scontrol.log"))


class Restarts(Supervised):
    """What follows from an exit status."""

    def run_trainer(self, *arguments, out="run", options=()):
        quick = self.write_program("quick_mpirun", QUICK_MPIRUN)
        return self.run_to_end(RUN_MPIRUN, "--backoff", "0", *options, self.trainer, *arguments,
                               *(["--out", out] if out else []), MPIRUN=quick)

    def test_0_2_and_3_end_the_run(self):
        for status in (0, 2, 3):
            with self.subTest(status):
                before = self.starts()
                self.assert_status(status, self.run_trainer("exit", str(status)))
                self.assertEqual(1, self.starts() - before)

    def test_restarts_after_failures(self):
        os.makedirs(self.path("run/step_00000020"))
        os.makedirs(self.path("run/step_00000030.tmp"))
        self.assert_status(0, self.run_trainer("third"))
        self.assertEqual(3, self.starts())
        self.assertIn("restart 2 of 3 in 0 s, from run/step_00000020\n", self.read("output"))

    def test_gives_up(self):
        self.assert_status(1, self.run_trainer("exit", "137", options=["--max-restarts", "2"]))
        self.assertEqual(3, self.starts())
        self.assertIn("mpirun's exit status 137", self.read("output"))
        self.assertIn("giving up at failure 3", self.read("output"))

    def test_old_failures_are_forgotten_where_checkpoints_are_made(self):
        self.assert_status(0, self.run_trainer("progress", options=["--max-restarts", "1", "--restart-window", "0"]))
        self.assertEqual(4, self.starts())

    def test_out_may_be_a_link(self):
        os.rename(self.path("run"), self.path("elsewhere"))
        os.symlink("elsewhere", self.path("run"))
        self.assert_status(0, self.run_trainer("progress", options=["--max-restarts", "1", "--restart-window", "0"]))
        self.assertIn("from run/step_00000003\n", self.read("output"))

    def test_old_failures_count_where_no_checkpoint_is_made(self):
        self.assert_status(1, self.run_trainer("third", options=["--max-restarts", "1", "--restart-window", "0"]))
        self.assertEqual(2, self.starts())

    def test_no_restart_without_checkpoints(self):
        self.assert_status(1, self.run_trainer("exit", "1", out=None))
        self.assertIn("without --out", self.read("output"))
        self.assert_status(1, self.run_trainer("exit", "1", "--resume", "never"))
        self.assertIn("--resume never would not go on", self.read("output"))
        self.assertEqual(2, self.starts())

    def test_a_run_without_heartbeat_is_killed_and_restarted(self):
        self.assert_status(0, self.run_trainer("stalls", options=["--stall-timeout", "2"]))
        self.assertEqual(2, self.starts())
        self.assertIn("no heartbeat for 2 s: killing the run", self.read("output"))
        self.assertIn("mpirun's exit status 137", self.read("output"))

    def test_back_off_and_a_signal_in_it(self):
        quick = self.write_program("quick_mpirun", QUICK_MPIRUN)
        process = self.start(RUN_MPIRUN, "--backoff", "1", self.trainer, "exit", "1", "--out", "run", MPIRUN=quick)
        wait_for(lambda: "restart 3 of 3 in 4 s" in self.read("output"), "the third pause")
        self.assertIn("restart 2 of 3 in 2 s", self.read("output"))
        process.terminate()
        self.assert_status(1, process.wait(timeout=PATIENCE))
        self.assertEqual(3, self.starts())


@unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun (package openmpi-bin)")
class Signals(Supervised):
    """Through mpirun itself: what reaches a rank."""

    def start_trainer(self, mode, save_timeout):
        process = self.start(RUN_MPIRUN, "-n", "1", "--save-timeout", save_timeout, self.trainer, mode, "--out", "run")
        wait_for(lambda: "start" in self.read("log"), "the start of the trainer")
        time.sleep(0.3)
        return process

    def test_save_and_stop(self):
        process = self.start_trainer("wait", "60")
        process.send_signal(signal.SIGUSR1)
        wait_for(lambda: "USR1" in self.read("log"), "SIGUSR1 at the rank")
        process.send_signal(signal.SIGTERM)
        self.assert_status(3, process.wait(timeout=PATIENCE))
        self.assertEqual("start\nUSR1\nUSR2\n", self.read("log"))

    def test_a_rank_that_does_not_answer_is_ended(self):
        process = self.start_trainer("deaf", "0")
        process.send_signal(signal.SIGINT)
        self.assert_status(1, process.wait(timeout=PATIENCE))
        self.assertIn("ended before it said that it had saved", self.read("output"))
        self.assertEqual(1, self.starts())
        # Nothing is left: the trainer's arguments hold the name of this test's directory.
        left = subprocess.run(["pgrep", "-f", self.dir], capture_output=True, text=True, timeout=10).stdout
        self.assertEqual("", left)

    def test_a_second_signal_ends_at_once(self):
        process = self.start(RUN_MPIRUN, "-n", "1", self.trainer, "deaf", "--out", "run")
        wait_for(lambda: "start" in self.read("log"), "the start of the trainer")
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: "asked to stop" in self.read("output"), "the first signal")
        process.send_signal(signal.SIGTERM)
        self.assert_status(1, process.wait(timeout=PATIENCE))


if __name__ == "__main__":
    unittest.main(verbosity=2)
