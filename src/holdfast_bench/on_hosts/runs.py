"""Runs on several hosts as users start them: how long a step takes, and a recovery.

step       the time from one commit to the next, compared with as many workers on one host
recovery   from a fault to the next commit of the members that are left or replaced
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import yaml

from holdfast.errors import HoldfastError
from holdfast.job import load
from holdfast.rundir.run_directory import RESULT, TOKEN
from holdfast_bench.on_hosts.loopback import Loopback
from holdfast_bench.on_hosts.namespaces import UNSHAPED, Namespaces, namespaces
from holdfast_bench.on_hosts.reduction import Row
from holdfast_bench.results.figures import spread
from holdfast_bench.trial import RunRecords, completed, wait_until
from holdfast_bench.workloads import job_keys

TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.02
WARM_STEPS: Final = 10
STEPS: Final = 40
ENDLESS: Final = 1_000_000
NETWORKS: Final = ("tls", "trusted")
FAULTS: Final = ("worker killed", "host cut off")

Hosts = TypeVar("Hosts", bound=Namespaces | Loopback)


class HostsRun(Generic[Hosts]):
    """A run on hosts, started by the lines that people paste.

    Args:
        made: The hosts.
        folder: Where the run's directory is made.
        keys: Of the job, without those about hosts.
        network: The job's key.
        first: Number of hosts that it begins with; by default all.
    """

    def __init__(
        self, made: Hosts, folder: Path, keys: dict[str, Any], network: str, first: int = 0
    ) -> None:
        self.made = made
        self.records = RunRecords(folder / "run")
        job = folder / "job.yaml"
        hosts = len(made.numbers)
        run_dir = self.records.run_dir
        job.write_text(yaml.safe_dump({**keys, "network": network}))
        if hosts == 1:
            self._started = [made.start(1, "train", job, "--run", run_dir)]
            return
        size = f"{first}:{hosts}" if first else hosts
        where = ["--hosts", size, "--address", made.address(1), "--run", run_dir]
        self._started = [made.start(1, "coordinator", job, *where)]
        self._token = run_dir / TOKEN
        self.wait(self._token.exists, "the token")
        for number in made.numbers[1 : first or hosts]:
            self.add_agent(number)

    def add_agent(self, number: int) -> None:
        """Let another host join."""
        where = ["--join", f"{self.made.address(1)}:50051", "--token-file", self._token]
        self._started.append(self.made.start(number, "agent", *where))

    def wait(self, is_there: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until something has happened.

        Raises:
            HoldfastError: It takes too long.
        """
        if not wait_until(is_there, timeout_s, POLL_S):
            printed = "\n".join(map(self.made.output, self.made.numbers))
            raise HoldfastError(f"{what} took longer than {timeout_s:.0f} s:\n{printed}")

    def commits(self) -> list[float]:
        """The times at which steps were committed, Unix time, seconds."""
        return [line["time_unix_s"] for line in self.records.steps()]

    def members(self) -> int:
        """Workers of the newest generation."""
        started = self.records.events("generation-started")
        return len(started[-1]["members"]) if started else 0

    def wait_for_commit(self, after: float) -> float:
        """The time at which the first step after some time was committed."""
        self.wait(lambda: self.commits()[-1:] > [after], "a commit")
        return next(each for each in self.commits() if each > after)

    def join(self, timeout_s: float) -> None:
        """Wait for its end.

        Raises:
            HoldfastError: It failed, or takes too long.
        """
        first = self._started[0]
        self.wait(lambda: first.poll() is not None, "the end of the run", timeout_s)
        if first.returncode != 0:
            raise HoldfastError(f"the run failed:\n{self.made.output(1)}")

    def close(self) -> None:
        """End it."""
        for each in self._started:
            for _ in range(2):
                if each.poll() is None:
                    each.send_signal(signal.SIGTERM)  # a shell's background job ignores SIGINT
        for each in self._started:
            try:
                each.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()


@contextmanager
def running(
    hosts: int, workers: int, link: str, keys: dict[str, Any], network: str
) -> Iterator[HostsRun[Namespaces]]:
    """A run on hosts of which each has so many workers.

    Raises:
        HoldfastError: The machine has no network namespaces.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        namespaces(Path(folder), hosts, link) as made,
        closing(HostsRun(made, Path(folder), {**keys, "workers": hosts * workers}, network)) as run,
    ):
        yield run


@contextmanager
def finished(
    hosts: int, link: str, keys: dict[str, Any], network: str, timeout_s: float
) -> Iterator[RunRecords]:
    """The records of a run that has ended, with a worker on each host.

    Where there are no network namespaces, hosts are workers of one host.

    Raises:
        HoldfastError: The run failed.
    """
    if hosts > 1 and not Namespaces.what_is_missing():
        with running(hosts, 1, link, keys, network) as run:
            run.wait((run.records.run_dir / RESULT).exists, "the end of the run", timeout_s)
            yield run.records
        return
    with completed(load.check(keys, where="bench")) as records:
        yield records


@contextmanager
def on_loopback(hosts: int, keys: dict[str, Any], timeout_s: float) -> Iterator[RunRecords]:
    """The records of a run that has ended, on hosts that share this machine and its network.

    Raises:
        HoldfastError: The run failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        made = Loopback(Path(folder), hosts)
        with closing(HostsRun(made, Path(folder), keys, NETWORKS[0])) as run:
            run.join(timeout_s)
            yield run.records


def step_rows(hosts: int, workers: int, link: str, workload: str) -> list[Row]:
    """Rows of the time of a step, for each kind of network."""
    one = _step_seconds(1, hosts * workers, UNSHAPED, workload, "trusted")
    found = []
    for network in NETWORKS:
        print(f"step, {hosts} hosts x {workers}, {workload}, {network}", file=sys.stderr)
        several = _step_seconds(hosts, workers, link, workload, network)
        row = {"measure": "step", "hosts": hosts, "workers": workers, "link": link}
        row |= {"what": workload, "system": network}
        row |= {"ms": spread([1e3 * each for each in several])}
        row["time_of_one_host"] = round(statistics.median(several) / statistics.median(one), 3)
        found.append(row)
    return found


def _step_seconds(hosts: int, workers: int, link: str, workload: str, network: str) -> list[float]:
    keys = job_keys(workload, hosts * workers, ENDLESS)
    with running(hosts, workers, link, keys, network) as run:
        run.wait(lambda: len(run.commits()) >= WARM_STEPS + STEPS, "the steps")
        commits = run.commits()[WARM_STEPS : WARM_STEPS + STEPS]
    return [after - before for before, after in pairwise(commits)]


def recovery_rows(hosts: int, workers: int, link: str, workload: str, rounds: int) -> list[Row]:
    """Rows of the time from a fault to the next commit."""
    keys = job_keys(workload, hosts * workers, ENDLESS)
    size = hosts * workers
    seconds: dict[str, list[float]] = {fault: [] for fault in FAULTS}
    with running(hosts, workers, link, keys, NETWORKS[0]) as run:
        for number in range(rounds):
            for fault in FAULTS:
                print(f"recovery, round {number + 1}: {fault}", file=sys.stderr)
                run.wait(lambda: run.members() == size, "the full world")
                run.wait_for_commit(time.time())
                seconds[fault].append(_inject(run, fault, hosts, workers))
                run.made.heal(hosts)
    where = {"measure": "recovery", "hosts": hosts, "workers": workers, "link": link}
    return [
        {**where, "what": workload, "system": fault, "ms": spread([1e3 * s for s in each])}
        for fault, each in seconds.items()
    ]


def _inject(run: HostsRun[Namespaces], fault: str, hosts: int, workers: int) -> float:
    """Inject a fault into the last host; returns the seconds until the next commit without it."""
    before = len(run.records.events("generation-started"))
    began = time.time()
    if fault == FAULTS[0]:
        os.kill(run.records.pid_of(hosts * workers - 1), signal.SIGKILL)
    else:
        run.made.cut(hosts)
    run.wait(lambda: len(run.records.events("generation-started")) > before, "a new generation")
    started = run.records.events("generation-started")[before]
    return run.wait_for_commit(max(began, started["time_unix_s"])) - began
