"""SystemMetrics: what hosts use, read from `system.jsonl` at each scrape."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from prometheus_client.metrics_core import Metric as Family

from holdfast.rundir.system_file import SystemFile
from holdfast.sinks.prometheus import catalogue
from holdfast.sinks.prometheus.catalogue import CatalogueMetric
from holdfast.sinks.prometheus.instruments import gauges

MAX_AGE_S: Final = 60.0
"""A host without a newer sample is not shown: it has left, or is lost. Clocks may differ."""


class SystemMetrics:
    """Collects the metrics of hosts and their GPUs.

    Args:
        run_dir: The run's directory, with the samples of this host or of all.
    """

    def __init__(self, run_dir: Path) -> None:
        self._file = SystemFile(run_dir)

    def collect(self) -> Iterator[Family]:
        """Give all metrics; see `prometheus_client.registry.Collector`."""
        oldest = time.time() - MAX_AGE_S
        samples = [each for each in self._file.newest().values() if each.time_unix_s > oldest]
        for metric, field in _OF_HOST.items():
            yield gauges(metric, (((each.host,), getattr(each, field)) for each in samples))
        gpus = [((each.host, str(gpu.index)), gpu) for each in samples for gpu in each.gpus]
        yield gauges(catalogue.GPU_INFO, (((*labels, gpu.name), 1) for labels, gpu in gpus))
        for metric, field in _OF_GPU.items():
            yield gauges(metric, ((labels, getattr(gpu, field)) for labels, gpu in gpus))
        workers = [((each.host, str(one.rank)), one) for each in samples for one in each.workers]
        for metric, field in _OF_WORKER.items():
            yield gauges(metric, ((labels, getattr(one, field)) for labels, one in workers))


_OF_HOST: Final[dict[CatalogueMetric, str]] = {
    catalogue.HOST_CPU: "cpu",
    catalogue.HOST_LOAD: "load",
    catalogue.HOST_MEMORY: "memory_bytes",
    catalogue.HOST_MEMORY_LIMIT: "memory_total_bytes",
    catalogue.HOST_RECEIVE: "network_receive_bytes_per_s",
    catalogue.HOST_TRANSMIT: "network_transmit_bytes_per_s",
    catalogue.HOST_READ: "disk_read_bytes_per_s",
    catalogue.HOST_WRITE: "disk_write_bytes_per_s",
    catalogue.HOST_SAMPLED: "time_unix_s",
}
"""The field of a sample for each metric."""
_OF_GPU: Final[dict[CatalogueMetric, str]] = {
    catalogue.GPU_UTILIZATION: "utilization",
    catalogue.GPU_MEMORY: "memory_bytes",
    catalogue.GPU_MEMORY_LIMIT: "memory_total_bytes",
    catalogue.GPU_TEMPERATURE: "temperature_c",
    catalogue.GPU_POWER: "power_w",
}
_OF_WORKER: Final[dict[CatalogueMetric, str]] = {
    catalogue.WORKER_CPU: "cpu",
    catalogue.WORKER_MEMORY: "memory_bytes",
}
