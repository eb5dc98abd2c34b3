"""System sample: what a host, its GPUs and the workers of a run on it use at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

from pydantic import Field, TypeAdapter

from holdfast.hardware.profile import Amount, Name, StrictFields

Count: TypeAlias = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample(StrictFields):
    """A GPU; None where it reports nothing.

    Attributes:
        index: Its number, of the driver; those of instances (MIG) follow.
        name: Name that its maker gives it.
        utilization: The share of time in which it computed, from 0 to 1.
        memory_bytes, memory_total_bytes: Of its memory, what is used; all of it.
        temperature_c: Degrees Celsius.
        power_w: Power that it draws.
    """

    index: Count
    name: Name
    utilization: Amount | None
    memory_bytes: Count | None
    memory_total_bytes: Count | None
    temperature_c: float | None
    power_w: Amount | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSample(StrictFields):
    """The process of a worker, without those that it has started.

    Attributes:
        rank: The worker.
        cpu: The CPU time that it used a second: 1 is one core.
        memory_bytes: Resident, with memory that it shares with others.
    """

    rank: Count
    cpu: Amount
    memory_bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSample(StrictFields):
    """A host, the mean since the sample before where that makes sense.

    Attributes:
        host: The name of its agent.
        time_unix_s: Unix time of the sample.
        cpu: The share of all its cores that was busy, from 0 to 1.
        load: Processes that run or wait, the mean of a minute.
        memory_bytes: Memory that cannot be used any more, within the limit that applies.
        memory_total_bytes: Limit of it: a container's, or the machine's memory.
        network_receive_bytes_per_s, network_transmit_bytes_per_s: Of all its network interfaces but
            the loopback one.
        disk_read_bytes_per_s, disk_write_bytes_per_s: Of all its disks; None if it shows none.
        gpus: GPUs that the workers may use, in the order in which they take them.
        workers: Each from its second sample on.
    """

    host: Name
    time_unix_s: Amount
    cpu: Amount
    load: Amount
    memory_bytes: Count
    memory_total_bytes: Count
    network_receive_bytes_per_s: Amount
    network_transmit_bytes_per_s: Amount
    disk_read_bytes_per_s: Amount | None
    disk_write_bytes_per_s: Amount | None
    gpus: tuple[GpuSample, ...]
    workers: tuple[WorkerSample, ...]


ADAPTER: Final = TypeAdapter(SystemSample)
"""Converts a sample to plain data and back."""
