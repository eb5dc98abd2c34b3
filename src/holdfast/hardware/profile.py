"""Profile: what the hardware of one host reaches, and how well hosts reach each other.

A score is relative compute: the TFLOPS that a device reaches in matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import ConfigDict, Field

Precision: TypeAlias = Literal["fp32", "bf16", "fp16"]
Rate: TypeAlias = Annotated[float, Field(gt=0)]
Amount: TypeAlias = Annotated[float, Field(ge=0)]
Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=300)]


class StrictFields:
    """Base of dataclasses that are read from JSON: no unknown keys, and only finite numbers."""

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState(StrictFields):
    """State that a GPU reports; None where it reports nothing.

    Attributes:
        temperature_c: Degrees Celsius.
        power_w, power_limit_w: Power that it draws, and may draw.
        utilization: The share of time in which it computed, from 0 to 1.
        clock_mhz, max_clock_mhz: Clock of its multiprocessors.
        used_bytes: Bytes of its memory.
        slowed_by: Why its clock is reduced, in words.
    """

    temperature_c: float | None = None
    power_w: Amount | None = None
    power_limit_w: Amount | None = None
    utilization: Annotated[float, Field(ge=0, le=1)] | None = None
    clock_mhz: Amount | None = None
    max_clock_mhz: Amount | None = None
    used_bytes: Annotated[int, Field(ge=0)] | None = None
    slowed_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Device(StrictFields):
    """Something that workers compute on: a GPU, or all CPU cores of a host.

    Attributes:
        name: Name that its maker gives it.
        score: TFLOPS in fp32; 0 if that is not known, or not reliable.
        kind: Names of both in Kubernetes.
        source: True if the score was measured, estimated from what the device reports, or given by
            a person.
        cores: CPU cores that can be used, or CUDA cores.
        memory_bytes: Its memory.
        tflops: Measured in matrix products.
        unreliable: Rates whose rounds did not agree, because other processes used the device. They
            are shown and not used.
        memory_bytes_per_s: Measured in a copy: what is read and what is written.
        capability: The version of what a GPU can do (CUDA compute capability).
        uuid: UUID of a GPU, by which workers claim it.
        state: State of a GPU.
    """

    name: Name
    score: Amount
    kind: Literal["gpu", "cpu"] = "gpu"
    source: Literal["measured", "estimated", "given"] = "given"
    cores: Annotated[int, Field(ge=1)] | None = None
    memory_bytes: Annotated[int, Field(ge=0)] | None = None
    tflops: dict[Precision, Rate] = field(default_factory=dict)
    unreliable: dict[Precision | Literal["copies"], Rate] = field(default_factory=dict)
    memory_bytes_per_s: Rate | None = None
    capability: str = ""
    uuid: str = ""
    state: GpuState | None = None

    def score_in(self, precision: Precision) -> float:
        """TFLOPS in a precision; its score where that was not measured, 0 if it is not reliable."""
        if precision in self.unreliable:
            return 0.0
        return self.tflops.get(precision, self.score)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(StrictFields):
    """The memory of a host that processes may use.

    Attributes:
        total_bytes: All of it.
        available_bytes: Memory that is not in use.
    """

    total_bytes: Annotated[int, Field(ge=0)]
    available_bytes: Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk(StrictFields):
    """The disk below a directory.

    Attributes:
        path: The directory.
        write_bytes_per_s, read_bytes_per_s: One large file, from its beginning to its end.
        fsync_s, fsync_p99_s: Until a small write is durable: the median, and what 99 % take at
            most.
        direct: True if reads and writes have bypassed the page cache.
    """

    path: str
    write_bytes_per_s: Rate
    read_bytes_per_s: Rate
    fsync_s: Amount
    fsync_p99_s: Amount
    direct: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProfile(StrictFields):
    """One host.

    Attributes:
        devices: Its GPUs in the order of CUDA, then its CPU.
        memory, disk: Results, where they were measured.
        notes: Words for what could not be measured, and why.
    """

    devices: tuple[Device, ...]
    memory: Memory | None = None
    disk: Disk | None = None
    notes: tuple[str, ...] = ()

    def used_by(self, device: str) -> tuple[Device, ...]:
        """Devices that workers compute on.

        Args:
            device: Key of the job: `auto`, `cpu` or `cuda`.
        """
        kind = "cpu" if device == "cpu" else "gpu"
        return tuple(each for each in self.devices if each.kind == kind) or self.devices


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLink(StrictFields):
    """Latency and speed from one host to another, over one encrypted connection.

    Attributes:
        source, target: The hosts.
        latency_s: Until an answer comes back.
        bytes_per_s: Sent by the source.
    """

    source: str
    target: str
    latency_s: Amount
    bytes_per_s: Rate
