"""Runs on emulated hosts: namespaces of this machine with shaped links, one worker each."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast_bench.emulate.model import Sample
from holdfast_bench.on_hosts.runs import finished
from holdfast_bench.trial import phases_s

WARM_STEPS: Final = 2
TIMEOUT_S: Final = 1800.0
REDUCE: Final = ("collect", "reduce")
WAIT: Final = ("wait_reduce",)
COMPUTE: Final = ("forward", "backward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The settings that all runs share.

    Attributes:
        parameters, dtype: Number and type of the trained parameters.
        compute_s: Compute time of one host's batch; strong scaling divides it among the hosts.
        spread: Standard deviation of compute times, as a share.
        steps: Measured steps.
        link_gbit: The rate of each host's link, Gbit/s.
        network: The job's key: `tls` or `trusted`.
    """

    parameters: int
    dtype: str
    compute_s: float
    spread: float
    steps: int
    link_gbit: float
    network: str

    @property
    def size_bytes(self) -> int:
        """Size of the reduced gradient."""
        return self.parameters * {"bf16": 2, "fp32": 4}[self.dtype]

    @property
    def link_bytes_per_s(self) -> float:
        """The rate of each host's link."""
        return self.link_gbit * 1e9 / 8


def measure(setup: Setup, hosts: int, scaling: str) -> tuple[Sample, list[float]]:
    """Run on some hosts; returns means, and the seconds of each step.

    Raises:
        HoldfastError: The run failed.
    """
    print(f"{scaling} scaling, {hosts} hosts", file=sys.stderr)
    compute_s = setup.compute_s / (hosts if scaling == "strong" else 1)
    keys = {
        "task": "holdfast_bench.emulate.task:EmulatedTask",
        "params": {
            "parameters": setup.parameters,
            "dtype": setup.dtype,
            "compute_s": compute_s,
            "spread": setup.spread,
            "steps": WARM_STEPS + setup.steps,
        },
        "batch": hosts,
        "shards": hosts,
        "workers": hosts,
        "checkpoint": {"every_steps": 0},
    }
    rate = f"{1000 * setup.link_gbit:.0f}mbit"
    with finished(hosts, rate, keys, setup.network, TIMEOUT_S) as records:
        steps = records.steps()[WARM_STEPS:]
    return _sample(steps, hosts), [line["seconds"] for line in steps]


def _sample(steps: Sequence[Mapping[str, Any]], hosts: int) -> Sample:
    """Means over the steps, of the first worker's phases and of all workers' compute times."""
    computed = [
        [sum(each) for each in zip(*(line["workers"][p] for p in COMPUTE), strict=True)]
        for line in steps
    ]
    every = [seconds for line in computed for seconds in line]
    mean = statistics.mean(every)
    return Sample(
        hosts=hosts,
        compute_s=mean,
        spread=statistics.stdev(every) / mean if len(every) > 1 else 0.0,
        imbalance_s=statistics.mean(max(line) - statistics.mean(line) for line in computed),
        reduce_s=statistics.mean(phases_s(line, REDUCE) for line in steps),
        wait_s=statistics.mean(phases_s(line, WAIT) for line in steps),
        step_s=statistics.mean(line["seconds"] for line in steps),
    )
