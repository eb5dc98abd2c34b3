"""Gather: runs the check of hosts as a job on them, and reads what they tell."""

from __future__ import annotations

import itertools
import shutil
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from holdfast.api.attended import Sidecar
from holdfast.coordinator.peers import is_agent_of
from holdfast.doctor.finding import Finding, fault
from holdfast.doctor.peers.report import HostReport, LinkReport, Wanted, newest
from holdfast.errors import HoldfastError, Interrupted
from holdfast.job import load
from holdfast.job.run_keys import RunKeys
from holdfast.job.script_job import ScriptJob
from holdfast.launch.spawn import Spawned
from holdfast.record.sink import Sink
from holdfast.rundir.run_directory import RunDirectory, worker_log
from holdfast.runs.controls import Controls
from holdfast.runs.hosts.placement import Placement
from holdfast.runs.run import LaunchOptions, run
from holdfast.wire.rpc import RunStateMessage

JOIN_TIMEOUT_S: Final = 900.0
"""Time for other hosts to join: people paste the line there."""
PLACED_TIMEOUT_S: Final = 150.0
"""Time for hosts to join that an engine starts."""
CHECK_TIMEOUT_S: Final = 600.0
"""Time for all hosts to check themselves and their links."""
_SCRIPT: Final = "holdfast.doctor.peers.on_host"
_REMEDY: Final = "look on that host for what holds it up, and check again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Reports of the hosts of a check.

    Attributes:
        reports: Report of each host by its name, in the order of ranks; None of a silent one.
        failures: Findings of hosts that have not told all.
    """

    reports: Mapping[str, HostReport | None]
    failures: tuple[Finding, ...]

    @property
    def told(self) -> dict[str, HostReport]:
        """Reports of the hosts that are not silent."""
        return {name: each for name, each in self.reports.items() if each is not None}

    @property
    def links(self) -> list[LinkReport]:
        """All links, with the names of the hosts."""
        names = list(self.reports)
        return [
            each.model_copy(
                update={"source": name, "target": names[int(each.target)]},
            )
            for name, report in self.told.items()
            for each in report.links
        ]

    def heard(self, name: str) -> frozenset[str]:
        """The hosts whose datagrams have arrived at one."""
        names = list(self.reports)
        return frozenset(names[each] for each in self.told[name].heard)


def gather(
    wanted: Wanted,
    keys: RunKeys,
    placement: Placement,
    folder: Path,
    *,
    forks: Spawned | None = None,
    sidecar: Sidecar = nullcontext,
) -> Gathered:
    """Have all hosts of a job look at what is wanted.

    Args:
        wanted: Request to each host.
        keys: Keys of the job whose hosts they are.
        placement: The hosts themselves.
        folder: For the run of the check; it is removed at the end.
        forks: A fork server for this host, if one has been started.
        sidecar: Open during the run.

    Raises:
        Interrupted: A signal has ended the check.
    """
    watch = _Watch(keys.hosts, is_placed=placement.engine is not None)
    options = LaunchOptions(forks=forks, controls=watch.controls)
    wanted = wanted.model_copy(update={"run_dir": str(folder.resolve())})
    failure = ""
    try:
        with RunDirectory(folder, _script_job(wanted, keys), resume=False) as directory:
            try:
                with sidecar(folder):
                    run(directory, options, (watch,), placement=placement)
            except Interrupted:
                if not watch.is_late:
                    raise Interrupted("the check was ended") from None
                failure = f"not there after {watch.timeout_s:.0f} s"
            except HoldfastError as error:
                failure = str(error)
            reports = {
                name: newest(worker_log(directory.logs, rank))
                for rank, name in sorted(watch.names.items())
            }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Gathered(reports=reports, failures=tuple(watch.failures(reports, failure)))


def _script_job(wanted: Wanted, keys: RunKeys) -> ScriptJob:
    """The job of a check: a worker on each host, with what the workers of the job have there."""
    values = {
        "name": "doctor",
        "script": {
            "module": _SCRIPT,
            "arguments": [wanted.model_dump_json()],
            "process_groups": False,
        },
        "workers": keys.hosts,
        "hosts": keys.hosts,
        "network": keys.network,
        "heartbeat": keys.heartbeat.model_dump(),
        "resources": keys.resources.times(keys.workers_per_host).model_dump(),
        "env": keys.env,
        "hang_timeout_s": CHECK_TIMEOUT_S,
        "on_failure": "stop",
        "restarts": {"limit": 0},
    }
    return load.check_script(values, where="of the doctor")


@dataclass(slots=True)
class _Watch(Sink):
    """Follows the run of a check: which hosts there are, and whether it takes too long.

    Attributes:
        hosts: Number of hosts of the job.
        is_placed: True if an engine starts them.
        controls: Controls of the run.
        names: Name of each host, by the rank of its worker.
        is_late: True if the run was ended here, for it took too long.
    """

    hosts: int
    is_placed: bool
    controls: Controls = field(default_factory=Controls)
    names: dict[int, str] = field(default_factory=dict)
    is_late: bool = False
    _began: float = field(default_factory=time.monotonic)
    _places: dict[str, str] = field(default_factory=dict)
    _ended: dict[str, str] = field(default_factory=dict)

    @property
    def timeout_s(self) -> float:
        """Longest time from the newest host until the next, or until the end."""
        if len(self.names) == self.hosts:
            return CHECK_TIMEOUT_S
        return PLACED_TIMEOUT_S if self.is_placed else JOIN_TIMEOUT_S

    def on_line(self, line: Mapping[str, Any]) -> None:
        """Note the hosts that come and go."""
        match line:
            case {"event": "agent-placed", "host": agent, "place": place}:
                self._places[agent] = place
            case {"event": "worker-started", "rank": rank, **rest}:
                self._began = time.monotonic()
                name = self._called(str(rest.get("host", "")))
                self.names[rank] = unlike(name, self.names.values())
                print(f"{self.names[rank]} has joined", file=sys.stderr, flush=True)
            case {"event": "agent-ended", "host": agent, "cause": cause}:
                self._ended[self._called(agent)] = cause
            case {"event": "host-lost", "host": agent}:
                self._ended.setdefault(self._called(agent), "it does not answer any more")

    def on_progress(self, _: RunStateMessage) -> None:
        """End a run that takes too long, or at the first signal: there is nothing to save."""
        self.is_late |= time.monotonic() - self._began > self.timeout_s
        self.controls.abort |= self.controls.stop or self.is_late

    def failures(self, reports: Mapping[str, HostReport | None], failure: str) -> Iterator[Finding]:
        """Findings of hosts that have not told all; the one that has ended the run, if known."""
        silent = [name for name, each in reports.items() if each is None]
        if not failure and not silent:
            return
        ended = {name: cause for name, cause in self._ended.items() if name}
        for name, cause in ended.items():
            yield replace(fault("hosts", cause or "it has ended", _REMEDY), host=name)
        if ended:
            return
        if len(self.names) < self.hosts:
            found = f"{len(self.names)} of {self.hosts} have joined: {failure}"
            yield fault("hosts", found, "look there why the others cannot join, and check again")
        for name in silent:
            found = failure or "it has reported nothing"
            yield replace(fault("hosts", found, _REMEDY), host=name)
        if not silent and len(self.names) == self.hosts:
            yield fault("links", f"measuring them failed: {failure}", "check again")

    def _called(self, agent: str) -> str:
        """Name of the host of an agent: that of the engine, or its host name."""
        for name, place in self._places.items():
            if is_agent_of(agent, name):
                return place
        is_own = not agent or agent.startswith("local-")
        return socket.gethostname() if is_own else agent.rpartition("-")[0] or agent


def unlike(host: str, names: Collection[str]) -> str:
    """A name that no other has: an engine may place several agents on one host."""
    numbered = (f"{host}-{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([host], numbered) if name not in names)
