"""Commands: the module of each command of `holdfast`, and the first line of its help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A command that has not been imported.

    Attributes:
        home: Module and name of its function, or of the Typer app of a group.
        help: First line of its help.
        takes_script: True if all words from the first argument on are for a script.
    """

    home: str
    help: str
    takes_script: bool = False


COMMANDS: Final = {
    "train": Entry(
        home="holdfast.cli.train:train",
        help="Train a job; checkpoints, metrics and logs go to its run directory.",
    ),
    "run": Entry(
        home="holdfast.cli.run:run",
        help="Run an unchanged torchrun script; when a worker fails, all workers restart.",
        takes_script=True,
    ),
    "tune": Entry(
        home="holdfast.cli.tune:tune",
        help="Search good values for keys of a job: run it with different ones, keep the best.",
    ),
    "coordinator": Entry(
        home="holdfast.cli.cluster.coordinator:coordinator",
        help="Train a job on several hosts; print the line to run on each of the others.",
    ),
    "agent": Entry(
        home="holdfast.cli.cluster.agent:agent",
        help="Run workers of this host for a run, until the run is over.",
    ),
    "leave": Entry(
        home="holdfast.cli.cluster.agent:leave",
        help="Have this host leave a run, which continues on the others; wait until it has left.",
    ),
    "token": Entry(
        home="holdfast.cli.cluster.token:token",
        help="Make a token for an hour, and print the line with which another host joins.",
    ),
    "audit": Entry(
        home="holdfast.cli.observe.audit:audit",
        help="Check from the record of a run that every sample was counted once per epoch, "
        "and show which start and generation computed each step.",
    ),
    "chaos": Entry(
        home="holdfast.cli.chaos:chaos",
        help="Inject faults into a run, and see it recover.",
    ),
    "dashboard": Entry(
        home="holdfast.cli.observe.dashboard:dashboard",
        help="Show runs in the browser, live, until Ctrl-C.",
    ),
    "doctor": Entry(
        home="holdfast.cli.cluster.doctor:doctor",
        help="Check this host for a job by doing what a run does; exits with 1 if one would "
        "not work.",
    ),
    "drill": Entry(
        home="holdfast.cli.drill:drill",
        help="Verify that a job ends with the same weights under faults as in a fault-free run.",
    ),
    "breakdown": Entry(
        home="holdfast.cli.observe.breakdown:breakdown",
        help="Show the time that each worker spends in each phase of a step, and the bottleneck.",
    ),
    "compare": Entry(
        home="holdfast.cli.observe.compare:compare",
        help="Put runs next to each other: speed, goodput, loss, balance, recoveries, cost.",
    ),
    "events": Entry(
        home="holdfast.cli.observe.events:events",
        help="Show what happened in a run: starts, failures, checkpoints, recovery reports.",
    ),
    "export": Entry(
        home="holdfast.cli.observe.export:export",
        help="Write the trained weights for PyTorch, safetensors or transformers, or the "
        "record of a run.",
    ),
    "goodput": Entry(
        home="holdfast.cli.observe.goodput:goodput",
        help="Show which share of a run's time was useful, and what took the rest.",
    ),
    "jobs": Entry(
        home="holdfast.cli.jobs:jobs",
        help="List the built-in jobs; `holdfast train NAME --dry-run` prints all keys of one.",
    ),
    "profile": Entry(
        home="holdfast.cli.cluster.profile:profile",
        help="Measure GPUs, CPU, memory and disk, and score them: TFLOPS of matrix products.",
    ),
    "report": Entry(
        home="holdfast_bench.cli.report:report",
        help="Write a report with figures from stored results: report.html and report.md.",
    ),
    "runs": Entry(
        home="holdfast.cli.observe.runs:runs",
        help="List the runs that were started on this host, newest first.",
    ),
    "logs": Entry(
        home="holdfast.cli.observe.runs:logs",
        help="Show what a run has printed.",
    ),
    "scale": Entry(
        home="holdfast.cli.cluster.scale:scale",
        help="Give a run another number of workers while it trains; wait until they do.",
    ),
    "stop": Entry(
        home="holdfast.cli.observe.runs:stop",
        help="Stop a run after the current step, with a checkpoint; wait until it has ended.",
    ),
    "top": Entry(
        home="holdfast.cli.observe.top:top",
        help="Show a run at a glance, live, until q; in a pipe as lines, until the run has ended.",
    ),
    "track": Entry(
        home="holdfast.cli.observe.track:track",
        help="Send what the trackers of a run that has ended have not got.",
    ),
    "bench": Entry(
        home="holdfast_bench.cli.suite:app",
        help="Measure holdfast on this machine.",
    ),
    "checkpoint": Entry(
        home="holdfast.cli.checkpoint.group:app",
        help="List, check, compare and keep the checkpoints of a run.",
    ),
    "hosts": Entry(
        home="holdfast.cli.cluster.hosts:app",
        help="Hosts that ssh reaches.",
    ),
    "metrics": Entry(
        home="holdfast.cli.observe.metrics:app",
        help="Print what Prometheus and Grafana need for runs with --metrics.",
    ),
    "pods": Entry(
        home="holdfast.cli.cluster.pods:app",
        help="Commands in pods of Kubernetes that exist.",
    ),
    "render": Entry(
        home="holdfast.cli.cluster.render:app",
        help="Write files with which a cluster manager runs a job.",
    ),
}
