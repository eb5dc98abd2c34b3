"""OpenTelemetry: a trace per recovery, sent by OTLP over HTTP.

The ids of a trace and its spans follow from the run and the number of the recovery. So a trace that
is sent twice is the same one.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.record.recovery_reports import RecoveryReport
from holdfast.sinks.trackers.tracker import Batch, TrackedRun

TIMEOUT_S: Final = 5.0
_PATH: Final = "/v1/traces"


class OpenTelemetry:
    """Sends to one receiver; see `Tracker`.

    Args:
        endpoint: Address of the receiver without the path; None for what the environment says.
    """

    name = "otel"
    takes_files = False

    def __init__(self, endpoint: str | None) -> None:
        self.kept: dict[str, Any] = {}
        self._endpoint = endpoint and endpoint.rstrip("/") + _PATH
        self._exporter: Any = None
        self._resource: dict[str, str] = {}
        self._run_id = ""

    def open(self, run: TrackedRun, kept: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Make a client; it connects when there is something to send."""
        logger = logging.getLogger("opentelemetry.exporter")
        logger.addHandler(logging.NullHandler())  # what fails is reported by us
        logger.propagate = False
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        self._exporter = OTLPSpanExporter(endpoint=self._endpoint, timeout=TIMEOUT_S)
        self._run_id = run.run_id
        self._resource = {
            "service.name": "holdfast",
            "service.version": run.tags.get("version.holdfast", ""),
            "host.name": run.tags["host"],
            "holdfast.job": run.job.name,
            "holdfast.run_id": run.run_id,
            "holdfast.run": run.name,
        }
        return True

    def send(self, batch: Batch) -> None:
        """Send a trace for each recovery of a batch."""
        spans = [
            span
            for report in batch.recoveries
            for span in _spans(report, self._run_id, self._resource)
        ]
        if spans and self._exporter.export(spans).name != "SUCCESS":
            raise ConnectionError

    def finish(self, status: str, files: Sequence[Path]) -> None:
        """A run has no trace of its own."""

    def close(self) -> None:
        """Close the connections."""
        if self._exporter is not None:
            self._exporter.shutdown()


def _spans(report: RecoveryReport, run_id: str, resource: Mapping[str, str]) -> Sequence[Any]:
    """The spans of a recovery: one for all of it, and one in it for each phase, in order."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    from opentelemetry.trace import Status, StatusCode, set_span_in_context

    made = InMemorySpanExporter()
    provider = TracerProvider(
        sampler=ALWAYS_ON,
        resource=Resource.create(dict(resource)),
        id_generator=_ids(f"{run_id}/{report.number}"),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(SimpleSpanProcessor(made))
    tracer = provider.get_tracer("holdfast")
    end = report.time_unix_s
    at = end - report.total_s
    whole = tracer.start_span("recovery", start_time=_ns(at), attributes=_attributes(report))
    for phase, seconds in report.seconds.items():
        span = tracer.start_span(phase, set_span_in_context(whole), start_time=_ns(at))
        at = min(at + seconds, end)
        span.end(_ns(at))
    if report.outcome == "failed":
        whole.set_status(Status(StatusCode.ERROR, report.causes[0].what))
    whole.end(_ns(end))
    return tuple(made.get_finished_spans())


def _ids(name: str) -> Any:
    """Generator of the ids of one trace: the same ones for the same name."""
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    class Ids(IdGenerator):  # type: ignore[misc]  # its module is not followed
        def __init__(self) -> None:
            self._count = 0

        def generate_trace_id(self) -> int:
            return int.from_bytes(hashlib.sha256(name.encode()).digest()[:16])

        def generate_span_id(self) -> int:
            self._count += 1
            return int.from_bytes(hashlib.sha256(f"{name}/{self._count}".encode()).digest()[:8])

    return Ids()


def _attributes(report: RecoveryReport) -> dict[str, Any]:
    cause = report.causes[0]
    values = {
        "number": report.number,
        "outcome": report.outcome,
        "cause": f"{cause.who} {cause.what}",
        "causes": len(report.causes),
        "rank": cause.rank,
        "injected_fault": cause.injected_fault or None,
        "step": report.step,
        "checkpoint": report.checkpoint,
        "halted": list(report.halted),
        "ended": list(report.ended),
        "recomputed_steps": report.recomputed_steps,
        "recomputed_samples": report.recomputed_samples,
    }
    return {f"recovery.{name}": value for name, value in values.items() if value is not None}


def _ns(seconds: float) -> int:
    return round(1e9 * seconds)
