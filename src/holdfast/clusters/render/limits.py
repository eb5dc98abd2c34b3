"""The namespace, and what may be used in it."""

from __future__ import annotations

from typing import Final

from holdfast.clusters.render.objects import Document, documents, mebibytes
from holdfast.clusters.render.plan import RenderPlan

_SPARE_PODS: Final = 2
"""A pod that replaces one that is still terminating counts in addition to it."""
_SMALL_CPUS: Final = 1
_SMALL_BYTES: Final = 256 << 20
"""For the small containers of a pod."""


def namespace(plan: RenderPlan) -> Document:
    """The namespace, which refuses pods with privileges."""
    return documents(plan, "namespace")[0]


def limits(plan: RenderPlan, others: int, largest_bytes: int) -> list[Document]:
    """The quota of the namespace, and the limits of a container.

    Args:
        plan: Plan of the run.
        others: Pods that do not train.
        largest_bytes: Memory of the largest container of these.
    """
    pods = plan.hosts + others + _SPARE_PODS
    return documents(
        plan,
        "limits",
        pods=pods,
        cpus=pods * (plan.cpus + _SMALL_CPUS),
        memory=mebibytes(pods * (plan.memory_bytes + _SMALL_BYTES)),
        gpus=(plan.hosts + _SPARE_PODS) * plan.gpus,
        max_cpus=plan.cpus,
        max_memory=mebibytes(max(plan.memory_bytes, largest_bytes)),
    )


def disruptions(plan: RenderPlan) -> Document:
    """Limit of evictions: one agent at a time, or as many as the run can begin without."""
    return documents(plan, "disruptions", least=min(plan.hosts - 1, plan.least_hosts))[0]
