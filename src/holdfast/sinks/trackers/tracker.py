"""Tracker: where a run's parameters, metrics, recoveries and artifacts go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from holdfast.record.recovery_reports import RecoveryReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of one metric.

    Attributes:
        name: Such as `train/loss`: what it is a metric of, then its name there.
        value: Finite.
        step: Place on the metric's axis. Of `train` and `evaluation`: steps committed. Of
            `recovery`: the number of the recovery. Of `system`: the number of the sample.
        time_unix_s: Time of the measurement, the same each time that it is read.
    """

    name: str
    value: float
    step: int
    time_unix_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Points and reports that are sent at once; the points of one metric are in order."""

    points: Sequence[Point] = ()
    recoveries: Sequence[RecoveryReport] = ()

    def __bool__(self) -> bool:
        return bool(self.points or self.recoveries)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedJob:
    """A job as trackers know it.

    Attributes:
        name: Its name.
        params: Its keys, dotted, and their values as text.
        text: The job as YAML.
        tokens_per_sample: Tokens of a sample; None if it has none.
    """

    name: str
    params: Mapping[str, str]
    text: str
    tokens_per_sample: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A run as trackers know it.

    Attributes:
        path: Its directory.
        run_id: Names it on all hosts, in all attempts.
        job: Its job.
        tags: Versions, host and commit: what its results may depend on besides.
    """

    path: Path
    run_id: str
    job: TrackedJob
    tags: Mapping[str, str]

    @property
    def search(self) -> str | None:
        """The search of which it is a trial; None if it is none."""
        return self.tags.get("search")

    @property
    def name(self) -> str:
        """Its name for people."""
        return f"{self.search}/{self.path.name}" if self.search else self.path.name


class Tracker(Protocol):
    """One tracker of one run. All its methods run in a thread of its own; each may raise any
    exception of the tracker's library, and is then called again later.

    Attributes:
        name: Name in the job.
        takes_files: True if it takes artifacts.
        kept: Plain data that `open` gets back in the next attempt. It is stored together with the
            cursor, after each call.
    """

    name: str
    takes_files: bool
    kept: dict[str, Any]

    def open(self, run: TrackedRun, kept: Mapping[str, Any]) -> bool:
        """Find the run there, or create it with its parameters and tags.

        Returns:
            Whether what was acknowledged before is still there.
        """

    def send(self, batch: Batch) -> None:
        """Send a batch; what has arrived already, though that was not acknowledged, counts once."""

    def finish(self, status: str, files: Sequence[Path]) -> None:
        """Note how the run ended (`finished`, `stopped`, `failed` or `lost`) and send artifacts."""

    def close(self) -> None:
        """Let go of what `open` has opened."""
