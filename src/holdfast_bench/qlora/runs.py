"""Runs of QLoRA on one host or on several, and what their steps take.

Several hosts are those of an engine, or network namespaces of this machine with a worker each, or
workers of one host where there are no namespaces.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.job import load
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import SYSTEM
from holdfast_bench.on_hosts.runs import finished
from holdfast_bench.qlora.cost import Link
from holdfast_bench.qlora.jobs import Setup
from holdfast_bench.trial import RunRecords, completed, phases_s

WARM_STEPS: Final = 3
"""Steps at the start that are not counted."""
SYNC_PHASES: Final = ("reduce", "wait_reduce")
"""Phases in which a worker reduces, or waits for a reduced gradient."""
WAIT_PHASES: Final = ("wait",)
"""Phases in which it waits for workers that still compute."""

TIMEOUT_S: Final = 7200.0
"""How long a run may take: 7B on a GPU takes minutes, on a CPU hours."""

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTimes:
    """Times of the steps of a run on some number of hosts.

    Attributes:
        step_s, sync_s, wait_s: Of each counted step; what it reduced, and waited for others.
        start_s: From the start of the run to its first commit, without the first step's time.
        gpu_utilization: Mean share of time in which the GPUs computed; None without GPUs.
        weights: What the run says of its weights, and the bytes of their parts.
    """

    step_s: list[float]
    sync_s: list[float]
    wait_s: list[float]
    start_s: float
    gpu_utilization: float | None
    weights: Mapping[str, Any]


def run_on(setup: Setup, hosts: int, link: Link) -> HostTimes:
    """Run the job with a worker on each of some hosts.

    Args:
        setup: The job.
        hosts: Number of hosts.
        link: Link of each host that is emulated.

    Raises:
        HoldfastError: The run failed.
    """
    keys = setup.keys(hosts)
    if setup.on:
        with completed(load.check(keys, where="bench"), setup.on) as records:
            return _measured(records)
    rate = f"{8 * link.bytes_per_s / 1e6:.0f}mbit"
    with finished(hosts, rate, keys, "tls", TIMEOUT_S) as records:
        return _measured(records)


def _measured(records: RunRecords) -> HostTimes:
    run_dir = records.run_dir
    steps = records.steps()
    counted = steps[WARM_STEPS:]
    began = records.events()[0]["time_unix_s"]
    seconds = [line["seconds"] for line in counted]
    return HostTimes(
        step_s=seconds,
        sync_s=[phases_s(line, SYNC_PHASES) for line in counted],
        wait_s=[phases_s(line, WAIT_PHASES) for line in counted],
        start_s=max(0.0, steps[0]["time_unix_s"] - began - statistics.median(seconds)),
        gpu_utilization=_gpu_utilization(run_dir, counted[0]["time_unix_s"]),
        weights=records.result()["weights"],
    )


def _gpu_utilization(run_dir: Path, since: float) -> float | None:
    path = run_dir / SYSTEM
    samples = (
        [s for s in json_lines.read(path) if s["time_unix_s"] >= since] if path.exists() else []
    )
    shares = [gpu["utilization"] for sample in samples for gpu in sample["gpus"]]
    known = [share for share in shares if share is not None]
    return round(statistics.mean(known), 3) if known else None
