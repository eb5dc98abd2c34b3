"""Samples of hosts, for tests."""

import time
from dataclasses import replace

from holdfast.hardware.system_sample import GpuSample, SystemSample, WorkerSample

SAMPLE = SystemSample(
    host="h1",
    time_unix_s=1000.5,
    cpu=0.5,
    load=1.25,
    memory_bytes=3 << 30,
    memory_total_bytes=8 << 30,
    network_receive_bytes_per_s=10.0,
    network_transmit_bytes_per_s=20.0,
    disk_read_bytes_per_s=None,
    disk_write_bytes_per_s=30.0,
    gpus=(
        GpuSample(
            index=0,
            name="NVIDIA H100",
            utilization=0.9,
            memory_bytes=5,
            memory_total_bytes=7,
            temperature_c=61.0,
            power_w=None,
        ),
    ),
    workers=(WorkerSample(rank=1, cpu=0.99, memory_bytes=1 << 28),),
)


def taken(host, age_s=0.0):
    """A sample of a host that was taken so long ago."""
    return replace(SAMPLE, host=host, time_unix_s=time.time() - age_s)
