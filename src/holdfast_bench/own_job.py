"""A job of your own on machines of your own, where nothing is emulated.

Each way is one run of the job, which is stopped once enough of its steps are measured. Rounds and
ratios are those of the other benchmarks.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from holdfast.errors import JobError
from holdfast.job import load
from holdfast.job.part import AUTO
from holdfast.job.train_job import TrainRequest
from holdfast_bench.arguments import count, counts
from holdfast_bench.results.figures import ratio, spread
from holdfast_bench.rounds import in_rounds
from holdfast_bench.trial import completed

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


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnJob:
    """What is run in each way.

    Attributes:
        words: The job, and keys to override.
        on: Engine, as in `--on`; empty for this machine.
        timeout_s: Longest time of a run.
    """

    words: Sequence[str]
    on: str
    timeout_s: float

    def request(self, keys: Sequence[str] = ()) -> TrainRequest:
        """The job with more keys.

        Raises:
            JobError: It is not valid, or needs hosts that nothing places.
        """
        job = load.load(self.words[0], [*self.words[1:], *keys])
        if job.hosts > 1 and not self.on:
            raise JobError(f"hosts={job.hosts} needs --on ENGINE; this machine alone is --hosts 1")
        return job

    def on_hosts(self, number: int) -> TrainRequest:
        """The job on so many hosts, with the workers, batch and shards of the job on each.

        Raises:
            JobError: It is not valid.
        """
        one = self.request()
        workers = 1 if one.workers == AUTO else one.workers
        sizes = {"workers": workers, "batch": one.batch}
        sizes |= {} if one.shards == AUTO else {"shards": one.shards}
        grown = (f"{key}={number * size}" for key, size in sizes.items())
        return self.request([f"hosts={number}", *grown])

    @property
    def labels(self) -> dict[str, str]:
        """Columns about the job."""
        return {"job": self.words[0], "on": self.on or "this machine"}


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
    add_engine(own)
    own.add_argument(
        "--timeout-s", type=count, default=600, help="Longest time of one run, seconds."
    )
    return own


def add_engine(parser: argparse._ActionsContainer) -> None:
    """Add the option for the engine."""
    parser.add_argument("--on", default="", help="Engine, as of holdfast train; by default none.")


def add_hosts(parser: argparse._ActionsContainer, default: str) -> None:
    """Add the option for the numbers of hosts."""
    parser.add_argument("--hosts", type=counts, default=default, help="Numbers of hosts.")


def of_options(options: argparse.Namespace) -> OwnJob:
    """The job that the options name."""
    return OwnJob(words=options.job, on=options.on, timeout_s=options.timeout_s)


def scaling(job: OwnJob, hosts: Sequence[int], rounds: int, steps: int) -> list[dict[str, Any]]:
    """Measure the job on so many hosts; one row for each number of them.

    Raises:
        JobError: A run fails, or has too few steps.
    """
    requests = {number: job.on_hosts(number) for number in hosts}
    ways = {str(number): partial(run, job, requests[number], steps) for number in hosts}
    runs = in_rounds(ways, rounds, " ".join(job.words))
    rates = {number: [each.samples_per_s for each in runs[str(number)]] for number in hosts}
    return [
        {
            **job.labels,
            "hosts": number,
            "workers": requests[number].workers,
            "samples_per_s": spread(rates[number]),
            "speedup": ratio(rates[number], rates[hosts[0]]),
            "efficiency": round(ratio(rates[number], rates[hosts[0]]) * hosts[0] / number, 3),
        }
        for number in hosts
    ]


def balance(job: OwnJob, systems: Sequence[str], rounds: int, steps: int) -> list[dict[str, Any]]:
    """Measure the job under policies of `balance` and under DDP; one row for each.

    Raises:
        JobError: A run fails, or has too few steps.
    """
    ways = {name: partial(run, job, job.request(SYSTEMS[name]), steps) for name in systems}
    runs = in_rounds(ways, rounds, " ".join(job.words), alternates=True)
    rates = {name: [each.samples_per_s for each in of_one] for name, of_one in runs.items()}
    return [
        {
            **job.labels,
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


def run(job: OwnJob, request: TrainRequest, steps: int) -> OwnFigures:
    """Run the job, with the keys of `request`, until enough steps are measured.

    Raises:
        JobError: It fails, takes too long, or has too few steps.
    """
    enough = WARM_STEPS + steps + 1
    with completed(request, job.on, lambda run: run.reaches(enough, job.timeout_s)) as records:
        lines = records.steps()
        plans = records.events("plan-changed")
    counted = lines[WARM_STEPS:][: steps + 1]
    if len(counted) < 2:
        raise JobError(
            f"the job has {len(lines)} steps, and the first {WARM_STEPS} are not counted; set "
            "more epochs or steps in the job"
        )
    seconds = counted[-1]["time_unix_s"] - counted[0]["time_unix_s"]
    return OwnFigures(
        samples_per_s=sum(each["samples"] for each in counted[1:]) / seconds,
        plan=tuple(plans[-1]["shards_per_worker"]) if plans else (),
    )
