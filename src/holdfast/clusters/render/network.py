"""Network policies: the pods of a run talk to each other, and to nothing but what they need."""

from __future__ import annotations

from typing import Final

from holdfast.clusters.render.objects import Document, documents
from holdfast.clusters.render.plan import RenderPlan
from holdfast.clusters.render.pods import METRICS_PORT

MONITORING: Final = "holdfast-monitoring"
"""The namespace of Prometheus."""


def network(plan: RenderPlan) -> list[Document]:
    """The network policies of a run, without those for an operator."""
    policies = documents(plan, "network")
    if plan.has_metrics:
        policies += documents(plan, "network-metrics", monitoring=MONITORING, port=METRICS_PORT)
    return policies
