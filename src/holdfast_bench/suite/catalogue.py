"""Catalogue: every benchmark, with what its rows mean.

A new benchmark is a module `holdfast_bench.NAME` with `add_options` and `run`, and an entry here.
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
        text: The sentence of `holdfast bench --help`.
        quick: Options of `--quick`, by name: what takes under a minute.
        keys: Columns that say what a row is about; two rows with the same ones can be compared.
        measured: Columns that are measured, and which direction is better.
        peers: True if it takes the interpreter of other systems.
    """

    name: str
    text: str
    quick: Mapping[str, str]
    keys: tuple[str, ...]
    measured: Mapping[str, Better] = field(default_factory=dict)
    peers: bool = False

    @property
    def quick_words(self) -> list[str]:
        """The words that `--quick` stands for."""
        return [word for name, value in self.quick.items() for word in (f"--{name}", value)]


_HOSTS: Final = ("measure", "hosts", "workers", "link", "what", "system", "kb")

BENCHMARKS: Final = (
    Benchmark(
        name="startup",
        text="Time to the first step, compared with a plain process.",
        quick={"rounds": "2"},
        keys=("way",),
        measured={"seconds": "lower"},
    ),
    Benchmark(
        name="host",
        text="Thread time of a step beyond a plain loop.",
        quick={"shards": "1,2", "turns": "2", "rounds": "1"},
        keys=("shape", "shards"),
        measured={"ours_ms": "lower"},
    ),
    Benchmark(
        name="heartbeat",
        text="Cost of heartbeats, and how soon a lost host is noticed.",
        quick={"intervals": "0.5,1", "agents": "1,4", "seconds": "4"},
        keys=("agents", "interval_s"),
        measured={"bytes_per_s": "lower", "detection_s": "lower"},
    ),
    Benchmark(
        name="control",
        text="One coordinator with many agents: delay and cost of a status.",
        quick={"agents": "100", "seconds": "10"},
        keys=("agents", "heartbeat_s"),
        measured={
            "delay_p99_ms": "lower", "cpu_per_status_ms": "lower", "worker_exits_s": "lower",
        },
    ),
    Benchmark(
        name="collectives",
        text="Speed of all-reduces by size, compared with gloo and MPI.",
        quick={"sizes-kb": "4,1024,65536", "rounds": "2"},
        keys=("transport", "system", "workers", "size_bytes"),
        measured={"time_us": "lower"},
        peers=True,
    ),
    Benchmark(
        name="scaling",
        text="Throughput, compared with stock DDP and lone processes.",
        quick={"workloads": "small", "workers": "2", "steps": "24", "rounds": "1"},
        keys=("job", "on", "hosts", "workload", "workers", "way"),
        measured={"samples_per_s": "higher"},
    ),
    Benchmark(
        name="timeline",
        text="A live recovery and a restart, step by step.",
        quick={},
        keys=("measure", "recovery", "step"),
    ),
    Benchmark(
        name="recovery",
        text="Time from a worker's failure to the next step of all.",
        quick={"workloads": "small", "rounds": "3", "measure": "recovery"},
        keys=("job", "on", "hosts", "measure", "workload", "fault", "way"),
        measured={"announced_s": "lower", "committed_s": "lower"},
        peers=True,
    ),
    Benchmark(
        name="gpu",
        text="One worker on a GPU, compared with a plain loop.",
        quick={"rounds": "1", "steps": "8"},
        keys=("load", "shards", "way"),
        measured={"of_plain": "higher", "step_ms": "lower", "host_ms": "lower"},
    ),
    Benchmark(
        name="restart",
        text="Restart time of a DDP job, compared with torchrun.",
        quick={"rounds": "2"},
        keys=("workload", "fault", "way"),
        measured={"restart_s": "lower"},
    ),
    Benchmark(
        name="parallel",
        text="A model divided over two workers, compared with FSDP2 and 1F1B.",
        quick={"workloads": "large", "steps": "8", "rounds": "1", "measure": "training"},
        keys=("measure", "workload", "way"),
        measured={"samples_per_s": "higher", "memory_mb": "lower", "committed_s": "lower"},
    ),
    Benchmark(
        name="balance",
        text="Balance on unlike devices, compared with stock DDP.",
        quick={"workloads": "cnn", "steps": "8", "speeds": "2:1"},
        keys=("job", "on", "cluster", "mode", "workload", "shards", "system"),
        measured={"efficiency": "higher", "of_even": "higher"},
    ),
    Benchmark(
        name="checkpoint",
        text="Cost of checkpoints, compared with torch.save and DCP.",
        quick={
            "measure": "saving", "workloads": "lm", "workers": "1", "every": "10,5",
            "steps": "10", "rounds": "1", "systems": "holdfast,torch,dcp-thread",
        },
        keys=("measure", "workload", "workers", "system", "every"),
        measured={"overhead_pct": "lower", "stall_ms": "lower"},
    ),
    Benchmark(
        name="hosts",
        text="Reductions, steps and recoveries of several hosts.",
        quick={
            "measure": "reduction", "hosts": "2", "workers": "1", "sizes-kb": "64,1024,16384",
            "rounds": "2",
        },
        keys=_HOSTS,
        measured={"ms": "lower"},
    ),
    Benchmark(
        name="sizes",
        text="Time for which steps stand still while hosts and workers change.",
        quick={"workloads": "small", "rounds": "1"},
        keys=("workload", "change"),
        measured={"seconds": "lower"},
    ),
    Benchmark(
        name="qlora",
        text="QLoRA fine-tuning, and what a job costs.",
        quick={"max-steps": "10", "seq-length": "64", "batch-size": "4"},
        keys=("measure", "hosts", "kind"),
        measured={"step_s": "lower", "sync_s": "lower"},
    ),
    Benchmark(
        name="compression",
        text="Loss with compressed gradients, by steps and by bytes.",
        quick={"workloads": "images", "methods": "none,topk,topk-no-feedback", "steps": "60"},
        keys=("workload", "data", "method", "steps"),
        measured={"train_loss": "lower", "test_loss": "lower", "kb_per_step": "lower"},
    ),
    Benchmark(
        name="scenarios",
        text="Failures at known steps; exits 1 if one ends wrong.",
        quick={"scenarios": "worker-killed,two-failures,checkpoint-damaged"},
        keys=("scenario", "recovery"),
    ),
    Benchmark(
        name="emulate",
        text="Scaling on hosts whose compute is emulated.",
        quick={"hosts": "1,2,4", "scaling": "weak", "compute-s": "0.5", "steps": "4"},
        keys=("measure", "scaling", "hosts"),
        measured={"step_s": "lower"},
    ),
)  # fmt: skip
"""In the order in which `holdfast bench all` runs them: short ones first."""

BY_NAME: Final = {each.name: each for each in BENCHMARKS}
