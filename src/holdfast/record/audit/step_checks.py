"""Checks of steps: each is recorded once, with the samples and the shards of its batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.data.loading.order import SampleOrder
from holdfast.record.audit.statement import NO_STEP, Check, judged, not_checked, passed
from holdfast.record.metrics_reader import lines_of
from holdfast.record.units import count


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A committed step, as its line in `metrics.jsonl` has it.

    Attributes:
        step: Its number, from 1.
        epoch: From 0.
        samples: Size of its batch.
        loss: None if it is not finite.
        is_skipped: True if it has changed nothing.
        shards: Count of computed shards; None if the line does not say.
        at: Time of its commit, Unix time, seconds; None if the line does not say.
    """

    step: int
    epoch: int
    samples: int
    loss: float | None
    is_skipped: bool
    shards: int | None
    at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """Record of an epoch.

    Attributes:
        number: From 0.
        steps, samples: Counts.
        is_complete: True if it has all of its steps.
    """

    number: int
    steps: int
    samples: int
    is_complete: bool


def rows_of(path: Path) -> list[StepRow]:
    """The steps in `metrics.jsonl`, in the order of its lines; none if there is no such file."""
    return list(_rows(path)) if path.exists() else []


def _rows(path: Path) -> Iterator[StepRow]:
    for line in lines_of(path):
        match line:
            case {"step": int(step), "epoch": int(epoch), "samples": int(samples), "loss": loss}:
                yield StepRow(
                    step=step,
                    epoch=epoch,
                    samples=samples,
                    loss=loss,
                    is_skipped=bool(line.get("skipped")),
                    shards=_shards(line),
                    at=line.get("time_unix_s"),
                )


def _shards(line: Mapping[str, Any]) -> int | None:
    match line:
        case {"workers": {"shards": list(counts)}}:
            return sum(counts)
    return None


def epochs_of(rows: Sequence[StepRow], order: SampleOrder | None, *, is_over: bool) -> list[Epoch]:
    """The epochs of the steps, in order.

    Args:
        rows: The steps.
        order: The sample order; None for a stream, whose epochs end where the next begins.
        is_over: True if the run has finished.
    """
    steps = dict[int, int]()
    samples = dict[int, int]()
    for row in rows:
        steps[row.epoch] = steps.get(row.epoch, 0) + 1
        samples[row.epoch] = samples.get(row.epoch, 0) + row.samples
    last = max(steps, default=0)
    return [
        Epoch(
            number=number,
            steps=steps[number],
            samples=samples[number],
            is_complete=(
                number < last or is_over
                if order is None
                else steps[number] == order.steps_per_epoch
            ),
        )
        for number in sorted(steps)
    ]


def check_numbers(rows: Sequence[StepRow], reached: int, path: Path) -> Check:
    """Check that the steps are 1, 2, 3 and so on: each was committed once, or computed again after
    the record of what came after a checkpoint was removed.

    Args:
        rows: The steps.
        reached: Steps that the run has made, as far as its events and checkpoints say.
        path: The file that the steps come from.
    """
    if not rows:
        return _check_without_steps(reached, path)
    problems = list[str]()
    expected = 1
    for row in rows:
        if row.step > expected:
            problems.append(f"{_range(expected, row.step - 1)} missing")
        elif row.step < expected:
            problems.append(f"step {row.step} is recorded again after step {expected - 1}")
        expected = max(expected, row.step + 1)
    if expected <= reached:
        problems.append(f"{_range(expected, reached)} missing: the run has reached step {reached}")
    return judged("steps", problems, f"steps 1 to {expected - 1} are recorded, each once")


def _check_without_steps(reached: int, path: Path) -> Check:
    found = f"{path.name} {'has no step' if path.exists() else 'is missing'}"
    if reached:
        problem = f"{found}, and the run has reached step {reached}: copy the file from a backup"
        return judged("steps", [problem], "")
    return not_checked(
        "steps",
        f"{found}, and as far as events and checkpoints say, no step was committed: audit the run "
        "after its first step (a script has none)",
    )


def check_batches(rows: Sequence[StepRow], order: SampleOrder | None) -> Check:
    """Check that each step has the epoch and the number of samples that follow from its number."""
    if not rows:
        return not_checked("batches", NO_STEP)
    if order is None:
        return not_checked("batches", "no checkpoint says how many samples each step has")
    problems = [
        f"step {row.step} has {row.samples} samples of epoch {row.epoch}, not {samples} of {epoch}"
        for row in rows
        if (row.samples, row.epoch)
        != ((samples := order.batch_size_of(row.step - 1)), (epoch := order.epoch_of(row.step - 1)))
    ]
    return judged(
        "batches", problems, f"each step has the samples of its batch, {order.batch_size} at most"
    )


def check_shards(rows: Sequence[StepRow], order: SampleOrder | None) -> Check:
    """Check that each step has counted each of its shards once."""
    if not rows:
        return not_checked("shards", NO_STEP)
    known = [(row.step, row.shards) for row in rows if row.shards is not None]
    if order is None or not known:
        return not_checked("shards", "the record does not say how many shards each step has")
    problems = [
        f"step {step} has {shards} shards, not {order.num_shards}"
        for step, shards in known
        if shards != order.num_shards
    ]
    unknown = len(rows) - len(known)
    more = f"; {count(unknown, 'step')} without a record of it" if unknown else ""
    text = f"each step was divided into {count(order.num_shards, 'shard')} by its workers{more}"
    return judged("shards", problems, text)


def check_skipped(rows: Sequence[StepRow]) -> Check:
    """Count of the steps that changed nothing."""
    if not rows:
        return not_checked("skipped", NO_STEP)
    skipped = sum(row.is_skipped for row in rows)
    text = "no step was skipped"
    if skipped:
        text = (
            f"{count(skipped, 'step')} skipped for a gradient that was not finite; their samples "
        )
        text += "were read, and changed nothing"
    return passed("skipped", text)


def _range(first: int, last: int) -> str:
    return f"step {first} is" if first == last else f"steps {first} to {last} are"
