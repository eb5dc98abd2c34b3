"""System: samples what a host, its GPUs and the workers of a run on it use."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from typing import Final

import psutil

from holdfast.hardware.nvml import Driver, DriverGpu
from holdfast.hardware.system_sample import GpuSample, SystemSample, WorkerSample
from holdfast.linux.host_memory import available, total_bytes

_LOOPBACK: Final = "lo"


class SystemSampler:
    """Samples one host, in the thread that makes this object.

    Args:
        host: The name of its agent.
        gpus: The UUIDs of the GPUs that are sampled, in the order of the samples.
    """

    def __init__(self, host: str, gpus: Sequence[str]) -> None:
        self._host = host
        self._gpus = gpus
        self._driver = Driver()
        self._processes: dict[int, psutil.Process] = {}
        self._traffic = _Traffic.now()
        psutil.cpu_percent()  # the next call counts from here

    def sample(self, workers: Mapping[int, int]) -> SystemSample:
        """The host since the last call, or since this object was made.

        Args:
            workers: The rank of each worker by its process.
        """
        gpus = {each.uuid: each for each in self._driver.gpus()}
        total = total_bytes()
        before = self._traffic
        self._traffic = _Traffic.now()
        received, transmitted, read, written = self._traffic.rates_since(before)
        return SystemSample(
            host=self._host,
            time_unix_s=round(time.time(), 3),
            cpu=round(psutil.cpu_percent() / 100, 4),
            load=round(os.getloadavg()[0], 2),
            memory_bytes=max(0, total - available().size_bytes),
            memory_total_bytes=total,
            network_receive_bytes_per_s=received or 0.0,
            network_transmit_bytes_per_s=transmitted or 0.0,
            disk_read_bytes_per_s=read,
            disk_write_bytes_per_s=written,
            gpus=tuple(_gpu(gpus[uuid]) for uuid in self._gpus if uuid in gpus),
            workers=tuple(self._worker_samples(workers)),
        )

    def _worker_samples(self, workers: Mapping[int, int]) -> Iterator[WorkerSample]:
        known = self._processes
        self._processes = {}
        for pid, rank in sorted(workers.items(), key=lambda each: each[1]):
            with suppress(psutil.Error):  # it has exited
                process = known.get(pid) or psutil.Process(pid)
                cores = process.cpu_percent() / 100
                self._processes[pid] = process
                if pid in known:
                    used = process.memory_info().rss
                    yield WorkerSample(rank=rank, cpu=round(cores, 4), memory_bytes=used)


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Counts of the kernel until a time.

    Attributes:
        at: Monotonic seconds.
        received, transmitted, read, written: Bytes; None if it is not counted.
    """

    at: float
    received: int | None
    transmitted: int | None
    read: int | None = None
    written: int | None = None

    @classmethod
    def now(cls) -> _Traffic:
        network = [
            each for name, each in psutil.net_io_counters(pernic=True).items() if name != _LOOPBACK
        ]
        counts = sum(each.bytes_recv for each in network), sum(each.bytes_sent for each in network)
        disks = None
        with suppress(NotImplementedError, OSError):  # some containers show none
            disks = psutil.disk_io_counters()
        if disks is None:
            return cls(time.monotonic(), *counts)
        return cls(time.monotonic(), *counts, disks.read_bytes, disks.write_bytes)

    def rates_since(self, before: _Traffic) -> list[float | None]:
        """The bytes a second of each count; an interface that vanished meanwhile counts as none."""
        then, *earlier = astuple(before)
        now, *newest = astuple(self)
        return [
            None if new is None or old is None else round(max(0, new - old) / (now - then), 1)
            for old, new in zip(earlier, newest, strict=True)
        ]


def _gpu(gpu: DriverGpu) -> GpuSample:
    return GpuSample(
        index=gpu.number,
        name=gpu.name,
        utilization=gpu.state.utilization,
        memory_bytes=gpu.state.used_bytes,
        memory_total_bytes=gpu.memory_bytes,
        temperature_c=gpu.state.temperature_c,
        power_w=gpu.state.power_w,
    )
