"""A Slurm cluster on this machine: real munged, slurmctld and two slurmd, for tests.

Test modules take its fixtures by name.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from conftest import events_of, holdfast_processes, metrics_of, wait_until

NEEDS = ("munged", "slurmctld", "slurmd", "sbatch")
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/usr/local/sbin"
CONFIG = """
ClusterName=holdfast
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ReturnToService=2
SlurmdTimeout=10
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=2,bf_interval=2
KillWait=2
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port1} CPUs=2 RealMemory=4000 Gres=gpu:2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port2} CPUs=2 RealMemory=4000 Gres=gpu:2
PartitionName=spot Nodes=ALL Default=YES PriorityTier=1 GraceTime=30
PartitionName=high Nodes=ALL PriorityTier=10
"""
GPUS = """
NodeName=n1 Name=gpu File={folder}/gpu[0-1]
NodeName=n2 Name=gpu File={folder}/gpu[2-3]
"""
"""Other devices in their place; without any, Slurm sets no CUDA_VISIBLE_DEVICES."""


class SlurmCluster:
    """The cluster; its nodes are `n1` and `n2`.

    Args:
        folder: For all of its files; its path is short enough for a socket.
    """

    def __init__(self, folder):
        self.folder = folder
        own = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH}
        self._own = {**os.environ, **own}  # daemons know nothing of single tests
        self.environment = own
        self._started = []
        self._nodes = {}

    def up(self):
        ports = _free_ports(3)
        values = {"host": socket.gethostname(), "folder": self.folder}
        numbered = dict(zip(("port", "port1", "port2"), ports, strict=True))
        (self.folder / "slurm.conf").write_text(CONFIG.format(**values, **numbered))
        (self.folder / "gres.conf").write_text(GPUS.format(folder=self.folder))
        (self.folder / "cgroup.conf").touch()
        for number in range(4):
            (self.folder / f"gpu{number}").symlink_to("/dev/null")
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        ends = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log",
                "seed-file": "seed"}  # fmt: skip
        files = [f"--{name}={self.folder}/munge.{end}" for name, end in ends.items()]
        self._start("munged", "--foreground", "--force", *files)
        wait_until((self.folder / "munge.socket").exists)
        self._start("slurmctld", "-D", "-c")
        for node in ("n1", "n2"):
            self.serve(node)
        wait_until(lambda: self.tell("sinfo", "-h", "-N", "-o", "%t").split().count("idle") == 4)

    def serve(self, node):
        """Start the daemon of a node."""
        self._nodes[node] = self._start("slurmd", "-D", "-N", node, "-c")

    def lose(self, node):
        """End everything on a node at once, and tell Slurm, which would notice it later."""
        mark = f"SLURMD_NODENAME={node}\0".encode()
        about = {pid: _read(pid, "environ") for pid in _processes()}
        own = str(self.folder).encode()  # another cluster may have nodes of this name
        tasks = [pid for pid, words in about.items() if mark in words and own in words]
        parents = {int(_read(pid, "stat").rpartition(b")")[2].split()[1]) for pid in tasks}
        steps = [pid for pid in parents if b"slurmstepd" in _read(pid, "cmdline")]
        for pid in (self._nodes[node].pid, *steps, *tasks):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.tell("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")

    def repair(self, node):
        """Have a lost node back; jobs wait until it is."""
        self.serve(node)
        self.tell("scontrol", "update", f"nodename={node}", "state=resume")

    def down(self):
        self.tell("scancel", "--user=root")
        wait_until(lambda: not self.tell("squeue", "-h").strip(), 30)
        for process in reversed(self._started):
            process.terminate()
        for process in self._started:
            process.wait(30)

    def tell(self, *words):
        """What a command of Slurm prints."""
        done = subprocess.run(
            words, env={**os.environ, **self.environment}, capture_output=True, text=True,
            check=False, timeout=60,
        )  # fmt: skip
        return done.stdout + done.stderr

    def state(self, job):
        """The state of a job; not asked for too often, since that is a process each time."""
        time.sleep(0.2)
        return self.tell("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()

    def await_end(self, job):
        """Wait for the end of a job; returns its last state."""
        goes_on = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
        wait_until(lambda: self.state(job) not in goes_on, 240)
        return self.state(job)

    def preempt(self, job):
        """Have a more important job take the nodes of this one, and wait until it has ended."""
        where = ["--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null"]
        high = self.tell("sbatch", "--parsable", *where, "--wrap=true").strip()
        wait_until(lambda: self.state(high) == "COMPLETED")
        assert self.state(job) == "PENDING"

    def _start(self, *words):
        log = (self.folder / f"{words[0]}-{len(self._started)}.out").open("wb")
        process = subprocess.Popen(
            words,
            env=self._own,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        self._started.append(process)
        return process


def _processes():
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]


def _read(pid, name):
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _free_ports(count):
    probes = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.fixture(scope="module")
def cluster():
    """Such a cluster; the tests that want one are skipped where there can be none."""
    missing = [name for name in NEEDS if shutil.which(name, path=PATH) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root, and {missing}: apt-get install slurm-wlm munge")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short enough for a socket's path
    made = SlurmCluster(folder)
    try:
        made.up()
        yield made
    finally:
        made.down()
        shutil.rmtree(folder)


@pytest.fixture
def submit(cluster, tmp_path, monkeypatch):
    """Submit a script: `submit(text, option, …) -> job`, in the folder of the test; nothing is left
    of it.
    """
    monkeypatch.setenv("HOLDFAST_TEST", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def run(text, *options):
        script = tmp_path / "job.sh"
        script.write_text(text)
        where = [f"--chdir={tmp_path}", f"--output={tmp_path / 'output'}"]
        said = cluster.tell("sbatch", "--parsable", *where, *options, str(script)).strip()
        assert said.isdecimal(), said
        return said

    yield run
    cluster.tell("scancel", "--user=root")
    wait_until(lambda: holdfast_processes(str(tmp_path)) == [])


def printed(tmp_path):
    """What a job has printed."""
    path = tmp_path / "output"
    return path.read_text() if path.exists() else ""


def steps(run):
    """How many lines of metrics a run has."""
    return len(metrics_of(run)) if (run / "metrics.jsonl").exists() else 0


def begins(run):
    """From which step each generation of a run has begun."""
    return [each["step"] for each in events_of(run, "generation-started")]


def saved(run):
    """The step of a run's newest checkpoint."""
    return events_of(run, "checkpoint-committed")[-1]["step"]
