"""SlurmEngine: agents in the nodes of a Slurm job, each below an srun of this host.

    reserve   the nodes, cores and memory of the allocation that this process runs in
    start     srun --overlap --nodelist=NODE …, on a free node
    places    the exits of these commands, and the nodes that Slurm has taken from the job

Slurm keeps the job when a node fails only if it was submitted with --no-kill. When it preempts the
job it signals the steps, so the agents, and not the batch script: this engine passes the signal on
to its own process, and the run ends with a checkpoint.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Final

from rich.filesize import decimal as in_words

from holdfast.clusters.engines.command_agents import CommandAgents
from holdfast.clusters.engines.engine import Launch, ResourceRequest
from holdfast.core.placement.replacing import AgentPlace, PlaceState
from holdfast.errors import EngineError
from holdfast.job.resources import Resources

WATCH_S: Final = 5.0
"""Interval at which Slurm is asked which nodes the job has."""
ANSWER_S: Final = 30.0
"""Time that Slurm may take to answer."""
_MB: Final = 1 << 20
_CPUS: Final = re.compile(r"(\d+)(?:\(x(\d+)\))?")


class SlurmEngine(CommandAgents):
    """Places the agents of one run in the nodes of the job that this process belongs to.

    Args:
        environment: Environment of this process, which describes the job.

    Raises:
        EngineError: This process belongs to no job, or Slurm does not answer.
    """

    name = "slurm"

    def __init__(self, environment: Mapping[str, str]) -> None:
        if "SLURM_JOB_ID" not in environment:
            raise EngineError(
                "--on slurm works inside a Slurm job, and this process belongs to none; write the "
                "command into a script for `sbatch`, or run it by `salloc --nodes=N holdfast …`"
            )
        self._job = environment["SLURM_JOB_ID"]
        self._environment = environment
        self._nodes = _expand(environment["SLURM_JOB_NODELIST"])
        self.num_hosts = len(self._nodes)
        others = [node for node in self._nodes if node != environment.get("SLURMD_NODENAME")]
        self.peer = _address([*others, *self._nodes][0])
        self._needs = Resources()
        super().__init__(noise=": Exited with exit code")
        self._is_stopped = False
        self._lost: dict[str, str] = {}
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="slurm-nodes", daemon=True)
        self._watcher.start()

    def reserve(self, ask: ResourceRequest) -> str:
        """Implements `Engine.reserve`."""
        self._needs = needs = ask.of_agent
        cpus = dict(zip(self._nodes, _cpus(self._environment), strict=True))
        fit = [node for node in self._nodes if cpus[node] >= needs.cpus]
        if len(fit) < ask.agents:
            return (
                f"{ask.agents} nodes with {needs.cpus} CPUs each; {len(fit)} of the "
                f"{len(self._nodes)} in job {self._job} have them: submit it with "
                f"--nodes={ask.agents} --ntasks-per-node=1 --cpus-per-task={needs.cpus}"
            )
        memory = int(self._environment.get("SLURM_MEM_PER_NODE", 0)) * _MB
        if 0 < memory < needs.memory_bytes:
            return (
                f"{in_words(needs.memory_bytes)} of memory on each node; job {self._job} has "
                f"{in_words(memory)}: submit it with --mem={-(-needs.memory_bytes // _MB)}M"
            )
        gpus = int(self._environment.get("SLURM_GPUS_ON_NODE", needs.gpus))  # salloc sets none
        if gpus < needs.gpus:
            return (
                f"{needs.gpus} GPUs on each node; job {self._job} has {gpus}: submit it with "
                f"--gpus-per-node={needs.gpus}"
            )
        self.use(fit)
        return ""

    def places(self) -> Mapping[str, AgentPlace]:
        """Implements `Engine.places`."""
        self.lose(self._lost)
        places = super().places()
        states = {place.state for place in places.values()}
        if PlaceState.DRAINING in states and PlaceState.RUNNING not in states:
            self._pass_signal_on()
        return places

    def close(self) -> None:
        """Implements `Engine.close`."""
        self._closing.set()
        self._watcher.join()
        super().close()

    def words(self, host: str, launch: Launch) -> list[str]:
        """Implements `CommandAgents.words`."""
        gpus = [f"--gpus-per-node={self._needs.gpus}"] if self._needs.gpus else []
        return [
            "srun",
            "--overlap",  # the batch script, and an agent that ends, may hold what this one needs
            "--nodes=1",
            "--ntasks=1",
            f"--nodelist={host}",
            f"--cpus-per-task={self._needs.cpus}",
            "--mem=0",  # all that the job has on the node
            *gpus,
            "--no-kill",
            "--kill-on-bad-exit=0",
            f"--job-name={launch.name}",
            *(sys.executable, "-m", "holdfast", *launch.arguments),
        ]

    def _pass_signal_on(self) -> None:
        """Stop the run, whose nodes will all be taken away, unless Slurm has signalled it, too."""
        if not self._is_stopped:
            self._is_stopped = True
            if _ask("squeue", "--noheader", "-j", self._job, "-o", "%T").strip() == "RUNNING":
                os.kill(os.getpid(), signal.SIGTERM)

    def _watch(self) -> None:
        """Keep the lost nodes up to date, in a thread."""
        while not self._closing.wait(WATCH_S):
            try:
                has = _expand(_ask("squeue", "--noheader", "-j", self._job, "-o", "%N").strip())
            except EngineError:  # it does not answer: nothing is known
                continue
            lost = dict.fromkeys(self._nodes, "Slurm has taken it from the job")
            for node in has:
                lost.pop(node, None)
            if has and lost != self._lost:
                self._lost = lost
                self.wake()


def _expand(nodes: str) -> list[str]:
    """The names of nodes, of which Slurm writes several as one, such as `n[1-2]`."""
    return _ask("scontrol", "show", "hostnames", nodes).split() if nodes else []


def _address(node: str) -> str:
    """Address of a node."""
    found = re.search(r"NodeAddr=(\S+)", _ask("scontrol", "show", "node", node))
    return found[1] if found else node


def _cpus(environment: Mapping[str, str]) -> Iterator[int]:
    """The CPUs that the job has on each of its nodes; Slurm writes `2(x3),1` for 2, 2, 2, 1."""
    for number, times in _CPUS.findall(environment["SLURM_JOB_CPUS_PER_NODE"]):
        yield from [int(number)] * int(times or 1)


def _ask(*words: str) -> str:
    """Output of a command of Slurm.

    Raises:
        EngineError: It fails.
    """
    try:
        done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=ANSWER_S)
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip() or f"status {error.returncode}"
    except subprocess.TimeoutExpired:
        reason = f"no answer within {ANSWER_S:.0f} s"
    except OSError as error:
        reason = f"{error.strerror}; is it on the PATH?"
    else:
        return done.stdout
    raise EngineError(f"Slurm cannot be asked: {' '.join(words)}: {reason}")
