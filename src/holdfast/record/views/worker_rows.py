"""Workers: how each worker of a run is doing: where it runs, what it uses, what it waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.record.breakdown import busy_s, part_seconds, waits_s
from holdfast.record.moments import is_failure
from holdfast.record.run_record import Event, RunRecord
from holdfast.record.views.run_at import RunAt

CPU: Final = "CPU"
RUNNING: Final = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNow:
    """State of a worker. A value that is not measured is None.

    Attributes:
        rank: Its rank.
        host: Its host; empty if that is not known.
        device: The name of its GPU; `CPU` if it has none.
        state: `starting`, `running`, `failed`, `hung`, `lost`, `standby` or `ended`.
        shards: Mean count that it computes in a step.
        used: The utilization of its GPU, from 0 to 1; without one, the cores that it uses.
        memory_bytes, memory_total_bytes: Memory of its GPU; without one, its part of the host's.
        temperature_c: Temperature of its GPU, degrees Celsius.
        busy_s: Time in which it computes its shards in a step, seconds.
        data, wait: The shares of its time in which it waits for samples and for other workers.
    """

    rank: int
    host: str
    device: str
    state: str
    shards: float | None = None
    used: float | None = None
    memory_bytes: float | None = None
    memory_total_bytes: float | None = None
    temperature_c: float | None = None
    busy_s: float = 0.0
    data: float | None = None
    wait: float | None = None


def workers_of(run: RunAt) -> list[WorkerNow]:
    """The workers of a run, by rank."""
    record = run.record
    states = _states(record.events)
    hosts = record.hosts
    times = {int(row["rank"]): row for row in run.worker_times}
    ranks = sorted({**dict.fromkeys(times, RUNNING), **states}.items())
    on_host = Counter[str]()
    slots: dict[int, int] = {}
    for rank, _ in ranks:
        slots[rank] = on_host[hosts.get(rank, "")]
        on_host[hosts.get(rank, "")] += 1
    return [
        WorkerNow(
            rank=rank,
            host=hosts.get(rank, ""),
            state="ended" if run.has_ended and state == RUNNING else state,
            **_uses(record, hosts.get(rank, ""), rank, slots[rank]),
            **_times(times.get(rank)),
        )
        for rank, state in ranks
    ]


def worst_first(workers: Iterable[WorkerNow]) -> list[WorkerNow]:
    """Order of workers: first any that does not run, then the ones that the others wait for."""
    return sorted(workers, key=lambda each: (each.state == RUNNING, -each.busy_s, each.rank))


def _states(events: Iterable[Event]) -> dict[int, str]:
    """The state of each rank of the newest attempt."""
    states: dict[int, str] = {}
    for event in events:
        match event:
            case {"event": "run-started"}:
                states.clear()
            case {"event": "worker-started", "rank": int(rank)}:
                states[rank] = "starting"
            case {"event": "worker-hung", "rank": int(rank)}:
                states[rank] = "hung"
            case {"event": "worker-exited", "rank": int(rank)}:
                states[rank] = "failed" if is_failure(event) else "ended"
            case {"event": "worker-evicted", "rank": int(rank)}:
                states[rank] = "standby"
            case {"event": "worker-returned", "rank": int(rank)}:
                states[rank] = RUNNING
            case {"event": "host-lost", "ranks": list(ranks)}:
                states |= dict.fromkeys(ranks, "lost")
            case {"event": "generation-started", "members": list(members)}:
                states |= dict.fromkeys(members, RUNNING)
    return states


def _uses(record: RunRecord, host: str, rank: int, slot: int) -> dict[str, Any]:
    """The device of a worker, and what it uses of it."""
    measured = record.system.get(host)
    newest: Mapping[str, Any] = measured[-1] if measured else {}
    gpus = () if getattr(record.job, "device", "auto") == "cpu" else newest.get("gpus", ())
    if gpus:
        gpu = gpus[slot % len(gpus)]  # as worker.devices chooses it
        return {
            "device": str(gpu.get("name", "GPU")),
            "used": gpu.get("utilization"),
            "memory_bytes": gpu.get("memory_bytes"),
            "memory_total_bytes": gpu.get("memory_total_bytes"),
            "temperature_c": gpu.get("temperature_c"),
        }
    own = [each for each in newest.get("workers", ()) if each.get("rank") == rank]
    worker: Mapping[str, Any] = own[0] if own else {}
    return {
        "device": CPU,
        "used": worker.get("cpu"),
        "memory_bytes": worker.get("memory_bytes"),
        "memory_total_bytes": newest.get("memory_total_bytes"),
    }


def _times(row: Mapping[str, float] | None) -> dict[str, Any]:
    """Times in which a worker computes and waits."""
    if row is None:
        return {}
    total = sum(part_seconds(row))
    return {
        "shards": row.get("shards"),
        "busy_s": busy_s(row),
        "data": row.get("data", 0.0) / total if total else None,
        "wait": waits_s(row) / total if total else None,
    }
