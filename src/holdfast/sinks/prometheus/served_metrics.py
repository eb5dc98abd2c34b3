"""Metrics: serves those of a run, or of a host that has joined one, for Prometheus.

The client library is imported only where metrics are served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from holdfast.job.spec import Job
from holdfast.record.sink import Sink
from holdfast.sinks.prometheus.address import MetricsAddress


@contextmanager
def metrics_of_run(
    address: MetricsAddress | None, run_dir: Path, job: Job, say: Callable[[str], None]
) -> Iterator[tuple[Sink, ...]]:
    """Serve the metrics of a run and all of its hosts while the block runs.

    Args:
        address: Address to serve at; None: nowhere.
        run_dir: The run's directory.
        job: Its job.
        say: Tells the user where they are.

    Returns:
        What must be told what happens in the run.

    Raises:
        JobError: They cannot be served there.
    """
    if address is None:
        yield ()
        return
    from holdfast.sinks.prometheus.metrics_server import serving
    from holdfast.sinks.prometheus.run_metrics import RunMetrics, SystemMetrics

    metrics = RunMetrics(
        run_dir,
        job.name,
        workers=job.workers,
        restarts=job.restarts,
        records_progress=job.records_progress,
        tokens_per_sample=job.tokens_per_sample,
    )
    with serving(address, run_dir, (metrics, SystemMetrics(run_dir)), say):
        yield (metrics,)


def metrics_of_host(
    address: MetricsAddress, run_dir: Path, say: Callable[[str], None]
) -> AbstractContextManager[None]:
    """Serve the metrics of this host and its GPUs while the context is open; see above."""
    from holdfast.sinks.prometheus.metrics_server import serving
    from holdfast.sinks.prometheus.run_metrics import SystemMetrics

    return serving(address, run_dir, (SystemMetrics(run_dir),), say)
