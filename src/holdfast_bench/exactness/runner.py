"""Runner: runs the configurations of a case, a few at a time, in processes of their own.

Each lane is a `holdfast.runs.job_server`, which keeps its fork server from run to run.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Self

from holdfast.errors import HoldfastError
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import EVENTS, METRICS
from holdfast.runs.coordinator_process import scale
from holdfast_bench.exactness.case import Configuration, Recipe, plain
from holdfast_bench.exactness.outcome import HANG, CaseOutcome

MAX_CONCURRENT_RUNS: Final = 2
"""Runs at a time. Most of a run is the start of its processes, which leaves no core idle."""
TIMEOUT_S: Final = 300.0
"""After which a run counts as hung; most take one or two seconds."""
COMPILE_TIMEOUT_S: Final = 1800.0
"""The same for a model that is compiled, once for every shape of a batch."""
_OWN_VARIABLES: Final = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads that wait actively take the cores from the other runs and workers."""
LOOK_S: Final = 0.01
"""Time between two looks whether a run trains."""
TASK: Final = "holdfast_bench.exactness.task:main"
RESTLESS: Final = "holdfast_bench.exactness.policy:restless"


class Runner:
    """Lanes, for a `with` block."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_CONCURRENT_RUNS)
        self._lanes: SimpleQueue[_Lane] = SimpleQueue()

    def __enter__(self) -> Self:
        for _ in range(MAX_CONCURRENT_RUNS):
            self._lanes.put(_Lane())
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
        while not self._lanes.empty():
            self._lanes.get().close()

    def run_all(
        self, recipe: Recipe, configurations: Sequence[Configuration], folder: Path
    ) -> list[CaseOutcome]:
        """Run a recipe in all configurations; `folder` is for what the runs leave behind."""
        numbered = enumerate(configurations)
        return list(
            self._threads.map(
                lambda each: self._run(recipe, each[1], folder / f"{each[0]}"), numbered
            )
        )

    def _run(self, recipe: Recipe, configuration: Configuration, run_dir: Path) -> CaseOutcome:
        run_dir.mkdir(parents=True)
        timeout_s = COMPILE_TIMEOUT_S if recipe.compile else TIMEOUT_S
        lane = self._lanes.get()
        try:
            job = job_of(recipe, configuration, run_dir)
            with _scaling(run_dir, configuration.sizes):
                answer = lane.run(job, run_dir, resume=False, timeout_s=timeout_s)
            if answer.get("status") == "stopped" and configuration.stop_at is not None:
                workers = configuration.resume_workers
                resumed = {
                    "workers": workers,
                    "shards_per_worker": None,
                    "exchange": "auto",
                    "parallel": _parallel(configuration, workers),
                }
                answer = lane.run(job | resumed, run_dir, resume=True, timeout_s=timeout_s)
        finally:
            self._lanes.put(lane)
        metrics = _lines(run_dir / METRICS)
        events = _lines(run_dir / EVENTS)
        return CaseOutcome.of(answer, metrics, events, kills=len(list(run_dir.glob("killed-*"))))


class _Lane:
    def __init__(self) -> None:
        self._start()

    def run(
        self, job: Mapping[str, Any], run_dir: Path, *, resume: bool, timeout_s: float
    ) -> dict[str, Any]:
        request = {"job": job, "run_dir": str(run_dir), "resume": resume}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: there is no answer
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        ready = select.poll()
        ready.register(self._process.stdout, select.POLLIN)
        if not ready.poll(1000 * timeout_s):
            self._replace()
            return {"error": HANG, "message": f"no result after {timeout_s:.0f} s"}
        if not (line := self._process.stdout.readline()):
            status = self._process.wait()
            self._replace()
            return {"error": "crash", "message": f"the supervisor exited {status}"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _start(self) -> None:
        # It ends with the thread that starts it, and those of the pool last as long as the runner.
        options = ["--parent", str(os.getpid()), "--import", TASK]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.runs.job_server", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                **_OWN_VARIABLES,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
            start_new_session=True,
        )

    def _replace(self) -> None:
        self._process.kill()  # whatever it has started ends with it
        self.close()
        self._start()


def job_of(recipe: Recipe, made: Configuration, run_dir: Path) -> dict[str, Any]:
    """The keys of the job that runs a recipe in a configuration."""
    return {
        "name": "exactness",
        "task": TASK,
        "params": {
            "recipe": plain(recipe),
            "kills": [asdict(kill) for kill in made.kills],
            "stop_at": made.stop_at,
            "run_dir": str(run_dir),
        },
        "batch": recipe.batch,
        "shards": recipe.shards,
        "seed": recipe.seed,
        "clip_norm": recipe.clip_norm,
        "precision": recipe.precision,
        "compile": recipe.compile,
        "threads_per_worker": recipe.threads,
        "workers": made.workers,
        "max_workers": max(made.workers, *made.sizes) if made.sizes else None,
        "shards_per_worker": made.shards_per_worker,
        "exchange": made.exchange,
        "parallel": _parallel(made, made.workers),
        "non_finite": "skip" if recipe.bad else "stop",
        "balance": RESTLESS if made.replans else "even",
        "on_failure": made.policy,
        "loader": {"prefetch": made.prefetch, "workers": made.loader_workers},
        "checkpoint": {"every_steps": made.checkpoint_every},
    }


@contextlib.contextmanager
def _scaling(run_dir: Path, sizes: Sequence[int]) -> Iterator[None]:
    """Give a run these numbers of workers while the block is open, as fast as it takes them."""
    over = threading.Event()

    def scale_all() -> None:
        while not _lines(run_dir / METRICS) and not over.wait(LOOK_S):
            pass
        for workers in sizes:
            with contextlib.suppress(HoldfastError):  # the run is over, or between two starts
                scale(run_dir, workers)

    scaling = threading.Thread(target=scale_all)
    if sizes:
        scaling.start()
    try:
        yield
    finally:
        over.set()
        if sizes:
            scaling.join()


def _parallel(made: Configuration, workers: int) -> dict[str, int]:
    stages = workers if made.parallel == "pipeline" else 1
    return {"zero": 3 * (made.parallel == "zero"), "pipeline": stages}


def _lines(path: Path) -> list[dict[str, Any]]:
    """Lines of a file that a refused job may lack."""
    return list(json_lines.read(path)) if path.exists() else []
