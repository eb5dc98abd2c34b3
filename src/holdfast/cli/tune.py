"""`holdfast tune`: search good values for keys of a job.

A search is shown on standard error: as a live table, or in a pipe by a line for each start, stop
and end of a trial.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Self, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from holdfast.cli.arguments import EndingJson, JobOfRun, Overrides
from holdfast.core.tuning.rungs import RULES, RuleName
from holdfast.core.tuning.search import Ended, Goal, Line, SearchState, Started, Stopping, Trial
from holdfast.errors import JobError
from holdfast.job import load
from holdfast.job.mistakes import nearest
from holdfast.sinks.terminal import closing_table
from holdfast.tuning import space
from holdfast.tuning.outcome import BEST_JOB, TuneResult
from holdfast.tuning.settings import SearchSettings
from holdfast.tuning.suggest import SAMPLERS, Sampler
from holdfast.tuning.tune import TuneOptions, begun, chosen_settings, resumed, run_search

_BUDGET: Final = re.compile(r"(\d+(?:\.\d+)?)([smh])")
MAX_ROWS: Final = 15
T = TypeVar("T", bound=str)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}


def tune(
    job: JobOfRun = None,
    overrides: Overrides = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--space",
            metavar="KEY=RANGE|FILE",
            help="A key to vary: a..b, a..b:log or choices a,b,c; or a YAML file of such keys. May "
            "be repeated; default: derived from the job.",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of trials; default: 20, all points of a grid, or as the budget allows.",
        ),
    ] = None,
    at_once: Annotated[
        int | None,
        typer.Option(min=1, help="Trials at the same time; default: as many as have CPUs here."),
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(help=f"How values are chosen: {', '.join(SAMPLERS)}; default: tpe."),
    ] = None,
    stop: Annotated[
        str | None,
        typer.Option(
            help=f"Rule that stops poor trials: {', '.join(RULES)}; default: none, without --space "
            "asha."
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="Metric of the evaluation; default: evaluation.best, or the task's."),
    ] = None,
    goal: Annotated[str | None, typer.Option(help="max or min; default: min for a loss.")] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Time after which no trial continues, such as 20m or 2h."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampler.")] = 0,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Let nothing depend on which trials end first; slots may be idle."
        ),
    ] = False,
    population: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Population based training: number of trials, of which the worst quarter is "
            "replaced by forks of the best after each generation.",
        ),
    ] = None,
    every: Annotated[
        int, typer.Option(min=1, help="Epochs of a generation of the population.")
    ] = 1,
    run: Annotated[
        Path | None, typer.Option(help="New directory for the search; default: one in runs/.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="SEARCH", help="Continue the search in this directory."),
    ] = None,
    as_json: EndingJson = False,
) -> None:
    """Search good values for keys of a job: run it with different ones, keep the best."""
    options = TuneOptions(
        trials=trials,
        at_once=at_once,
        sampler=_sampler(sampler),
        stop=_rule(stop),
        metric=metric,
        goal=_goal(goal),
        budget_s=None if budget is None else _seconds(budget),
        seed=seed,
        strict=strict,
        population=population,
        every=every,
    )
    if resume is not None:
        if job is not None or ranges or run is not None:
            raise JobError("--resume continues a search as it was begun: give no job or --space")
        path = resume
        chosen = resumed(path, options)
    else:
        if job is None:
            raise JobError("no job is named; or give --resume SEARCH to continue a search")
        request = load.load(job, overrides or [])
        given = space.of_options(ranges) if ranges else None
        chosen = chosen_settings(request, given, options)
        path = begun(chosen, run)
    with _TuneView(path, chosen) as view:
        result = run_search(path, chosen, view.note)
    if as_json:
        print(json.dumps(result.as_dict()))
    else:
        print(_outcome_lines(result))


def _sampler(word: str | None) -> Sampler | None:
    return None if word is None else _one_of(word, SAMPLERS, "--sampler")


def _rule(word: str | None) -> RuleName | None:
    return None if word is None else _one_of(word, RULES, "--stop")


def _goal(word: str | None) -> Goal | None:
    goals: tuple[Goal, ...] = ("max", "min")
    return None if word is None else _one_of(word, goals, "--goal")


def _one_of(word: str, known: tuple[T, ...], option: str) -> T:
    for each in known:
        if each == word:
            return each
    hint = nearest(word, known) or f"use {', '.join(known)}"
    raise JobError(f"{option}: unknown {word!r}; {hint}")


def _seconds(budget: str) -> float:
    found = _BUDGET.fullmatch(budget)
    if found is None:
        raise JobError(f"--budget {budget}: give a time, such as 90s, 20m or 2h")
    return float(found[1]) * _SECONDS[found[2]]


class _TuneView:
    """Shows a search while it runs.

    Args:
        path: Directory of the search.
        settings: Its settings.
    """

    def __init__(self, path: Path, settings: SearchSettings) -> None:
        self._settings = settings
        self._console = Console(stderr=True, soft_wrap=True)
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(console=self._console, transient=True, auto_refresh=False)
        self._print(f"search in {path}: {settings.trials} trials, {settings.at_once} at once")
        if settings.first is not None:
            for key, each in settings.space.items():
                self._print(f"  {key}: {json.dumps(each)}")

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, line: Line, state: SearchState) -> None:
        """Show a line of the record."""
        if self._live is not None:
            self._live.update(self._table(state), refresh=True)
            return
        match line:
            case Started():
                trial = state.trials[line.trial]
                self._print(f"trial {line.trial} {_beginning(trial)}: {_words(trial.values)}")
            case Stopping():
                self._print(f"trial {line.trial} is stopped: {line.reason}")
            case Ended():
                self._print(f"trial {line.trial} {self._end(state.trials[line.trial], line)}")

    def _end(self, trial: Trial, line: Ended) -> str:
        value = trial.value(self._settings.goal)
        figure = "" if value is None else f", {self._settings.metric} {value:.6g}"
        reason = f": {line.error}" if line.error else ""
        return f"{line.status} after epoch {trial.epoch}{figure}{reason}"

    def _table(self, state: SearchState) -> Table:
        ended = sum(each.ended is not None for each in state.trials)
        table = Table(
            "trial",
            *self._settings.space,
            self._settings.metric,
            "epoch",
            "state",
            title=f"{ended} of {self._settings.trials} trials",
            box=box.SIMPLE,
        )
        for trial in state.ranked[:MAX_ROWS]:
            value = trial.value(self._settings.goal)
            keys = [_short(trial.values.get(key, "")) for key in self._settings.space]
            status = trial.ended.status if trial.ended else "runs"
            about = trial.stopping or (trial.ended.error if trial.ended else "")
            table.add_row(
                str(trial.number),
                *keys,
                "" if value is None else f"{value:.6g}",
                str(trial.epoch),
                f"{status}: {about}" if about else status,
            )
        return table

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)


def _beginning(trial: Trial) -> str:
    if trial.evaluations or trial.starts > 1:
        return "continues"
    if trial.fork is not None:
        return f"starts as a fork of trial {trial.fork.parent} at epoch {trial.first_epoch}"
    return "starts"


def _outcome_lines(result: TuneResult) -> str:
    """The result of a search as a table, with the next commands."""
    facts: dict[str, Any] = {"trials": len(result.trials)}
    for status in ("stopped", "failed"):
        if count := sum(each.status == status for each in result.trials):
            facts[status] = count
    best = result.best
    if best is not None:
        facts |= {"best trial": best.number, f"best {result.metric}": best.value, **best.values}
        facts["train it again"] = f"holdfast train {result.path / BEST_JOB}"
    facts["run_dir"] = str(result.path)
    return closing_table(facts)


def _words(values: Mapping[str, Any]) -> str:
    if not values:
        return "the job as it is"
    return " ".join(f"{key}={_short(value)}" for key, value in values.items())


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
