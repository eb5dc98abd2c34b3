"""Search: runs the trials of a search, and keeps its record; `core.tuning` decides.

runs/digits-tune-20260102-150405-9c41/
  search.yaml       what was asked for; see `settings`
  trials.jsonl      what happened; see `core.tuning.search`
  trials/0003/      a run directory like any other
  logs/slot-0.log   what the runs of a slot printed
  trials.csv, result.json, best.yaml, best.safetensors    see `outcome`
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Self

from holdfast.checkpoint.names import checkpoint_name
from holdfast.core.tuning.search import (
    Asked,
    Ended,
    Evaluated,
    Evolved,
    Fork,
    Line,
    Opened,
    Paused,
    SearchState,
    Started,
    Status,
    Stopping,
    Trial,
    parsed,
    plain,
)
from holdfast.errors import HoldfastError, Interrupted
from holdfast.job import JOB_FILE, load
from holdfast.rundir import json_lines
from holdfast.rundir.follow import StepTail
from holdfast.rundir.run_directory import METRICS, held
from holdfast.runs.controls import Controls, stopped_by_signals
from holdfast.tuning.fork import fork
from holdfast.tuning.settings import SearchSettings
from holdfast.tuning.slots import Slots
from holdfast.tuning.suggest import perturb, suggest

TICK_S: Final = 0.1
RECORD: Final = "trials.jsonl"
MAX_STARTS: Final = 4
"""Starts of one trial without an evaluation in between, after which it has failed."""

Note = Callable[[Line, SearchState], None]


def trial_dir(directory: Path, number: int) -> Path:
    """The run directory of a trial."""
    return directory / "trials" / f"{number:04d}"


class Search:
    """A search in its directory.

    Args:
        directory: The directory; `search.yaml` is in it.
        settings: The content of that file.
        clock: Monotonic seconds.
        note: Called with each line of the record, and the state after it.
    """

    def __init__(
        self,
        directory: Path,
        settings: SearchSettings,
        clock: Callable[[], float],
        note: Note,
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._space = settings.dimensions
        self._note = note
        self._clock = clock
        self._controls = Controls()
        self._tails: dict[int, StepTail] = {}
        self._seen: dict[int, int] = {}
        self._state = SearchState(settings.plan(), _lines(directory))

    def run(self) -> SearchState:
        """Run trials until there are as many as were asked for.

        Raises:
            Interrupted: A signal ended the search; it can be resumed.
            HoldfastError: All trials fail alike.
            JobError: Another command runs the search.
        """
        logs = self._directory / "logs"
        logs.mkdir(exist_ok=True)
        with (
            held(self._directory),
            _Record(self._directory) as self._record,
            stopped_by_signals(self._controls, "the search"),
        ):
            self._ends_at = self._deadline()
            self._write(Opened())
            with Slots(self._settings.at_once, logs) as self._slots:
                self._run()
        if self._controls.stop:
            raise Interrupted(
                f"the search was stopped; continue it with holdfast tune --resume {self._directory}"
            )
        if error := self._state.same_failures():
            raise HoldfastError(f"the last trials failed alike, so no more are tried: {error}")
        return self._state

    def _deadline(self) -> float | None:
        budget_s = self._settings.budget_s
        if budget_s is None:
            return None
        return self._clock() + budget_s - _spent_s(self._directory)

    def _run(self) -> None:
        is_stopping = False
        while True:
            if self._controls.abort:
                return  # the slots are killed
            if self._controls.stop and not is_stopping:
                is_stopping = True
                for number in self._slots.trials:
                    self._slots.stop(number)
            if not self._controls.stop:
                self._spend()
                self._fill()
            if not self._slots.trials:
                return
            for number, answer in self._slots.answers(TICK_S):
                self._follow(number)
                self._on_answer(self._state.trials[number], answer)
            for number in self._slots.trials:
                self._follow(number)

    @property
    def _is_spent(self) -> bool:
        return self._ends_at is not None and self._clock() >= self._ends_at

    def _spend(self) -> None:
        """Stop all trials once the budget is spent."""
        if self._is_spent:
            for trial in self._state.open:
                self._stop(trial, "the budget is spent")

    def _fill(self) -> None:
        """Give trials to the slots that have none: first those that have begun already."""
        self._evolve()
        for trial in self._state.open:
            if trial.number in self._slots.trials:
                continue
            if trial.stopping:  # the search died before its trial did
                self._end(trial, "stopped")
            elif self._slots.has_free and self._state.may_start(trial):
                self._start(trial)
        while self._slots.has_free and not self._is_spent:
            number = self._state.next_trial()
            if number is None:
                return
            self._write(Asked(trial=number, values=self._values_of(number)))
            self._start(self._state.trials[number])

    def _values_of(self, number: int) -> dict[str, Any]:
        settings = self._settings
        if number == 0 and settings.first is not None:
            return settings.first
        known = self._state.known_to(number)
        return suggest(settings.sampler, self._space, settings.seed, number, known, settings.goal)

    def _evolve(self) -> None:
        """Replace the worst trials of a population once a generation is complete."""
        state = self._state
        pairs = state.replaced()
        if pairs is not None:
            forks = [
                Fork(
                    trial=number,
                    parent=donor,
                    replaces=worst,
                    values=perturb(
                        self._space, self._settings.seed, number, state.trials[donor].values
                    ),
                )
                for number, (worst, donor) in enumerate(pairs.items(), len(state.trials))
            ]
            self._write(Evolved(epoch=state.segment_end, forks=[asdict(each) for each in forks]))
        for trial in state.open:  # before its donor continues, which removes old checkpoints
            path = trial_dir(self._directory, trial.number)
            if trial.fork is not None and not _has_state(path, trial.paused_steps):
                job = load.check(self._job_of(trial), f"trial {trial.number}")
                donor_dir = trial_dir(self._directory, trial.fork.parent)
                fork(donor_dir, trial.paused_steps, path, job)

    def _job_of(self, trial: Trial) -> dict[str, Any]:
        """The values of the job of a trial, until the end of its segment."""
        end = self._state.segment_end
        values = self._settings.job_of(trial.values)
        is_last = end == self._state.plan.epochs
        return values if is_last else {**values, "stop_after_epochs": end}

    def _start(self, trial: Trial) -> None:
        number = trial.number
        if trial.starts >= MAX_STARTS:
            self._end(trial, "failed", error=f"its process has died {trial.starts} times")
            return
        path = trial_dir(self._directory, number)
        self._write(Started(trial=number))
        self._tails[number] = StepTail(path / METRICS)
        self._seen[number] = 0
        job = self._job_of(trial)
        self._slots.take().run(number, job, path, resume=(path / JOB_FILE).exists())

    def _follow(self, number: int) -> None:
        """Note the new evaluations of a trial that runs, and stop it if its rule says so."""
        trial = self._state.trials[number]
        for line in self._tails[number]():
            if "evaluation" not in line:
                continue
            self._seen[number] += 1
            if self._seen[number] <= len(trial.evaluations) or trial.stopping:
                continue  # noted before its process died
            self._evaluated(trial, line["evaluation"].get(self._settings.metric))
            if reason := self._state.reason_to_stop(number):
                self._stop(trial, reason)

    def _evaluated(self, trial: Trial, value: object) -> None:
        job = load.request(self._settings.job_of(trial.values), f"trial {trial.number}")
        epochs = self._seen[trial.number] * job.evaluation.every_epochs
        epoch = min(trial.first_epoch + epochs, job.epochs)
        number = float(value) if isinstance(value, int | float) else None
        number = None if number is None else json_lines.number(number)
        self._write(Evaluated(trial=trial.number, epoch=epoch, value=number))

    def _stop(self, trial: Trial, reason: str) -> None:
        if not trial.stopping:
            self._write(Stopping(trial=trial.number, reason=reason))
            self._slots.stop(trial.number)

    def _on_answer(self, trial: Trial, answer: dict[str, Any] | None) -> None:
        if answer is None:
            return  # its slot has died; it is started again
        if "error" in answer:
            if not self._controls.stop:
                self._end(trial, "failed", error=f"{answer['error']}: {answer['message']}")
            return
        if answer["status"] == "stopped" and not trial.stopping:
            if self._controls.stop:
                return  # it is continued when the search is
            self._write(Stopping(trial=trial.number, reason="stopped by a signal"))
        end = self._state.segment_end
        if end < self._state.plan.epochs and not trial.stopping:
            self._write(Paused(trial=trial.number, epoch=end, steps=answer["steps"]))
            return
        self._end(trial, "stopped" if trial.stopping else "finished", answer)

    def _end(
        self, trial: Trial, status: Status, answer: dict[str, Any] | None = None, error: str = ""
    ) -> None:
        facts = answer or {}
        line = Ended(
            trial=trial.number,
            status=status,
            steps=facts.get("steps", 0),
            seconds=sum(facts.get("seconds", {}).values()) or None,
            weights_sha256=facts.get("weights_sha256"),
            error=error,
        )
        self._write(line)

    def _write(self, line: Line) -> None:
        self._record.write(line)
        self._state.apply(line)
        self._note(line, self._state)


def _has_state(run_dir: Path, step: int) -> bool:
    """True if a fork has its first checkpoint, or has had it when it was started."""
    checkpoint = run_dir / "checkpoints" / checkpoint_name(step)
    return checkpoint.exists() or (run_dir / JOB_FILE).exists()


def _lines(directory: Path) -> Iterator[Line]:
    """The lines of the search in a directory, the oldest first; torn ones are skipped."""
    for entry in json_lines.read(directory / RECORD):
        line = parsed(entry)
        if line is not None:
            yield line


def _spent_s(directory: Path) -> float:
    """Seconds for which commands have run the search in a directory."""
    spent = began = last = 0.0
    for entry in json_lines.read(directory / RECORD):
        if entry.get("event") == "opened":
            spent += last - began
            began = entry["time_unix_s"]
        last = entry["time_unix_s"]
    return spent + last - began


class _Record:
    """Appends to the record of a search.

    Args:
        directory: The directory of the search.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / RECORD
        self._file = self._path.open("a+b", buffering=0)
        size = self._file.seek(0, os.SEEK_END)
        if size and os.pread(self._file.fileno(), 1, size - 1) != b"\n":
            self._file.write(b"\n")  # a crash has torn the last line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, line: Line) -> None:
        """Append a line.

        Raises:
            HoldfastError: It cannot be written, so the search could not be resumed after it.
        """
        name, fields = plain(line)
        entry = {"time_unix_s": round(time.time(), 6), "event": name, **fields}
        try:
            self._file.write(json.dumps(entry).encode() + b"\n")
        except OSError as error:
            raise HoldfastError(
                f"{self._path} cannot be written: {error.strerror}; fix that, then continue the "
                "search by --resume"
            ) from None
