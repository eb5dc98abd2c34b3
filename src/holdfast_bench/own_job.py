"""A job of your own on machines of your own, where nothing is emulated.

Each way is one `holdfast train`, which is stopped once enough of its steps are measured. Rounds and
ratios are those of the other benchmarks.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from holdfast.errors import JobError
from holdfast.job import load
from holdfast.job.part import AUTO
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import EVENTS, METRICS
from holdfast_bench.arguments import count
from holdfast_bench.results.figures import ratio, spread
from holdfast_bench.rounds import in_rounds

WARM_STEPS: Final = 16
"""Steps at the start that are not counted: a policy needs some for its plan."""
SYSTEMS: Final[Mapping[str, Sequence[str]]] = {
    "even": ("balance=even",),
    "proportional": ("balance=proportional",),
    "dynamic": ("balance=dynamic",),
    "hybrid": ("balance=hybrid",),
    "ddp": ("balance=even", "sync=ddp"),
    "ddp-dynamic": ("balance=dynamic", "sync=ddp"),
}
"""Keys that each policy of `balance`, and DDP, adds to those of the job."""
BASELINE: Final = "even"
POLL_S: Final = 0.2
STOP_TIMEOUT_S: Final = 120.0
"""How long a run may take to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnJob:
    """What is run in each way.

    Attributes:
        words: The job, and keys to override.
        on: Engine, as in `--on`; empty for this machine.
        warm_steps: Steps at the start that are not counted.
        steps: How many are counted.
        timeout_s: Longest time of a run.
    """

    words: Sequence[str]
    on: str
    warm_steps: int
    steps: int
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFigures:
    """Figures of one run.

    Attributes:
        samples_per_s: Over the counted steps.
        plan: Shards of each worker at the end; empty if it was always even.
    """

    samples_per_s: float
    plan: tuple[int, ...]


def add_options(parser: argparse.ArgumentParser) -> Any:
    """Add the options for a job of one's own; returns their group."""
    own = parser.add_argument_group("your own job, where nothing is emulated")
    own.add_argument("--job", nargs="+", metavar=("JOB", "KEY=VALUE"), help="Job, and job keys.")
    own.add_argument("--on", default="", help="Engine, as of holdfast train; by default none.")
    own.add_argument(
        "--timeout-s", type=count, default=600, help="Longest time of one run, seconds."
    )
    return own


def of_options(options: argparse.Namespace) -> OwnJob:
    """The job that the options name."""
    return OwnJob(
        words=options.job,
        on=options.on,
        warm_steps=WARM_STEPS,
        steps=options.steps,
        timeout_s=options.timeout_s,
    )


def scaling(job: OwnJob, hosts: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Measure the job on so many hosts, with the workers, batch and shards of the job on each; one
    row for each number of hosts.

    Raises:
        JobError: A run fails, or has too few steps.
    """
    one = load.load(job.words[0], job.words[1:])
    workers = 1 if one.workers == AUTO else one.workers
    sizes = {"workers": workers, "batch": one.batch}
    sizes |= {} if one.shards == AUTO else {"shards": one.shards}
    ways = {
        number: partial(
            run,
            job,
            [f"hosts={number}", *(f"{key}={number * size}" for key, size in sizes.items())],
        )
        for number in hosts
    }
    runs = in_rounds(
        {str(number): way for number, way in ways.items()}, rounds, " ".join(job.words)
    )
    rates = {number: [each.samples_per_s for each in runs[str(number)]] for number in hosts}
    return [
        {
            "job": job.words[0],
            "on": job.on or "this machine",
            "hosts": number,
            "workers": number * workers,
            "samples_per_s": spread(rates[number]),
            "speedup": ratio(rates[number], rates[hosts[0]]),
            "efficiency": round(ratio(rates[number], rates[hosts[0]]) * hosts[0] / number, 3),
        }
        for number in hosts
    ]


def balance(job: OwnJob, systems: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """Measure the job under policies of `balance` and under DDP; one row for each.

    Raises:
        JobError: A run fails, or has too few steps.
    """
    ways = {name: partial(run, job, SYSTEMS[name]) for name in systems}
    runs = in_rounds(ways, rounds, " ".join(job.words), alternates=True)
    rates = {name: [each.samples_per_s for each in of_one] for name, of_one in runs.items()}
    return [
        {
            "job": job.words[0],
            "on": job.on or "this machine",
            "system": name,
            "samples_per_s": spread(rates[name]),
            **_compared(rates, name, BASELINE, "of_even"),
            **_compared(rates, name, "ddp", "of_ddp"),
            "plan": "-".join(map(str, of_one[-1].plan)) or "even",
        }
        for name, of_one in runs.items()
    ]


def _compared(
    rates: Mapping[str, Sequence[float]], name: str, other: str, column: str
) -> dict[str, float]:
    return {column: ratio(rates[name], rates[other])} if other in rates else {}


def run(job: OwnJob, keys: Sequence[str]) -> OwnFigures:
    """Run the job with more keys until enough steps are measured.

    Raises:
        JobError: It fails, takes too long, or has too few steps.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        output = Path(folder) / "output"
        placing = ["--on", job.on] if job.on else []
        words = [*job.words, *keys, *placing, "--run", str(run_dir)]
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "train", *words],
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            lines = _await_steps(process, run_dir / METRICS, job)
        finally:
            _stop(process)
        if lines is None:
            said = output.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            raise JobError(f"holdfast train {' '.join(words[:-2])} has failed: {said[-1]}")
        return _figures(lines, list(json_lines.read(run_dir / EVENTS)), job)


def _await_steps(
    process: subprocess.Popen[bytes], metrics: Path, job: OwnJob
) -> list[dict[str, Any]] | None:
    """The metrics of the run, once it has enough steps or has ended; None if it has failed."""
    deadline = time.monotonic() + job.timeout_s
    while True:
        ended = process.poll()
        lines = list(json_lines.read(metrics)) if metrics.exists() else []
        steps = [each for each in lines if "samples" in each]
        if len(steps) > job.warm_steps + job.steps or ended == 0:
            return steps
        if ended is not None:
            return None
        if time.monotonic() > deadline:
            raise JobError(
                f"only {len(steps)} steps within {job.timeout_s:.0f} s; raise --timeout-s, or "
                "measure fewer --steps"
            )
        time.sleep(POLL_S)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Let a run end after its step; it leaves nothing behind, here or on other hosts."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _figures(
    lines: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]], job: OwnJob
) -> OwnFigures:
    """Figures of a run, from the lines of its metrics.

    Raises:
        JobError: It has too few steps.
    """
    counted = lines[job.warm_steps :][: job.steps + 1]
    if len(counted) < 2:
        raise JobError(
            f"the job has {len(lines)} steps, and the first {job.warm_steps} are not counted; set "
            "more epochs or steps in the job"
        )
    seconds = counted[-1]["time_unix_s"] - counted[0]["time_unix_s"]
    plans = [each["shards_per_worker"] for each in events if each["event"] == "plan-changed"]
    return OwnFigures(
        samples_per_s=sum(each["samples"] for each in counted[1:]) / seconds,
        plan=tuple(plans[-1]) if plans else (),
    )
