"""Catalogue: every benchmark, with what its rows mean.

A new benchmark is a module `holdfast_bench.NAME` that prints one JSON object, an entry here, and a
command in `cli.bench.commands`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Better = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One benchmark.

    Attributes:
        name: As in `holdfast bench NAME`.
        quick: Options of `--quick`, by name: what takes under a minute.
        keys: Columns that say what a row is about; two rows with the same ones can be compared.
        measured: Columns that are measured, and which direction is better.
        peers: Whether it takes the interpreter of other systems.
        draws: Whether it draws figures of its own.
    """

    name: str
    quick: Mapping[str, str]
    keys: tuple[str, ...]
    measured: Mapping[str, Better] = field(default_factory=dict)
    peers: bool = False
    draws: bool = False


_HOSTS: Final = ("measure", "hosts", "workers", "link", "what", "system", "kb")

BENCHMARKS: Final = (
    Benchmark(
        name="wake",
        quick={"rounds": "20"},
        keys=("wait",),
        measured={"median_ms": "lower"},
    ),
    Benchmark(
        name="startup",
        quick={"rounds": "2"},
        keys=("way",),
        measured={"seconds": "lower"},
    ),
    Benchmark(
        name="heartbeat",
        quick={"intervals": "0.5,1", "agents": "1,4", "seconds": "4"},
        keys=("agents", "interval_s"),
        measured={"bytes_per_s": "lower", "detection_s": "lower"},
    ),
    Benchmark(
        name="scaling",
        quick={"workloads": "small", "workers": "2", "steps": "24", "rounds": "1"},
        keys=("workload", "workers", "way"),
        measured={"samples_per_s": "higher"},
    ),
    Benchmark(
        name="overhead",
        quick={"workloads": "small", "steps": "24", "rounds": "1"},
        keys=("workload", "setting"),
        measured={"samples_per_s": "higher"},
    ),
    Benchmark(
        name="timeline",
        quick={},
        keys=("measure", "recovery", "step"),
    ),
    Benchmark(
        name="recovery",
        quick={"workloads": "small", "rounds": "3", "measure": "recovery"},
        keys=("measure", "workload", "fault", "way"),
        measured={"announced_s": "lower", "committed_s": "lower"},
        peers=True,
    ),
    Benchmark(
        name="restart",
        quick={"rounds": "2"},
        keys=("workload", "fault", "way"),
        measured={"restart_s": "lower"},
    ),
    Benchmark(
        name="coordinator",
        quick={"workloads": "small", "rounds": "2"},
        keys=("workload",),
        measured={"back_s": "lower", "slowest_after": "lower"},
    ),
    Benchmark(
        name="balance",
        quick={"workloads": "cnn", "steps": "8", "speeds": "2:1"},
        keys=("cluster", "mode", "workload", "shards", "system"),
        measured={"efficiency": "higher"},
        draws=True,
    ),
    Benchmark(
        name="checkpoint",
        quick={
            "measure": "saving", "workloads": "lm", "workers": "1", "every": "10,5",
            "steps": "10", "rounds": "1", "systems": "holdfast,torch,dcp-thread",
        },
        keys=("measure", "workload", "workers", "system", "every"),
        measured={"overhead_pct": "lower", "stall_ms": "lower"},
    ),
    Benchmark(
        name="hosts",
        quick={
            "measure": "reduction", "hosts": "2", "workers": "1", "sizes-kb": "64,1024,16384",
            "rounds": "2",
        },
        keys=_HOSTS,
        measured={"ms": "lower"},
    ),
    Benchmark(
        name="sinks",
        quick={"seconds": "5", "rounds": "1"},
        keys=("workload", "setting"),
        measured={"steps_per_s": "higher"},
    ),
    Benchmark(
        name="qlora",
        quick={"max-steps": "10", "seq-length": "64", "batch-size": "4"},
        keys=("measure", "hosts", "kind"),
        measured={"step_s": "lower", "sync_s": "lower"},
    ),
    Benchmark(
        name="scenarios",
        quick={"scenarios": "worker-killed,two-failures,checkpoint-damaged"},
        keys=("scenario", "recovery"),
    ),
    Benchmark(
        name="emulate",
        quick={"hosts": "1,2,4", "scaling": "weak", "compute-s": "0.5", "steps": "4"},
        keys=("measure", "scaling", "hosts"),
        measured={"step_s": "lower"},
    ),
)  # fmt: skip
"""In the order in which `holdfast bench all` runs them: short ones first."""

BY_NAME: Final = {each.name: each for each in BENCHMARKS}
