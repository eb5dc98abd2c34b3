"""Fuzz: examines drawn cases, and shrinks those that fail."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from holdfast_bench.exactness.case import REFERENCE, Case, Configuration, dump, words
from holdfast_bench.exactness.outcome import HANG, CaseOutcome, problem
from holdfast_bench.exactness.runner import Runner
from holdfast_bench.exactness.shrink import shrink

TRIES: Final = 60
"""Cases that are run to shrink a finding."""
REPEATS: Final = 3
"""Runs of a case that is known to fail, of which one must: a kill may meet other workers there."""
NOT_REPRODUCIBLE: Final = "the reference differs from itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseReport:
    """The result of a case.

    Attributes:
        case: The case.
        problems: What is wrong with each of its configurations; empty where nothing is.
        refusal: The error by which all configurations refuse the job, if they do.
        kills: Workers that have died as planned, of `planned`.
        seconds: What it took.
    """

    case: Case
    problems: tuple[str, ...]
    refusal: str
    kills: int
    seconds: float

    @property
    def found(self) -> bool:
        """True if anything is wrong."""
        return any(self.problems)

    @property
    def planned(self) -> int:
        """Kills in all configurations."""
        return sum(len(each.kills) for each in self.case.configurations)

    @property
    def hung(self) -> bool:
        """True if a run did not end in time."""
        return any(f"{HANG}: " in wrong for wrong in self.problems)

    def failing(self) -> Case:
        """The case without the configurations in which nothing is wrong."""
        pairs = zip(self.case.configurations, self.problems, strict=True)
        return replace(self.case, configurations=tuple(each for each, wrong in pairs if wrong))


def examine(case: Case, runner: Runner) -> CaseReport:
    """Run a case in its configurations and in the reference, and compare."""
    began = time.monotonic()
    reference, *others = _run(case, runner, REFERENCE)
    divided = [each.parallel != "none" for each in case.configurations]
    problems = tuple(
        problem(reference, other, is_divided=is_divided)
        for other, is_divided in zip(others, divided, strict=True)
    )
    if any(problems) and not reference.error:
        again = _run(replace(case, configurations=()), runner, REFERENCE)[0]
        if problem(reference, again):
            problems = tuple(f"{NOT_REPRODUCIBLE}: {problem(reference, again)}" for _ in problems)
    return CaseReport(
        case=case,
        problems=problems,
        refusal=f"{reference.error}: {reference.message}" if reference.error else "",
        kills=sum(each.kills for each in others),
        seconds=time.monotonic() - began,
    )


def shrunk(report: CaseReport, runner: Runner) -> CaseReport:
    """A plainer case in which something is wrong too."""
    found = [report]

    def fails(case: Case) -> bool:
        for _ in range(REPEATS if any(each.kills for each in case.configurations) else 1):
            latest = examine(case, runner)
            if latest.found:
                found.append(latest)
                return True
        return False

    shrink(report.failing(), fails, TRIES)
    return found[-1]


def line(name: str, report: CaseReport) -> str:
    """The result of a case, on one line."""
    word = "FOUND" if report.found else "refused" if report.refusal else "ok"
    died = f", {report.kills} of {report.planned} kills" if report.planned else ""
    told = f" [{report.refusal[:100]}]" if word == "refused" else ""
    return (
        f"{name}: {word}, {len(report.problems)} configurations{died}, "
        f"{report.seconds:.1f} s: {words(report.case.recipe)}{told}"
    )


def details(report: CaseReport) -> str:
    """The findings, configuration by configuration."""
    return "\n".join(
        f"  {_named(made)}: {wrong or 'as the reference'}"
        for made, wrong in zip(report.case.configurations, report.problems, strict=True)
    )


def specification(report: CaseReport) -> str:
    """A case for `--job` that runs the failing part of it again."""
    return dump(report.failing())


def _named(made: Configuration) -> str:
    return f"({words(made) or 'one worker'})"


def _run(case: Case, runner: Runner, first: Configuration) -> list[CaseOutcome]:
    with tempfile.TemporaryDirectory(prefix="exactness-") as folder:
        return runner.run_all(case.recipe, (first, *case.configurations), Path(folder))
