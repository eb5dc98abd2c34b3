"""Common parts of all objects of a run: their names, labels and versions."""

from __future__ import annotations

from typing import Any, Final

from holdfast.clusters.render.plan import Plan
from holdfast.clusters.render.tree import Document

COORDINATOR: Final = "coordinator"
AGENT: Final = "agent"


def labels(plan: Plan, component: str | None = None) -> dict[str, str]:
    """The labels of an object, or of what belongs to the run if it is of no component."""
    part = {} if component is None else {"app.kubernetes.io/component": component}
    return {"app.kubernetes.io/name": "holdfast", "app.kubernetes.io/instance": plan.name, **part}


def manifest(
    plan: Plan, kind: str, version: str, name: str, component: str | None = None, **parts: Any
) -> Document:
    """An object in the namespace of the run.

    Args:
        plan: Plan of the run.
        kind, version: Names of both in Kubernetes.
        name: Its name.
        component: Part of the run that it belongs to, if only one.
        parts: Its fields besides those that every object has.
    """
    metadata = {"name": name, "namespace": plan.namespace, "labels": labels(plan, component)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **parts}


def mebibytes(size_bytes: int) -> str:
    """A size as a quantity of Kubernetes, rounded up."""
    return f"{-(-size_bytes // (1 << 20))}Mi"
