"""Steps of training processes: the log that each writes, and figures of what all have logged.

A line has when the step ended (seconds of the machine's monotonic clock), the seconds that the
emulated device has computed in it, and the shards and samples that the process has computed. Only
steps after the warm-up count, and only while all processes train.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.rundir import json_lines
from holdfast_bench.unlike.slowed import SlowedDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedStep:
    """One step of one process.

    Attributes:
        ended_s: When, by the monotonic clock.
        busy_s: What the device has computed.
        shards, samples: As many as it has computed.
    """

    ended_s: float
    busy_s: float
    shards: int
    samples: int


class StepLog:
    """Writes the steps of this process.

    Args:
        folder: Holds a file for each process.
        rank: Of this process.
        device: What it computes on.
    """

    def __init__(self, folder: Path, rank: int, device: SlowedDevice) -> None:
        self._lines = json_lines.JsonLines(_path(folder, rank))
        self._device = device
        self._busy_s = device.busy_s
        self._shards = self._samples = 0

    def add(self, *, shards: int, samples: int) -> None:
        """Count what was computed."""
        self._shards += shards
        self._samples += samples

    def end_step(self) -> None:
        """Note a step that has ended now."""
        busy_s = self._device.busy_s - self._busy_s
        self._busy_s = self._device.busy_s
        self._lines.write(
            ended_s=time.monotonic(), busy_s=busy_s, shards=self._shards, samples=self._samples
        )
        self._shards = self._samples = 0


def read(folder: Path, workers: int) -> list[list[LoggedStep]]:
    """The steps of each process of a run that has ended."""
    return [
        [LoggedStep(**line) for line in json_lines.read(_path(folder, rank))]
        for rank in range(workers)
    ]


def _path(folder: Path, rank: int) -> Path:
    return folder / f"steps-{rank}.jsonl"


Steps = Sequence[Sequence[LoggedStep]]
"""The steps of each worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceFigures:
    """One run of one system.

    Attributes:
        samples_per_s: Of all workers.
        busy_share: The part of a step in which a device computes, mean over the workers.
        imbalance: How much longer the busiest device computes than the mean one, as a part of the
            latter; mean over the steps. 0 if all compute equally long.
        plan_steps: Steps until the plan was within a shard a worker of the last one.
        steps: What it was computed from, the warm-up included.
    """

    samples_per_s: float
    busy_share: float
    imbalance: float
    plan_steps: int
    steps: Steps


def measured(steps: Steps, warm_steps: int) -> BalanceFigures:
    """The figures of one run.

    Args:
        steps: Of each worker, in order.
        warm_steps: How many at the start do not count.

    Raises:
        HoldfastError: There are too few steps.
    """
    if min(len(each) for each in steps) < warm_steps + 2:
        raise HoldfastError(f"a worker has logged {min(map(len, steps))} steps, too few to measure")
    began_s = max(each[warm_steps].ended_s for each in steps)
    ended_s = min(each[-1].ended_s for each in steps)
    rate = share = 0.0
    for each in steps:
        within = [step for step in each if began_s <= step.ended_s <= ended_s]
        if len(within) < 2:
            raise HoldfastError("a worker has done too few steps while the others trained")
        seconds = within[-1].ended_s - within[0].ended_s
        rate += sum(step.samples for step in within[1:]) / seconds
        share += sum(step.busy_s for step in within[1:]) / seconds / len(steps)
    busy = zip(*([step.busy_s for step in each[warm_steps:]] for each in steps), strict=False)
    return BalanceFigures(
        samples_per_s=rate,
        busy_share=share,
        imbalance=statistics.fmean(imbalance(each) for each in busy),
        plan_steps=_plan_steps(steps),
        steps=steps,
    )


def imbalance(busy_s: Sequence[float]) -> float:
    """Extra time of the busiest worker over the mean one: max / mean - 1."""
    return max(busy_s) / statistics.fmean(busy_s) - 1


def plans_of(steps: Steps) -> list[tuple[int, ...]]:
    """The shards of each worker, for each step that all have done."""
    return list(zip(*([step.shards for step in each] for each in steps), strict=False))


def _plan_steps(steps: Steps) -> int:
    """Steps until no plan differs from the last one by more than a shard a worker."""
    plans = plans_of(steps)
    for number, plan in reversed(list(enumerate(plans))):
        if any(abs(now - last) > 1 for now, last in zip(plan, plans[-1], strict=True)):
            return number + 1
    return 0
