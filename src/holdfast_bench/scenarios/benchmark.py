"""Run failure scenarios, and compare what happens with what must happen.

Every run trains `small` with two workers for 70 steps, with a checkpoint every ten. A scenario
passes if the run continues from where it must, reports what it must, and ends with the weights of
a run without a fault, bit for bit.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

from holdfast.api.attended import Attendance, Sidecar
from holdfast.api.result import Result
from holdfast.api.train import run_job
from holdfast.errors import HoldfastError
from holdfast.faults.fault_injector import FaultInjector
from holdfast.faults.plan import planned
from holdfast.job import load
from holdfast.job.train_job import TrainJob
from holdfast.launch.fork_client import ForkServer
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import EVENTS, RECOVERIES
from holdfast.runs.run import LaunchOptions
from holdfast.runs.run_fork_server import fork_server
from holdfast_bench.arguments import add_names
from holdfast_bench.on_hosts.namespaces import Namespaces
from holdfast_bench.results.result import Measured
from holdfast_bench.scenarios import on_hosts
from holdfast_bench.scenarios.scenario import (
    CHECKPOINT_EVERY,
    NAMES,
    POLICIES,
    SCENARIOS,
    STEPS,
    Outcome,
    Recovery,
    Scenario,
    described,
    judged,
    outcome,
)
from holdfast_bench.trial import ended_by_signals
from holdfast_bench.workloads import job_keys

WORKERS: Final = 2


def keys(recovery: Recovery) -> dict[str, Any]:
    """The keys of the job of every run."""
    checkpoint = {"every_steps": CHECKPOINT_EVERY, "keep": STEPS // CHECKPOINT_EVERY}
    same = job_keys("small", WORKERS, STEPS)
    return {**same, "on_failure": POLICIES[recovery], "checkpoint": checkpoint}


def run_scenario(
    scenario: Scenario, recovery: Recovery, folder: Path, forks: ForkServer
) -> Outcome:
    """Run one scenario."""
    run_dir = folder / f"{scenario.name}-{recovery}"
    try:
        if scenario.hosts > 1:
            return on_hosts.run_scenario(keys(recovery))
        job = load.check(keys(recovery), where="bench scenarios")
        plan = planned(scenario.faults, file=None, seed=None, num_random=0)
        injector = FaultInjector(plan, job)
        result = _train(job, run_dir, forks, injector.running)
    except HoldfastError as error:
        return Outcome(problem=f"the run failed: {error}")
    for missed in injector.missed:
        return Outcome(problem=f"{missed.fault} was not injected: {missed.reason}")
    events = list(json_lines.read(run_dir / EVENTS))
    recoveries = list(json_lines.read(run_dir / RECOVERIES))
    return outcome(events, recoveries, result.weights_sha256)


def _train(
    job: TrainJob, run_dir: Path, forks: ForkServer, sidecar: Sidecar = nullcontext
) -> Result:
    attendance = Attendance(sidecar=sidecar)
    options = LaunchOptions(forks=forks)
    with ended_by_signals(options.controls):
        return run_job(job, options, run_dir=run_dir, resume=False, attendance=attendance)


def measure(scenarios: list[Scenario], folder: Path) -> list[dict[str, Any]]:
    """A row for each scenario and recovery."""
    job = load.check(keys("live"), where="bench scenarios")
    with fork_server(job) as forks:
        reference = _train(job, folder / "reference", forks)
        assert reference.weights_sha256 is not None, "a run that has finished has weights"
        rows = []
        for scenario in scenarios:
            for recovery in POLICIES:
                found = run_scenario(scenario, recovery, folder, forks)
                problem = judged(scenario, recovery, found, reference.weights_sha256)
                print(f"{scenario.name}, {recovery}: {problem or 'passed'}", file=sys.stderr)
                rows.append(
                    {
                        "scenario": scenario.name,
                        "what": scenario.title,
                        "recovery": recovery,
                        "expected": scenario.expected(recovery),
                        "happened": problem or described(found.restored, found.recomputed),
                        "events": list(found.events),
                        "recovery_s": found.recovery_s,
                        "passed": not problem,
                    }
                )
    return rows


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_names(parser, "--scenarios", NAMES, "Scenarios to run")


def run(options: argparse.Namespace) -> Measured:
    """Run the scenarios that this machine can run."""
    chosen = [each for each in SCENARIOS if each.name in options.scenarios]
    missing = Namespaces.what_is_missing()
    absent = {each.name: missing for each in chosen if each.hosts > 1 and missing}
    with tempfile.TemporaryDirectory() as folder:
        rows = measure([each for each in chosen if each.name not in absent], Path(folder))
    return Measured(absent=absent, rows=rows)
