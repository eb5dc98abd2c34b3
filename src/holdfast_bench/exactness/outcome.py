"""Outcome: the result of a run of a configuration, and how two results differ. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.core.failures import LEFT_STATUS

HANG: Final = "hang"
"""The error of a run that did not end in time."""
REFUSALS: Final = ("JobError", "NonFiniteError")
"""Errors by which a job may be refused, if every configuration refuses it."""
EXPECTED_STATUSES: Final = (0, LEFT_STATUS, -signal.SIGKILL)
"""How workers end that have finished, that were told to leave, and that were killed."""
KILLED: Final = "was killed by SIGKILL"
PARALLEL: Final = "parallel."
"""In the message by which a job is refused whose model cannot be divided."""
COMPARED: Final = ("loss", "norm", "lr", "epoch", "samples", "logged", "skipped", "scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseOutcome:
    """Result of one run.

    Attributes:
        error: The name of the error that ended it; empty if it finished.
        message: Of the error.
        weights: The hash over all weights; empty if it did not finish.
        steps: What the metrics say of each step, by its number from 1.
        evaluations: The metrics by step.
        kills: Workers that have died as planned.
        other_failures: How other workers have failed, in words.
    """

    error: str = ""
    message: str = ""
    weights: str = ""
    steps: Mapping[int, Mapping[str, Any]]
    evaluations: Mapping[int, Mapping[str, Any]]
    kills: int = 0
    other_failures: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        answer: Mapping[str, Any],
        metrics: Iterable[Mapping[str, Any]],
        events: Iterable[Mapping[str, Any]],
        kills: int,
    ) -> CaseOutcome:
        """From an answer of `runs.job_server`, and the run's metrics and events."""
        lines = list(metrics)
        unfinished = "" if answer.get("status") == "finished" else str(answer.get("status", ""))
        return cls(
            error=answer.get("error", unfinished),
            message=answer.get("message", ""),
            weights=answer.get("weights_sha256") or "",
            steps={
                line["step"]: {key: line.get(key) for key in COMPARED}
                for line in lines
                if "loss" in line
            },
            evaluations={
                line["step"]: line["evaluation"] for line in lines if "evaluation" in line
            },
            kills=kills,
            other_failures=tuple(_other_failures(events, kills)),
        )


def _other_failures(events: Iterable[Mapping[str, Any]], kills: int) -> Iterator[str]:
    """Workers that have ended otherwise than by finishing, by leaving, and by planned kills."""
    left = kills
    for event in events:
        if event["event"] != "worker-exited":
            continue
        as_planned = event["unexpected"] and event["cause"] == KILLED and left > 0
        left -= as_planned
        if event["status"] not in EXPECTED_STATUSES or (event["unexpected"] and not as_planned):
            yield f"rank {event['rank']} {event['cause']}"


def problem(reference: CaseOutcome, other: CaseOutcome, *, is_divided: bool = False) -> str:
    """Contradictions of the other outcome to the reference, in words; empty without any.

    Args:
        reference, other: The outcomes.
        is_divided: True if the other one has divided the model, which may be refused.
    """
    if is_divided and other.error == "JobError" and PARALLEL in other.message:
        return ""
    if reference.error and reference.error not in REFUSALS:
        return f"the reference failed with {reference.error}: {reference.message}"
    if _named(reference) != _named(other):
        return f"{_ending(other)}; the reference: {_ending(reference)}"
    return "" if reference.error else _unlike(reference, other)


def _unlike(reference: CaseOutcome, other: CaseOutcome) -> str:
    """In what two runs differ that have finished."""
    step = first_difference(reference, other)
    where = (
        ""
        if step is None
        else f"; step {step} is the first to differ{_how(reference, other, step)}"
    )
    if reference.weights != other.weights:
        return f"other weights than the reference{where}"
    if step is not None:
        return f"the same weights and other metrics{where}"
    if other.other_failures:
        return f"the same weights, but a worker was lost: {'; '.join(other.other_failures)}"
    if reference.evaluations != other.evaluations:
        return "the same weights and other evaluations"
    return ""


def first_difference(reference: CaseOutcome, other: CaseOutcome) -> int | None:
    """The first step that one of them does not have, or of which they tell unlike things."""
    numbers = sorted({*reference.steps, *other.steps})
    return next((n for n in numbers if reference.steps.get(n) != other.steps.get(n)), None)


def _how(reference: CaseOutcome, other: CaseOutcome, step: int) -> str:
    one = reference.steps.get(step, {})
    two = other.steps.get(step, {})
    unlike = [key for key in COMPARED if one.get(key) != two.get(key)]
    return f" ({', '.join(f'{key} {one.get(key)} → {two.get(key)}' for key in unlike)})"


def _named(outcome: CaseOutcome) -> str:
    """The error without numbers: steps, ranks and values may differ between configurations."""
    return f"{outcome.error} {re.sub(r'[0-9.]+', '#', outcome.message)}"


def _ending(outcome: CaseOutcome) -> str:
    return f"{outcome.error}: {outcome.message}" if outcome.error else "finished"
