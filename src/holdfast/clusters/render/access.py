"""Rights in Kubernetes: agents nothing; the coordinator may fill one Secret."""

from __future__ import annotations

from holdfast.clusters.render.objects import Document, documents
from holdfast.clusters.render.plan import RenderPlan


def access(plan: RenderPlan) -> list[Document]:
    """All accounts, rights and Secrets of a run whose coordinator makes tokens."""
    return [*documents(plan, "accounts"), *documents(plan, "join")]
