"""Run all: every benchmark in turn, each result in its file. What is there already is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from holdfast.errors import BenchmarkFailed, JobError
from holdfast_bench.results.conditions import Stopwatch
from holdfast_bench.results.measure import measure
from holdfast_bench.results.result import Result
from holdfast_bench.suite.catalogue import Benchmark

Outcome = Literal["measured", "kept", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Outcome of one benchmark.

    Attributes:
        name: Its name.
        outcome: True if it was measured now, its result was kept, or it failed.
        seconds: How long it took, now or then; None if it failed.
    """

    name: str
    outcome: Outcome
    seconds: float | None


def run_all(
    benchmarks: Sequence[Benchmark],
    folder: Path,
    *,
    quick: bool,
    peers_python: str | None,
    note: Callable[[str], None],
) -> list[Done]:
    """Run benchmarks that have no result in `folder` under the same options and conditions.

    Args:
        benchmarks: What to run.
        folder: For the results.
        quick: True if each has its quick options.
        peers_python: The interpreter of other systems, for benchmarks that compare with them.
        note: Called with what happens, in words.

    Raises:
        JobError: A result cannot be written.
    """
    done = []
    for number, benchmark in enumerate(benchmarks, 1):
        options = options_of(benchmark, quick=quick, peers_python=peers_python)
        place = f"{number} of {len(benchmarks)}: {benchmark.name}"
        kept = _kept(folder, benchmark.name, options)
        if kept is not None:
            note(f"{place} is kept, measured {kept.conditions.started:%Y-%m-%d %H:%M} UTC")
            done.append(_done(kept, "kept"))
            continue
        note(place)
        try:
            result = measure(benchmark.name, options)
        except BenchmarkFailed as error:
            note(str(error))
            done.append(Done(name=benchmark.name, outcome="failed", seconds=None))
            continue
        result.save(folder)
        done.append(_done(result, "measured"))
    return done


def options_of(benchmark: Benchmark, *, quick: bool, peers_python: str | None) -> list[str]:
    """The options of a benchmark in the suite."""
    words = benchmark.quick_words if quick else []
    if benchmark.peers and peers_python is not None:
        words += ["--peers-python", peers_python]
    return words


def _done(result: Result, outcome: Outcome) -> Done:
    return Done(name=result.benchmark, outcome=outcome, seconds=result.conditions.seconds)


def _kept(folder: Path, name: str, options: Sequence[str]) -> Result | None:
    """A result that need not be measured again."""
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    try:
        result = Result.load(path)
    except JobError:  # of another version
        return None
    then = result.conditions
    now = Stopwatch().conditions()
    same = (then.cpu, then.cores, then.versions) == (now.cpu, now.cores, now.versions)
    return result if same and result.options == tuple(options) else None
