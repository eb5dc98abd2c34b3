"""Pause of the steps of a run while its hosts and workers change.

A run of three hosts, with a worker each, begins on two of them. They are network namespaces of this
machine (root and iproute2). Each round starts a new run and makes every change:

    planned   the longest time from one commit to the next, from the command to the first commit in
              the new size
    lost      the time from the loss of the coordinator's host, with its disk, to the next commit
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from holdfast.errors import HoldfastError, JobError
from holdfast_bench.arguments import add_names, add_rounds
from holdfast_bench.on_hosts.namespaces import UNSHAPED, Namespaces, namespaces
from holdfast_bench.on_hosts.reduction import Row
from holdfast_bench.on_hosts.runs import ENDLESS, NETWORKS, TIMEOUT_S, WARM_STEPS, HostsRun
from holdfast_bench.results.figures import spread
from holdfast_bench.results.result import Measured
from holdfast_bench.trial import RunRecords
from holdfast_bench.workloads import WORKLOADS, job_keys

HOSTS: Final = 3
FIRST: Final = 2
"""Hosts that the run begins with."""
MOST_WORKERS: Final = 6
SETTLED_STEPS: Final = 3
"""Steps between two changes."""
RUN: Final = "runs/run"
"""The run directory on the disk of a host that joins."""


class _Changing:
    """A run whose hosts change.

    Args:
        run: The run, on the first hosts.
    """

    def __init__(self, run: HostsRun[Namespaces]) -> None:
        self._run = run
        self._directory = run.records.run_dir
        # The second host has a record of all steps, and stays to the end.
        run.records = RunRecords(run.made.disk(FIRST) / RUN)

    def host_joins(self) -> float:
        return self._planned(lambda: self._run.add_agent(HOSTS))

    def is_scaled_up(self) -> float:
        return self._planned(lambda: self._ask(1, "scale", self._directory, MOST_WORKERS))

    def is_scaled_down(self) -> float:
        return self._planned(lambda: self._ask(1, "scale", self._directory, HOSTS))

    def coordinators_host_is_lost(self) -> float:
        began = time.time()

        def lose() -> None:
            self._run.made.kill(1)
            shutil.rmtree(self._directory)

        return self._commit_after(lose) - began

    def host_leaves(self) -> float:
        return self._planned(lambda: self._ask(HOSTS, "leave", RUN))

    def _planned(self, change: Callable[[], object]) -> float:
        """Seconds of the longest pause while something changes."""
        began = self._run.commits()[-1]
        ended = self._commit_after(change)
        meanwhile = [each for each in self._run.commits() if began <= each <= ended]
        return max(after - before for before, after in pairwise(meanwhile))

    def _commit_after(self, change: Callable[[], object]) -> float:
        """Change something; returns the time of the first commit in the generation after it."""
        run = self._run
        before = self._newest["number"]
        change()
        # By number: a host that has joined also gets the events of others, some of them late.
        run.wait(lambda: self._newest["number"] > before, "a generation")
        committed = run.wait_for_commit(self._newest["time_unix_s"])
        steps = len(run.commits())
        run.wait(lambda: len(run.commits()) >= steps + SETTLED_STEPS, "more steps")
        return committed

    @property
    def _newest(self) -> Row:
        """The event of the newest generation."""
        events = self._run.records.events("generation-started")
        return max(events, key=lambda event: int(event["number"]))

    def _ask(self, number: int, command: str, *words: object) -> None:
        status = self._run.made.start(number, command, *words).wait(TIMEOUT_S)
        if status != 0:
            raise HoldfastError(f"holdfast {command} failed:\n{self._run.made.output(number)}")


CHANGES: Final[dict[str, Callable[[_Changing], float]]] = {
    "a third host joins": _Changing.host_joins,
    "scaled from 3 to 6 workers": _Changing.is_scaled_up,
    "scaled from 6 to 3 workers": _Changing.is_scaled_down,
    "coordinator's host lost": _Changing.coordinators_host_is_lost,
    "a host leaves": _Changing.host_leaves,
}
"""The changes of a round, in their order."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_names(parser, "--workloads", WORKLOADS, "Workloads to train", "small,large")
    add_rounds(parser, 5)


def run(options: argparse.Namespace) -> Measured:
    """Measure every change of every workload.

    Raises:
        JobError: There can be no network namespaces.
        HoldfastError: A change fails, or takes too long.
    """
    if missing := Namespaces.what_is_missing():
        raise JobError(missing)
    rows = [row for name in options.workloads for row in _rows(name, options.rounds)]
    return Measured(rounds=options.rounds, rows=rows)


def _rows(workload: str, rounds: int) -> list[Row]:
    keys: dict[str, Any] = job_keys(workload, HOSTS, ENDLESS)
    keys |= {"workers": FIRST, "max_workers": MOST_WORKERS}
    seconds: dict[str, list[float]] = {what: [] for what in CHANGES}
    for number in range(rounds):
        with (
            tempfile.TemporaryDirectory() as folder,
            namespaces(Path(folder), HOSTS, UNSHAPED) as made,
            closing(HostsRun(made, Path(folder), keys, NETWORKS[0], first=FIRST)) as run,
        ):
            changing = _Changing(run)
            run.wait(lambda: len(run.commits()) >= WARM_STEPS, "the first steps")
            for what, change in CHANGES.items():
                print(f"{workload}, round {number + 1}: {what}", file=sys.stderr)
                seconds[what].append(change(changing))
    return [
        {"workload": workload, "change": what, "seconds": spread(found, 3)}
        for what, found in seconds.items()
    ]
