"""Instruments: the metrics of the catalogue as the Prometheus client has them."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Counter, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from holdfast.sinks.prometheus.catalogue import CatalogueMetric


def counter(metric: CatalogueMetric, values: Iterable[str] = ()) -> Counter:
    """A counter that is in no registry; it begins with 0 for each of the values of its label, so
    that the first rise is seen.
    """
    _omit_times_of_creation()
    made = Counter(metric.name, metric.text, metric.labels, registry=None)
    for value in values:
        made.labels(value)
    return made


def histogram(metric: CatalogueMetric) -> Histogram:
    """A histogram that is in no registry."""
    _omit_times_of_creation()
    return Histogram(metric.name, metric.text, buckets=metric.buckets, registry=None)


def gauge(metric: CatalogueMetric, value: float | None) -> Family:
    """A gauge without labels; None if it is not known."""
    return gauges(metric, [((), value)])


def gauges(
    metric: CatalogueMetric, values: Iterable[tuple[tuple[str, ...], float | None]]
) -> Family:
    """A gauge with labels.

    Args:
        metric: The gauge.
        values: The values of its labels, and its own; None where it is not known.
    """
    family = GaugeMetricFamily(metric.name, metric.text, labels=metric.labels)
    for labels, value in values:
        if value is not None:
            family.add_metric(labels, value)
    return family


def _omit_times_of_creation() -> None:
    """The client adds a gauge for each counter, which nothing here reads."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
