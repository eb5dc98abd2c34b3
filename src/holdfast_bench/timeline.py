"""One failure, step by step: the loss and the time of each step of three runs of `digits`.

    none       no failure
    live       rank 1 is killed; a replacement takes over the state of rank 0
    restart    rank 1 is killed; all workers restart from the newest checkpoint

Rows with `measure: step` have the loss of each committed step, and its time since the kill; steps
that were computed again are marked, and `measure: replaced` has them as they were before. Rows with
`measure: run` have the phases of the recovery and the weights.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

from holdfast.api.attended import Attendance, Sidecar
from holdfast.api.train import run_job
from holdfast.faults.fault_injector import FaultInjector
from holdfast.faults.plan import planned
from holdfast.job import load
from holdfast.launch.fork_client import ForkServer
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import RECOVERIES
from holdfast.runs.run import LaunchOptions
from holdfast.runs.run_fork_server import fork_server
from holdfast_bench.results.result import Measured
from holdfast_bench.scenarios.scenario import POLICIES, Recovery
from holdfast_bench.trial import RunRecords, ended_by_signals

KILL_STEP: Final = 65
KEYS: Final = ("workers=2", "epochs=6", "checkpoint.every_steps=10", "checkpoint.keep=20")

Row = dict[str, Any]


def train(recovery: Recovery | None, folder: Path, forks: ForkServer) -> list[Row]:
    """The rows of one run."""
    name = recovery or "none"
    print(f"timeline: {name}", file=sys.stderr)
    policy = [] if recovery is None else [f"on_failure={POLICIES[recovery]}"]
    job = load.load("digits", [*KEYS, *policy]).resolved()
    faults = () if recovery is None else (f"kill:step={KILL_STEP},rank=1",)
    sidecar: Sidecar = nullcontext
    if faults:
        plan = planned(faults, file=None, seed=None, num_random=0)
        sidecar = FaultInjector(plan, job).running
    options = LaunchOptions(forks=forks)
    run_dir = folder / name
    attendance = Attendance(sidecar=sidecar)
    with ended_by_signals(options.controls):
        result = run_job(job, options, run_dir=run_dir, resume=False, attendance=attendance)
    records = RunRecords(run_dir)
    killed_at, again = _kill(records)
    weights = {"measure": "run", "recovery": name, "weights_sha256": result.weights_sha256}
    return [
        {**weights, "steps": result.steps, **_recovery(run_dir)},
        *(
            {
                "measure": measure,
                "recovery": name,
                "step": line["step"],
                "loss": round(line["loss"], 4),
                "at_s": round(line["time_unix_s"] - killed_at, 3),
                "again": measure == "step" and line["step"] in again,
            }
            for measure, lines in (("step", records.steps()), ("replaced", records.replaced()))
            for line in lines
        ),
    ]


def _kill(records: RunRecords) -> tuple[float, range]:
    """The time of the kill, and the steps that were computed again after it."""
    killed = records.events("fault-injected")
    if not killed:
        return records.events()[0]["time_unix_s"], range(0)
    resumed = next(e for e in records.events("generation-started") if e["number"] == 2)
    return killed[0]["time_unix_s"], range(resumed["step"] + 1, resumed["last_committed_step"] + 1)


def _recovery(run_dir: Path) -> Mapping[str, Any]:
    """The times of the recovery, seconds, and what it cost."""
    path = run_dir / RECOVERIES
    reports = list(json_lines.read(path)) if path.exists() else []
    return {
        key: value
        for report in reports
        for key, value in (
            ("recovery_s", report["total_s"]),
            ("recomputed_steps", report["recomputed_steps"]),
            ("phases_s", report["seconds"]),
        )
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add no option: this benchmark has none."""


def run(options: argparse.Namespace) -> Measured:  # noqa: ARG001
    """Train without a failure, and with each recovery."""
    with (
        tempfile.TemporaryDirectory() as folder,
        fork_server(load.load("digits", KEYS).resolved()) as forks,
    ):
        kinds: tuple[Recovery | None, ...] = (None, *POLICIES)
        rows = [row for kind in kinds for row in train(kind, Path(folder), forks)]
    return Measured(rounds=1, rows=rows)
