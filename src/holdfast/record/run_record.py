"""RunRecord: reads a run's directory, and what is added to it; the one reader of all views.

    events.jsonl ─────▶ events, failures, checkpoints, plans, state
    metrics.jsonl ────▶ steps, evaluations, workers
    recoveries.jsonl ─▶ recoveries
    system.jsonl ─────▶ system, where a run measures its hosts
    job.yaml, result.json

It only reads, so it may be used while the run trains, by any number of processes.
"""

from __future__ import annotations

import json
import os
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, Final

from holdfast.errors import HoldfastError, JobError
from holdfast.job import load
from holdfast.job.script_job import ScriptJob
from holdfast.job.spec import Job
from holdfast.job.train_job import TrainJob
from holdfast.record import breakdown
from holdfast.record.goodput import Cause, EventKind, GoodputEvent, attribute
from holdfast.record.metrics_reader import EvaluationResult, MetricsReader
from holdfast.record.moments import is_event, is_failure, moments_of
from holdfast.record.recovery_reports import RecoveryReport, reports_in
from holdfast.record.state import RunState, state_of
from holdfast.record.steps import Steps
from holdfast.rundir.follow import JsonTail
from holdfast.rundir.run_directory import EVENTS, METRICS, RECOVERIES, RESULT, SYSTEM, is_held

MAX_SYSTEM_LINES: Final = 3600
"""Most lines of a host that are kept: the newest."""
MAX_ALL_SYSTEM_LINES: Final = 1 << 16
"""Most lines of all hosts: many hosts have fewer each."""

Event = Mapping[str, Any]
"""A line of `events.jsonl`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was committed; retention may have deleted it since.

    Attributes:
        step: After how many steps.
        at: Unix time, seconds.
        directory: Path of its directory.
        size_bytes: Size; None if it was deleted before it was seen, or is elsewhere.
    """

    step: int
    at: float
    directory: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChange:
    """From which step on the members compute how many shards.

    Attributes:
        step: The steps committed before.
        at: Unix time, seconds.
        shards: Shards of each member.
    """

    step: int
    at: float
    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Use of a run's time.

    Attributes:
        seconds: By cause; their sum is `total_s`.
        total_s: From the start of the run until its end, or what is newest in its record.
        samples_per_s: Samples of committed steps per second of `total_s`, each counted once.
    """

    seconds: Mapping[Cause, float]
    total_s: float
    samples_per_s: float

    @property
    def share(self) -> float:
        """The useful part of the run's time."""
        return self.seconds[Cause.USEFUL] / self.total_s if self.total_s else 0.0


class RunRecord:
    """The record of one run.

    Args:
        path: The run's directory.
        slice_s: Most time for reading steps at once: what is left comes with the next
            `refresh`, so that a view of a long run need not wait. By default all are read.

    Attributes:
        events: In the order of the file; those of several hosts may overlap by milliseconds.
        steps: The committed steps.
        checkpoints, plans, recoveries: In order.
        system: By host: the newest lines of `system.jsonl`.
        hosts: The name of each rank's agent, as far as it is known: its newest.
        result: Content of `result.json`; None before the run has ended.

    Raises:
        JobError: There is no run.
        HoldfastError: It cannot be read.
    """

    def __init__(self, path: Path, slice_s: float = inf) -> None:
        if not path.is_dir():
            raise JobError(f"{path} contains no run; pass the directory of one")
        self.path = path
        self._slice_s = slice_s
        verified = self.job.verify.recompute if isinstance(self.job, TrainJob) else 0.0
        self.steps = Steps(verified)
        self.events: list[Event] = []
        self.checkpoints: list[Checkpoint] = []
        self.plans: list[PlanChange] = []
        self.recoveries: list[RecoveryReport] = []
        self.system: dict[str, deque[Mapping[str, Any]]] = {}
        self.hosts: dict[int, str] = {}
        self.result: dict[str, Any] | None = None
        self._placed_at: dict[int, float] = {}  # by rank
        self._metrics = MetricsReader(path / METRICS, self.steps)
        self._events, self._recoveries, self._system = (
            JsonTail(path / name) for name in (EVENTS, RECOVERIES, SYSTEM)
        )
        self._workers_of = self._version
        self._workers = dict[int, list[dict[str, float]]]()
        self._goodput: tuple[tuple[float, ...], Goodput] | None = None
        self._longest = (0, 0.0)  # of how many steps, and their longest time
        self._started_at = self._result_at = 0.0  # of the newest attempt, and of the result
        self.refresh()

    @cached_property
    def job(self) -> Job | None:
        """Job of the run; None if this version cannot read it."""
        with suppress(JobError):
            return load.of_run(self.path)
        return None

    @property
    def counts_steps(self) -> bool:
        """True if the run makes steps: that of a script does once it has made one."""
        return self.job is None or self.job.records_progress or len(self.steps) > 0

    @property
    def tokens_per_sample(self) -> int | None:
        """Tokens of a sample; None if it has none, or that is not known."""
        return self.job.tokens_per_sample if self.job is not None else None

    def refresh(self) -> bool:
        """Read what was added since the last call; returns whether anything was.

        Raises:
            HoldfastError: A file cannot be read.
        """
        try:
            return self._refresh()
        except OSError as error:
            raise HoldfastError(
                f"{error.filename or self.path} cannot be read: {error.strerror}; see who owns it, "
                "and its disk"
            ) from None

    def _refresh(self) -> bool:
        events = [line for line in self._events() if is_event(line)]
        for event in events:
            self._take_event(event)
        reports = self._recoveries()
        self.recoveries += reports_in(reports)
        measured = [line for line in self._system() if _is_sample(line)]
        for line in measured:
            self._take_sample(line)
        for kept in self.system.values():
            while len(kept) > MAX_ALL_SYSTEM_LINES // len(self.system):
                kept.popleft()
        has_steps = self._metrics.refresh(self._slice_s)
        self._refresh_result()
        return bool(events or reports or measured or has_steps)

    @property
    def _version(self) -> tuple[float, ...]:
        """Value that differs if the steps do."""
        return len(self.steps), *self.steps.columns["at"][-1:]

    def _take_event(self, event: Event) -> None:
        self.events.append(event)
        at = float(event["time_unix_s"])
        match event:
            case {"event": "run-started"}:
                self._started_at = at
            case {"event": "worker-started", "rank": int(rank), "host": str(host)}:
                self._place(rank, host, at)
            case {"event": "checkpoint-committed", "step": int(step), "directory": str(directory)}:
                if any(each.step == step for each in self.checkpoints[-1:]):
                    return  # of another host
                size = size_bytes(Path(directory))
                self.checkpoints.append(
                    Checkpoint(step=step, at=at, directory=directory, size_bytes=size)
                )
            case {"event": "plan-changed", "step": int(step), "shards_per_worker": list(shards)}:
                self.plans.append(PlanChange(step=step, at=at, shards=tuple(shards)))

    def _take_sample(self, line: Mapping[str, Any]) -> None:
        newest = deque[Mapping[str, Any]](maxlen=MAX_SYSTEM_LINES)
        host = line["host"]
        self.system.setdefault(host, newest).append(line)
        for worker in line.get("workers", ()):
            self._place(worker["rank"], host, line["time_unix_s"])

    def _place(self, rank: int, host: str, at: float) -> None:
        """Note that a worker runs on a host; the files of several hosts overlap."""
        if at >= self._placed_at.get(rank, 0.0):
            self.hosts[rank] = host
            self._placed_at[rank] = at

    def _refresh_result(self) -> None:
        """Read the result, unless it is that of an attempt before the newest."""
        path = self.path / RESULT
        with suppress(OSError, ValueError):
            written_at = path.stat().st_mtime
            if written_at < self._started_at:
                self.result = None
            elif written_at != self._result_at:
                result = json.loads(path.read_bytes())
                self.result = result if isinstance(result, dict) else None
                self._result_at = written_at

    @property
    def read_share(self) -> float:
        """Part of the steps that was read, 0 to 1; see `slice_s`."""
        return self._metrics.share

    @property
    def evaluations(self) -> list[EvaluationResult]:
        """The evaluations of the run, in order."""
        return self._metrics.evaluations

    @property
    def failures(self) -> list[Event]:
        """The events of failures, in order."""
        return [event for event in self.events if is_failure(event)]

    @property
    def open_failure(self) -> Event | None:
        """The first failure since the newest step and recovery; None if there is none."""
        ends = [
            *self.steps.columns["at"][-1:],
            *(each.time_unix_s for each in self.recoveries[-1:]),
        ]
        since = max(ends, default=0.0)
        newer = (event for event in self.failures if event["time_unix_s"] > since)
        return next(newer, None)

    @property
    def bottleneck(self) -> str | None:
        """Limit of the run when that was last written down, in words."""
        return breakdown.bottleneck(self.events)

    @property
    def started_at(self) -> float | None:
        """Time at which the run was started for the first time, Unix time, seconds."""
        return self.events[0]["time_unix_s"] if self.events else None

    @property
    def total_steps(self) -> int | None:
        """Number of steps of the whole run; None if that is not known yet."""
        if self.result is not None and self.result.get("status") == "finished":
            return self.steps.newest
        extended = [event for event in self.events if event["event"] == "run-extended"]
        if extended:
            return int(extended[-1]["total_steps"])
        epochs = self.job.epochs if isinstance(self.job, TrainJob) else 0
        epoch = self.steps.columns["epoch"]
        if not epochs or not epoch or not epoch[0] < epoch[-1] < epochs:
            return None  # the length of an epoch is not known, or the task has its own
        in_first = epoch.index(epoch[0] + 1)
        return int(in_first + self.steps.columns["step"][0] - 1) * epochs

    def workers(self, steps: int) -> list[dict[str, float]]:
        """The mean times of each worker in the newest steps; see `breakdown.rows`."""
        if self._workers_of != self._version:
            self._workers_of = self._version
            self._workers.clear()
        if steps not in self._workers:
            self._workers[steps] = breakdown.rows(self._metrics.recent_workers(steps), steps)
        return self._workers[steps]

    def state(self, now: float | None = None) -> RunState:
        """State of the run at a moment.

        Args:
            now: Unix time, seconds; by default this moment.
        """
        at = self.steps.columns["at"]
        return state_of(
            self.events,
            at[-1] if at else None,
            self._longest_step_s(),
            time.time() if now is None else now,
            is_held=is_held(self.path),
            counts_steps=self.counts_steps,
        )

    def _longest_step_s(self) -> float:
        seconds = self.steps.columns["seconds"]
        count, longest = self._longest
        new = [each for each in seconds[count:] if each > longest]
        self._longest = len(seconds), max(new, default=longest)
        return self._longest[1]

    def goodput(self) -> Goodput:
        """Use of the run's time."""
        known = *self._version, len(self.events), len(self.evaluations)
        if self._goodput is None or self._goodput[0] != known:
            self._goodput = known, self._attributed()
        return self._goodput[1]

    def _attributed(self) -> Goodput:
        evaluated = self.evaluations[-1].step if self.evaluations else 0
        moments = moments_of(self.events)
        if isinstance(self.job, ScriptJob):
            moments = map(self._with_step, moments)
        seconds = attribute(self.steps.committed(evaluated), moments)
        total = sum(seconds.values())
        samples = sum(self.steps.columns["samples"])
        return Goodput(
            seconds=seconds, total_s=total, samples_per_s=samples / total if total else 0.0
        )

    def _with_step(self, moment: GoodputEvent) -> GoodputEvent:
        """A moment with the step from which a script resumes, which its first report tells."""
        row = bisect_left(self.steps.columns["at"], moment.at)
        if moment.kind is not EventKind.RESUMED or row == len(self.steps):
            return moment
        return replace(moment, step=self.steps.columns["step"][row] - 1)


def _is_sample(line: Mapping[str, Any]) -> bool:
    """True if a line of `system.jsonl` is a whole sample."""
    gpus = line.get("gpus", [])
    workers = line.get("workers", [])
    return (
        isinstance(line.get("host"), str)
        and isinstance(line.get("time_unix_s"), int | float)
        and _are_numbered(gpus, "index")
        and _are_numbered(workers, "rank")
    )


def _are_numbered(found: Any, name: str) -> bool:
    """True if it is a list of objects, each with its number."""
    return isinstance(found, list) and all(
        isinstance(each, dict) and isinstance(each.get(name), int) for each in found
    )


def size_bytes(directory: Path) -> int | None:
    """The size of a checkpoint; None if it is not here."""
    try:
        with os.scandir(directory) as files:
            return sum(each.stat().st_size for each in files)
    except OSError:
        return None
