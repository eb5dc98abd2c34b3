"""Reporter: gives each new checkpoint of a run to Ray Train, with its metrics.

A report takes Ray Train about two seconds, so it happens in a thread of its own, of the newest
checkpoint only: training never waits for one. The last checkpoint is always reported.

What Ray Train keeps is a small run directory, from which the run can be resumed anywhere:

    job.yaml
    checkpoints/step-00000200/
"""

from __future__ import annotations

import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import ray.train
from ray.train import Checkpoint

from holdfast.checkpoint import names
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import CheckpointError
from holdfast.job import JOB_FILE
from holdfast.sinks.callback import Event

INTERVAL_S: Final = 0.3
"""Interval at which the checkpoints are looked at."""
MAX_ROWS: Final = 100_000
"""Steps and evaluations since the last reported checkpoint that are remembered."""
_OUTGOING: Final = "outgoing-ray-train"


class Reporter:
    """Works until it is closed.

    Args:
        run_dir: The run's directory on this host.
        call_others: Has all other workers of Ray Train call `report` as well.
    """

    def __init__(self, run_dir: Path, call_others: Callable[[], None]) -> None:
        self._run_dir = run_dir
        self._call_others = call_others
        self._store = CheckpointStore.of_run(run_dir)
        self._rows = deque[tuple[int, dict[str, Any]]](maxlen=MAX_ROWS)
        self._facts: dict[str, Any] = {}
        self._step = 0  # the newest one that has been logged
        self._reported = -1
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ray-train-reports", daemon=True)
        self._thread.start()

    def on_event(self, event: Event) -> None:
        """Take an event of the run."""
        if event.step is None or event.kind not in ("step", "evaluation"):
            return
        if event.kind == "step":
            row = {key: event.values.get(key) for key in ("epoch", "loss")}
        else:
            row = {_metric(name): value for name, value in event.values.items()}
        with self._lock:
            self._step = event.step
            self._rows.append((event.step, row))

    def finish(self) -> None:
        """Report the last checkpoint; returns when that is done."""
        self._closing.set()
        self._thread.join()
        self._report_newest(is_last=True)

    def abandon(self) -> None:
        """Report nothing more."""
        self._closing.set()

    def _work(self) -> None:
        while not self._closing.wait(INTERVAL_S):
            self._report_newest(is_last=False)

    def _report_newest(self, *, is_last: bool) -> None:
        newest = next(iter(self._store.committed()), None)
        step = -1 if newest is None else names.step_of(newest)
        # With a later step in the log, all that belongs to this one is there, too.
        if newest is None or step <= self._reported or not (is_last or step < self._step):
            return
        metrics = {"step": step, **self._metrics_of(step)}
        try:
            with _linked(self._run_dir, newest) as folder:
                self._call_others()
                ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))
        except CheckpointError:  # retention has deleted it meanwhile: there is a newer one
            return
        self._reported = step

    def _metrics_of(self, step: int) -> dict[str, Any]:
        with self._lock:
            while self._rows and self._rows[0][0] <= step:
                self._facts |= self._rows.popleft()[1]
            return dict(self._facts)


def _metric(name: str) -> str:
    """The name of a metric of an evaluation among those of a report."""
    return f"evaluation.{name}" if name in ("step", "epoch", "loss") else name


@contextmanager
def _linked(run_dir: Path, name: str) -> Iterator[Path]:
    """A folder with the job and hard links to a checkpoint: retention may delete that meanwhile.

    Raises:
        CheckpointError: It has been deleted.
    """
    folder = run_dir / _OUTGOING
    shutil.rmtree(folder, ignore_errors=True)
    copy = folder / "checkpoints" / name
    copy.mkdir(parents=True)
    try:
        shutil.copyfile(run_dir / JOB_FILE, folder / JOB_FILE)
        for path in (run_dir / "checkpoints" / name).iterdir():
            os.link(path, copy / path.name)
    except FileNotFoundError as error:
        raise CheckpointError(f"{error.filename} was deleted meanwhile") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
