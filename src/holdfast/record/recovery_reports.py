"""RecoveryReport: cause, impact and cost of one recovery, and its text for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, Final, Literal

from holdfast.record.units import named
from holdfast.record.whereabouts import Whereabouts
from holdfast.rundir.stacks import stacks_file

WIDTH: Final = 160
"""Most of a cause that is shown, characters; the worker's log has the rest."""
SHORT_WIDTH: Final = 100
"""Most of it that a line of a table shows."""

_ORDER: Final = {"missing": 0, "waiting": 1, "meanwhile": 2}
"""Order of the lines about where workers were."""

Outcome = Literal["recovered", "restarted", "ended", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """A root cause.

    Attributes:
        who: Process or host that failed: `rank 1`, `agent`, `fork-server`, `coordinator` or `host`.
        rank: The rank, if it was a worker.
        what: Failure, in words.
        injected_fault: The kind of the fault, if it was injected.
        stack: Place of a hang, if it could be asked: the innermost frames, the innermost first.
    """

    who: str
    rank: int | None = None
    what: str
    injected_fault: str = ""
    stack: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """Cause, impact and cost of one recovery.

    Attributes:
        number: Counts the reports of a run, from 1.
        time_unix_s: End of the recovery.
        outcome: `recovered`: the run makes progress again. `ended`: the run ended without a further
            step. `failed`: the failure ended the run. `restarted`: a script runs again from its
            start, and had reported no step.
        causes: Root causes, the first first.
        step: The most steps that any worker had committed before.
        ended: Workers without a failure of their own that were ended because of it.
        halted: Workers that halted meanwhile.
        seconds: Time of each phase, in order: `found` (after the injection of a fault),
            `halted` (the others) and `forked`, whichever was first, `all ready`, `loaded` (the
            checkpoint of a restart), `state` (it was transferred), `next step`; or `back` for a
            coordinator.
        total_s: The sum of these.
        checkpoint: The step of the checkpoint that all workers loaded, 0 for the start of the run;
            None if a worker had the state.
        recomputed_steps, recomputed_samples: Committed work that was computed again.
        state_bytes: Size of the state that each joining worker received; None if there was
            none, or if it was not measured.
        whereabouts: Places of the workers when one of them hung, or a host fell silent.
        missing: The ranks that the others were waiting for then.
    """

    number: int
    time_unix_s: float
    outcome: Outcome
    causes: tuple[RootCause, ...]
    step: int
    ended: tuple[int, ...]
    halted: tuple[int, ...]
    seconds: Mapping[str, float]
    total_s: float
    checkpoint: int | None
    recomputed_steps: int
    recomputed_samples: int
    state_bytes: int | None = None
    whereabouts: tuple[Whereabouts, ...] = ()
    missing: tuple[int, ...] = ()


def plain(report: RecoveryReport) -> dict[str, Any]:
    """A report as plain data, as in `recoveries.jsonl`."""
    import msgspec  # few processes read or write reports

    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(report))
    return found


def reports_in(lines: Iterable[Mapping[str, Any]]) -> Iterator[RecoveryReport]:
    """The reports in lines of `recoveries.jsonl`; those of another version are left out."""
    import msgspec  # as above

    for line in lines:
        with suppress(msgspec.ValidationError):
            yield msgspec.convert(line, RecoveryReport)


def text(report: RecoveryReport, logs: Path) -> str:
    """A report for people, several lines.

    Args:
        report: The report.
        logs: The directory of the workers' logs.
    """
    causes = Counter(map(_words, report.causes))
    first, *others = [f"{what}{f', {n} times' if n > 1 else ''}" for what, n in causes.items()]
    rows = [*(("and", other) for other in others), *_stacks(report, logs), *_where(report)]
    rows += [("others", others_in_words(report)), ("time", _times(report)), *_end(report)]
    place = f", after step {report.step}" if report.step else ""
    head = f"── recovery {report.number}{place} ── {first}"
    return "\n".join([head, *(f"   {name:<12}{words}" for name, words in rows)])


def causes_in_words(report: RecoveryReport) -> str:
    """Causes in a line: the first root cause, and how many more there are."""
    if not report.causes:
        return "unknown"
    first, *others = report.causes
    words = f"{first.who} {first.what}".replace(" was killed by", " killed by")
    more = f" and {len(others)} more" if others else ""
    return f"{words if len(words) <= SHORT_WIDTH else f'{words[: SHORT_WIDTH - 1]}…'}{more}"


def state_from(report: RecoveryReport) -> str:
    """Source of the workers' state, in words."""
    if report.checkpoint is not None:
        return f"checkpoint of step {report.checkpoint:,}" if report.checkpoint else "the start"
    return f"kept by {named(report.halted)}" if report.halted else "the other workers"


def _words(cause: RootCause) -> str:
    who = cause.who if cause.rank is not None else f"the {cause.who.replace('-', ' ')}"
    words = shorten(f"{who} {cause.what}", WIDTH, placeholder=" …")
    return f"{words} (injected fault: {cause.injected_fault})" if cause.injected_fault else words


def _stacks(report: RecoveryReport, logs: Path) -> Iterator[tuple[str, str]]:
    for cause in report.causes:
        if cause.what.startswith("hung") and not cause.stack:
            yield "stack", "none: the worker could not write it"
        if cause.rank is not None and cause.stack:
            yield "stack", cause.stack[0]
            yield from (("", frame) for frame in cause.stack[1:])
            yield "", f"… all threads: {stacks_file(logs, cause.rank)}"


def _where(report: RecoveryReport) -> Iterator[tuple[str, str]]:
    """Places of the workers when one hung: which one was missing, and which ones waited for it."""
    shown = {cause.rank for cause in report.causes if cause.stack}
    groups: dict[tuple[str, str, str], list[int]] = {}
    for each in report.whereabouts:
        name = "waiting" if each.waits_for else "meanwhile"
        name = "missing" if each.rank in report.missing else name
        awaited = f", and waited for {named(each.waits_for)}" if each.waits_for else ""
        frame = each.stack[0] if each.stack and each.rank not in shown else ""
        groups.setdefault((name, f"{each.doing}{awaited}", frame), []).append(each.rank)
    for (name, doing, frame), ranks in sorted(groups.items(), key=lambda each: _ORDER[each[0][0]]):
        yield name, f"{named(ranks)} {_were(ranks)} {doing}"
        if frame:
            yield "", f"at {frame}"
    if gone := [
        rank for rank in report.missing if rank not in {w.rank for w in report.whereabouts}
    ]:
        yield "missing", named(gone)


def others_in_words(report: RecoveryReport) -> str:
    """Reaction of workers without a failure of their own, in words."""
    clauses = []
    if report.ended:
        clauses.append(f"{named(report.ended)} {_were(report.ended)} ended")
    if report.halted:
        their = "its" if len(report.halted) == 1 else "their"
        state = f"kept {their} state" if report.checkpoint is None else "loaded the checkpoint"
        clauses.append(f"{named(report.halted)} halted and {state}")
    return "; ".join(clauses) or "no other worker was affected"


def _times(report: RecoveryReport) -> str:
    phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in report.seconds.items())
    return f"{report.total_s:.2f} s: {phases}" if phases else f"{report.total_s:.2f} s"


def _end(report: RecoveryReport) -> list[tuple[str, str]]:
    """Step at which the run resumed, and what it computed again, or that it did not resume."""
    if report.outcome == "failed":
        return [("then", "the run failed")]
    if report.outcome == "restarted":
        return [("then", "the script restarted")]
    steps = f"{report.recomputed_steps} step{'s' * (report.recomputed_steps != 1)}"
    recomputed = [("recomputed", f"{steps}, {report.recomputed_samples} samples")]
    if report.checkpoint is None:
        return recomputed
    start = f"the checkpoint of step {report.checkpoint}" if report.checkpoint else "the start"
    return [("resumed", f"from {start}"), *recomputed]


def _were(ranks: Sequence[int]) -> str:
    return "was" if len(ranks) == 1 else "were"
