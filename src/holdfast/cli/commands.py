"""Commands: the module of each command of `holdfast`, and the first line of its help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEntry:
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
    "train": CommandEntry(
        home="holdfast.cli.train:train",
        help="Train a job; checkpoints, metrics and logs go to its run directory.",
    ),
    "run": CommandEntry(
        home="holdfast.cli.run:run",
        help="Run an unchanged torchrun script; when a worker fails, all workers restart.",
        takes_script=True,
    ),
    "tune": CommandEntry(
        home="holdfast.cli.tune:tune",
        help="Search good values for keys of a job: run it with different ones, keep the best.",
    ),
    "coordinator": CommandEntry(
        home="holdfast.cli.cluster.coordinator:coordinator",
        help="Train a job on several hosts; print the line to run on each of the others.",
    ),
    "agent": CommandEntry(
        home="holdfast.cli.cluster.agent:agent",
        help="Run workers of this host for a run, until the run is over.",
    ),
    "leave": CommandEntry(
        home="holdfast.cli.cluster.agent:leave",
        help="Have this host leave a run, which continues on the others; wait until it has left.",
    ),
    "token": CommandEntry(
        home="holdfast.cli.cluster.token:token",
        help="Make a token for an hour, and print the line with which another host joins.",
    ),
    "audit": CommandEntry(
        home="holdfast.cli.observe.audit:audit",
        help="Check from the record of a run that every sample was counted once per epoch, "
        "and show which start and generation computed each step.",
    ),
    "chaos": CommandEntry(
        home="holdfast.cli.chaos:chaos",
        help="Inject faults into a run, and see it recover.",
    ),
    "dashboard": CommandEntry(
        home="holdfast.cli.observe.dashboard:dashboard",
        help="Show runs in the browser, live, until Ctrl-C.",
    ),
    "doctor": CommandEntry(
        home="holdfast.cli.cluster.doctor:doctor",
        help="Check this host for a job by doing what a run does; exits with 1 if one would "
        "not work.",
    ),
    "drill": CommandEntry(
        home="holdfast.cli.drill:drill",
        help="Verify that a job ends with the same weights under faults as in a fault-free run.",
    ),
    "breakdown": CommandEntry(
        home="holdfast.cli.observe.breakdown:breakdown",
        help="Show the time that each worker spends in each phase of a step, and the bottleneck.",
    ),
    "compare": CommandEntry(
        home="holdfast.cli.observe.compare:compare",
        help="Put runs next to each other: speed, goodput, loss, balance, recoveries, cost.",
    ),
    "events": CommandEntry(
        home="holdfast.cli.observe.events:events",
        help="Show what happened in a run: starts, failures, checkpoints, recovery reports.",
    ),
    "export": CommandEntry(
        home="holdfast.cli.observe.export:export",
        help="Write the trained weights for PyTorch, safetensors or transformers, or the "
        "record of a run.",
    ),
    "goodput": CommandEntry(
        home="holdfast.cli.observe.goodput:goodput",
        help="Show which share of a run's time was useful, and what took the rest.",
    ),
    "jobs": CommandEntry(
        home="holdfast.cli.jobs:jobs",
        help="List the built-in jobs; `holdfast train NAME --dry-run` prints all keys of one.",
    ),
    "profile": CommandEntry(
        home="holdfast.cli.cluster.profile:profile",
        help="Measure GPUs, CPU, memory and disk, and score them: TFLOPS of matrix products.",
    ),
    "report": CommandEntry(
        home="holdfast_bench.cli.report:report",
        help="Write a report with figures from stored results: report.html and report.md.",
    ),
    "runs": CommandEntry(
        home="holdfast.cli.observe.runs:runs",
        help="List the runs that were started on this host, newest first.",
    ),
    "logs": CommandEntry(
        home="holdfast.cli.observe.runs:logs",
        help="Show what a run has printed.",
    ),
    "scale": CommandEntry(
        home="holdfast.cli.cluster.scale:scale",
        help="Give a run another number of workers while it trains; wait until they do.",
    ),
    "stop": CommandEntry(
        home="holdfast.cli.observe.runs:stop",
        help="Stop a run after the current step, with a checkpoint; wait until it has ended.",
    ),
    "top": CommandEntry(
        home="holdfast.cli.observe.top:top",
        help="Show a run at a glance, live, until q; in a pipe as lines, until the run has ended.",
    ),
    "track": CommandEntry(
        home="holdfast.cli.observe.track:track",
        help="Send what the trackers of a run that has ended have not got.",
    ),
    "bench": CommandEntry(
        home="holdfast_bench.cli.suite:app",
        help="Measure holdfast on this machine.",
    ),
    "checkpoint": CommandEntry(
        home="holdfast.cli.checkpoint.group:app",
        help="List, check, compare and keep the checkpoints of a run.",
    ),
    "hosts": CommandEntry(
        home="holdfast.cli.cluster.hosts:app",
        help="Hosts that ssh reaches.",
    ),
    "metrics": CommandEntry(
        home="holdfast.cli.observe.metrics:app",
        help="Print what Prometheus and Grafana need for runs with --metrics.",
    ),
    "pods": CommandEntry(
        home="holdfast.cli.cluster.pods:app",
        help="Commands in pods of Kubernetes that exist.",
    ),
    "render": CommandEntry(
        home="holdfast.cli.cluster.render:app",
        help="Write files with which a cluster manager runs a job.",
    ),
}
