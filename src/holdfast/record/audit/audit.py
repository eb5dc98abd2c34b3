"""Audit: all checks of the record of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.store import CheckpointStore
from holdfast.data.loading.order import SEQUENTIAL, SHUFFLED, SampleOrder
from holdfast.errors import CheckpointError, HoldfastError
from holdfast.record.audit.lineage import (
    Life,
    Segment,
    check_lineage,
    check_writers,
    lives_of,
    segments_of,
)
from holdfast.record.audit.statement import (
    MAX_PROBLEMS,
    NO_STEP,
    Answer,
    Check,
    judged,
    not_checked,
    passed,
)
from holdfast.record.audit.step_checks import (
    Epoch,
    StepRow,
    check_batches,
    check_numbers,
    check_shards,
    check_skipped,
    epochs_of,
    rows_of,
)
from holdfast.record.moments import is_event
from holdfast.record.recovery_reports import reports_in
from holdfast.record.units import count
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import EVENTS, METRICS, RECOVERIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Statements that the record of a run proves.

    Attributes:
        steps: The newest step.
        epochs: Records of each epoch.
        lives: The starts of the run.
        segments: Generations that computed the steps that count.
        checks: The statements.
    """

    steps: int
    epochs: tuple[Epoch, ...]
    lives: tuple[Life, ...]
    segments: tuple[Segment, ...]
    checks: tuple[Check, ...]

    @property
    def has_failed(self) -> bool:
        return any(check.outcome is Answer.FAILED for check in self.checks)


def audit(run_dir: Path) -> Audit:
    """Check the record of a run.

    Args:
        run_dir: The run's directory.

    Raises:
        HoldfastError: A file cannot be read.
    """
    try:
        unreadable = json_lines.unreadable(run_dir / EVENTS)
        events = [line for line in json_lines.read(run_dir / EVENTS) if is_event(line)]
        rows = rows_of(run_dir / METRICS)
        recoveries = list(reports_in(json_lines.read(run_dir / RECOVERIES)))
        manifests, damaged = manifests_of(CheckpointStore.of_run(run_dir))
    except OSError as error:
        raise HoldfastError(
            f"{error.filename or run_dir} cannot be read: {error.strerror}; see who owns it, and "
            "its disk"
        ) from None
    order = order_of(manifests)
    lives = lives_of(events, recoveries)
    newest = max((row.step for row in rows), default=0)
    segments = segments_of(lives, newest)
    epochs = epochs_of(rows, order, is_over=_has_finished(events))
    return Audit(
        steps=newest,
        epochs=tuple(epochs),
        lives=tuple(lives),
        segments=tuple(segments),
        checks=(
            check_numbers(rows, _reached(events, manifests), run_dir / METRICS),
            check_batches(rows, order),
            check_shards(rows, order),
            check_samples(rows, epochs, order),
            check_skipped(rows),
            check_stored(manifests, rows, damaged),
            _check_events(unreadable),
            check_lineage(lives),
            check_writers(rows, segments, has_several_hosts=len(_hosts(events)) > 1),
        ),
    )


def _check_events(unreadable: Sequence[int]) -> Check:
    """Check that all lines of events can be read; the others are named by number."""
    if not unreadable:
        return passed("events", f"every line of {EVENTS} can be read")
    named = ", ".join(map(str, unreadable[:MAX_PROBLEMS]))
    more = ", …" if len(unreadable) > MAX_PROBLEMS else ""
    return not_checked(
        "events",
        f"{EVENTS} has lines that are no JSON objects, such as a full disk or a crash leaves: "
        f"{named}{more}",
    )


def _reached(events: Sequence[Mapping[str, Any]], manifests: Sequence[Manifest]) -> int:
    """Least number of steps that the run has made, without its record of steps."""
    starts = [event.get("step") for event in events if event["event"] == "generation-started"]
    ends = [event.get("steps") for event in events if event["event"] == "run-ended"]
    reached = [*starts[-1:], *ends[-1:], *(manifest.step for manifest in manifests)]
    return max((steps for steps in reached if isinstance(steps, int)), default=0)


def _has_finished(events: Sequence[Mapping[str, Any]]) -> bool:
    """True if the newest start of the run has reached its end."""
    ends = ("run-started", "run-ended", "run-failed")
    newest = [event for event in events if event["event"] in ends][-1:]
    return any(event.get("status") == "finished" for event in newest)


def _hosts(events: Sequence[Mapping[str, Any]]) -> set[str]:
    """The hosts of the workers, as far as events name them."""
    return {
        event["host"] for event in events if event["event"] == "worker-started" and "host" in event
    }


_MAY_CHANGE: Final = frozenset({"epochs", "steps", "samples", "epoch_order"})
"""Facts of the data that differ where a run was extended, or its numerics have changed."""


def manifests_of(store: CheckpointStore) -> tuple[list[Manifest], list[str]]:
    """The manifests that can be read, newest first, and what is wrong with the others."""
    found = list[Manifest]()
    problems = list[str]()
    for name in store.committed():
        try:
            found.append(store.manifest(name))
        except (CheckpointError, OSError) as error:
            problems.append(str(error))
    return found, problems


def order_of(manifests: Sequence[Manifest]) -> SampleOrder | None:
    """The sample order of a run; None if it reads a stream, or no checkpoint is left."""
    return SampleOrder.of_facts(manifests[0].order) if manifests else None


def check_stored(
    manifests: Sequence[Manifest], rows: Sequence[StepRow], damaged: Sequence[str] = ()
) -> Check:
    """Check that checkpoints continue the same data in the same order, and have the loss that is
    recorded for their step.

    Args:
        manifests: Manifests that can be read, newest first.
        rows: The steps.
        damaged: Damage of the others, in words.
    """
    if not manifests and not damaged:
        return not_checked("checkpoints", "no checkpoint is left here")
    by_step = {row.step: row for row in rows}
    problems = list(damaged)
    newest = _facts(manifests[0].order) if manifests else {}
    for manifest in manifests:
        changed = [key for key, value in _facts(manifest.order).items() if newest.get(key) != value]
        if changed:
            problems.append(f"the checkpoint of step {manifest.step} has another {changed[0]}")
        row = by_step.get(manifest.step)
        if row is not None and row.loss != manifest.loss:
            problems.append(
                f"the checkpoint of step {manifest.step} has the loss {manifest.loss}, and "
                f"{row.loss} is recorded"
            )
    known = sum(manifest.step in by_step for manifest in manifests)
    text = (
        f"{count(len(manifests), 'checkpoint')} of the same data; the loss of {known} is that of "
    )
    return judged("checkpoints", problems, f"{text}the recorded step")


def _facts(order: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in order.items() if key not in _MAY_CHANGE}


MAX_SAMPLES: Final = 1 << 26
"""Most samples of all epochs that are computed: about ten seconds."""


def check_samples(
    rows: Sequence[StepRow], epochs: Sequence[Epoch], order: SampleOrder | None
) -> Check:
    """Check that the steps of each epoch have used each sample once.

    Args:
        rows: The steps.
        epochs: Their epochs.
        order: The sample order; None for a stream.
    """
    if not epochs:
        return not_checked("samples", NO_STEP)
    if order is None:
        return _check_stream(epochs)
    if order.sampler not in (SHUFFLED, SEQUENTIAL):
        return not_checked("samples", f"a {order.sampler} decides which samples an epoch has")
    checked = epochs[: MAX_SAMPLES // order.num_samples]
    if not checked:
        return not_checked("samples", f"{count(order.num_samples, 'sample')} are too many")
    steps = dict[int, set[int]]()
    for row in rows:
        steps.setdefault(row.epoch, set()).add(row.step)
    problems = [each for epoch in checked for each in _problems(epoch, steps[epoch.number], order)]
    return judged("samples", problems, _text(checked, len(epochs), order))


def _check_stream(epochs: Sequence[Epoch]) -> Check:
    """Epochs of a stream can only be compared with each other."""
    complete = [epoch.samples for epoch in epochs if epoch.is_complete]
    if len(set(complete)) > 1:
        sizes = ", ".join(map(str, complete))
        return judged("samples", [f"the epochs have unlike numbers of samples: {sizes}"], "")
    found = f"; {count(len(complete), 'epoch')} of {complete[0]} samples each" if complete else ""
    return not_checked("samples", f"a stream decides itself which samples it gives{found}")


def _problems(epoch: Epoch, steps: set[int], order: SampleOrder) -> list[str]:
    times = np.zeros(order.num_samples, dtype=np.uint8)
    used = 0
    for step in sorted(steps):
        indices = order.indices(step - 1, range(order.num_shards))
        times[indices] += 1  # once, if a step had a sample twice
        used += len(indices)
    repeated = int((times > 1).sum()) + used - int(times.sum(dtype=np.int64))
    problems = list[str]()
    if repeated:
        problems.append(f"epoch {epoch.number} used {count(repeated, 'sample')} more than once")
    never = int((times == 0).sum()) - _left_out(order)
    if epoch.is_complete and never:
        problems.append(f"epoch {epoch.number} never used {count(never, 'sample')}")
    return problems


def _left_out(order: SampleOrder) -> int:
    """Samples of the short last batch, if that is left out."""
    return order.num_samples % order.batch_size if order.drops_last else 0


def _text(checked: Sequence[Epoch], total: int, order: SampleOrder) -> str:
    complete = sum(epoch.is_complete for epoch in checked)
    each = f"each of {count(order.num_samples, 'sample')} once"
    if left_out := _left_out(order):
        each += f", except for {left_out} that are left out at the end of an epoch"
    parts = [f"{count(complete, 'complete epoch')} used {each}"]
    if complete < len(checked):
        parts.append(f"epoch {checked[-1].number}, which is not complete, used none twice")
    if len(checked) < total:
        parts.append(f"{count(total - len(checked), 'epoch')} not checked, too many samples")
    return "; ".join(parts)
